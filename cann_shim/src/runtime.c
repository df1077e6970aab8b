/* Start of the runtime and configuration of communicators, the same on every CANN from 8.1 on. */
#include <string.h>

#include "seqshift_cann.h"

CannError seqshiftInit(const SeqshiftSymbols *symbols, int32_t *owner)
{
    CannError code = symbols->aclInit(NULL);

    *owner = code == CANN_OK;
    return code == CANN_REPEAT_INITIALIZE ? CANN_OK : code;
}

void seqshiftConfigInit(CannHcclConfig *config, uint32_t bufferMib, const char *name)
{
    const struct {
        size_t size;
        uint32_t magic;
        uint32_t version;
        uint64_t zero;
    } info = {sizeof(*config), CANN_HCCL_CONFIG_MAGIC, CANN_HCCL_CONFIG_VERSION, 0};

    SEQSHIFT_ASSERT(sizeof(info) == CANN_HCCL_CONFIG_INFO_BYTES, "the head of a configuration is 24 bytes");
    memset(config, 0, sizeof(*config));
    memcpy(config->info, &info, sizeof(info));
    config->bufferMib = bufferMib;
    config->rdmaTrafficClass = CANN_HCCL_CONFIG_UNSET;
    config->rdmaServiceLevel = CANN_HCCL_CONFIG_UNSET;
    if (name != NULL) {
        size_t length = strlen(name);
        size_t most = sizeof(config->name) - 1;

        memcpy(config->name, name, length < most ? length : most);
    }
}
