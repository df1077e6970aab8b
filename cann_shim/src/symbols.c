/* The list of symbols that the Rust core looks up: name, place in the table, library, group. */
#include "seqshift_cann.h"

#define ENTRY(name, library, mandatory) {#name, (uint32_t)offsetof(SeqshiftSymbols, name), library, mandatory},
#define ACL_MANDATORY(result, name, parameters) ENTRY(name, SEQSHIFT_LIBRARY_ACL, 1)
#define HCCL_MANDATORY(result, name, parameters) ENTRY(name, SEQSHIFT_LIBRARY_HCCL, 1)
#define ACL_OPTIONAL(result, name, parameters) ENTRY(name, SEQSHIFT_LIBRARY_ACL, 0)
#define NNOPBASE(result, name, parameters) ENTRY(name, SEQSHIFT_LIBRARY_NNOPBASE, 0)
#define OPAPI(result, name, parameters) ENTRY(name, SEQSHIFT_LIBRARY_OPAPI, 0)

static const SeqshiftSymbol list[] = {
    SEQSHIFT_ACL_MANDATORY(ACL_MANDATORY)
    SEQSHIFT_HCCL_MANDATORY(HCCL_MANDATORY)
    SEQSHIFT_ACL_OPTIONAL(ACL_OPTIONAL)
    SEQSHIFT_NNOPBASE_OPTIONAL(NNOPBASE)
    SEQSHIFT_OPAPI_OPTIONAL(OPAPI)
    SEQSHIFT_MOCK_OPTIONAL(ACL_OPTIONAL)
};

SEQSHIFT_ASSERT(sizeof(list) / sizeof(list[0]) == sizeof(SeqshiftSymbols) / sizeof(void *),
                "every member of the table is listed");

const SeqshiftSymbol *seqshiftSymbolList(size_t *count)
{
    *count = sizeof(list) / sizeof(list[0]);
    return list;
}
