// Exported: kernels that select and write rows of a tensor.
#include <cstring>

#include "rows.hpp"

using namespace mock;
using namespace mock::nn;

CannError aclnnIndexSelectGetWorkspaceSize(const void *self, int64_t dim, const void *index, CannTensor out,
                                           uint64_t *workspaceSize, CannExecutor *executor) {
    CANN_CALL(aclnnIndexSelectGetWorkspaceSize);
    Rows rows;
    if (const auto status = find_rows(self, "self", dim, index, out, "out", rows); !status.ok()) return report(status);
    const auto run = [rows](const std::vector<char *> &data, const Fault &fault) {
        Status status = for_each_row(rows, data[0], data[1], data[2],
                                     [](char *whole, char *part, size_t bytes) { std::memcpy(part, whole, bytes); });
        if (status.ok()) corrupt(fault, data[2], rows.part->extent());
        return status;
    };
    return report(finish_first_phase({.kernel = "aclnnIndexSelect",
                                      .operands = {{rows.whole, "self"}, {rows.index, "index"}, {rows.part, "out"}},
                                      .workspace = workspace_of(rows),
                                      .run = run},
                                     workspaceSize, executor));
}

CannError aclnnIndexSelect(void *workspace, uint64_t workspaceSize, CannExecutor executor, CannStream stream) {
    CANN_STREAM_CALL(aclnnIndexSelect);
    return report(second_phase("aclnnIndexSelect", workspace, workspaceSize, executor, stream, call.fault()));
}

CannError aclnnInplaceIndexCopyGetWorkspaceSize(CannTensor self, int64_t dim, const void *index, const void *source,
                                                uint64_t *workspaceSize, CannExecutor *executor) {
    CANN_CALL(aclnnInplaceIndexCopyGetWorkspaceSize);
    Rows rows;
    if (const auto status = find_rows(self, "selfRef", dim, index, source, "source", rows); !status.ok()) {
        return report(status);
    }
    const auto run = [rows](const std::vector<char *> &data, const Fault &fault) {
        char *written = nullptr;
        size_t length = 0;
        Status status = for_each_row(rows, data[0], data[1], data[2], [&](char *whole, char *part, size_t bytes) {
            std::memcpy(whole, part, bytes);
            written = whole;
            length = bytes;
        });
        if (status.ok()) corrupt(fault, written, length);
        return status;
    };
    return report(finish_first_phase({.kernel = "aclnnInplaceIndexCopy",
                                      .operands = {{rows.whole, "selfRef"}, {rows.index, "index"},
                                                   {rows.part, "source"}},
                                      .workspace = workspace_of(rows),
                                      .run = run},
                                     workspaceSize, executor));
}

CannError aclnnInplaceIndexCopy(void *workspace, uint64_t workspaceSize, CannExecutor executor, CannStream stream) {
    CANN_STREAM_CALL(aclnnInplaceIndexCopy);
    return report(second_phase("aclnnInplaceIndexCopy", workspace, workspaceSize, executor, stream, call.fault()));
}
