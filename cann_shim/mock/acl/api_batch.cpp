// Exported: batches of copies. Host to device or device to host, one direction per batch, in any order.
#include <cstring>
#include <vector>

#include "copy.hpp"
#include "runtime.hpp"

using namespace mock;

namespace {

struct Batch {
    void **dsts;
    size_t *dst_maxs;
    void **srcs;
    size_t *sizes;
    size_t count;
    CannMemcpyBatchAttr *attrs;
    size_t *attrs_indexes;
    size_t attrs_count;
    size_t *fail_index;  // null in the V2 forms
};

Status check_attributes(const Batch &batch) {
    if (batch.attrs_count == 0 || batch.attrs_count > batch.count) {
        return failure(CANN_INVALID_PARAM, "%zu attributes for %zu copies", batch.attrs_count, batch.count);
    }
    static constexpr uint8_t kZero[sizeof CannMemcpyBatchAttr::reserved] = {};
    for (size_t i = 0; i < batch.attrs_count; ++i) {
        const size_t index = batch.attrs_indexes[i];
        const bool ascends = i == 0 ? index == 0 : index > batch.attrs_indexes[i - 1];
        if (!ascends || index >= batch.count) {
            return failure(CANN_INVALID_PARAM, "attrsIndexes[%zu] is %zu: they start at 0, ascend, and stay below %zu",
                           i, index, batch.count);
        }
        if (std::memcmp(batch.attrs[i].reserved, kZero, sizeof kZero) != 0) {
            return failure(CANN_INVALID_PARAM, "attrs[%zu].reserved is not zero", i);
        }
    }
    return {};
}

CannMemcpyKind kind_of(const CannMemcpyBatchAttr &attr) {
    const bool dst = attr.dstLocation.type == CANN_LOCATION_DEVICE;
    const bool src = attr.srcLocation.type == CANN_LOCATION_DEVICE;
    return src ? (dst ? CANN_COPY_DEVICE_TO_DEVICE : CANN_COPY_DEVICE_TO_HOST)
               : (dst ? CANN_COPY_HOST_TO_DEVICE : CANN_COPY_HOST_TO_HOST);
}

Status check_location(const CannMemcpyBatchAttr &attr, int32_t device) {
    const auto &location = attr.dstLocation.type == CANN_LOCATION_DEVICE ? attr.dstLocation : attr.srcLocation;
    if (static_cast<int64_t>(location.id) == device) return {};
    return failure(CANN_RT_PARAM_INVALID, "the attribute names device %u, the copy runs on device %d", location.id,
                   device);
}

// Turns the batch into copies; sets *batch.fail_index when one item is to blame. `unpinned`: some host memory is not
// pinned.
Status expand(const Batch &batch, int32_t device, size_t max, std::vector<Copy> &copies, bool &unpinned) {
    size_t ignored = 0;
    size_t &fail_index = batch.fail_index != nullptr ? *batch.fail_index : ignored;
    fail_index = SIZE_MAX;
    if (batch.dsts == nullptr || batch.dst_maxs == nullptr || batch.srcs == nullptr || batch.sizes == nullptr ||
        batch.attrs == nullptr || batch.attrs_indexes == nullptr) {
        return failure(CANN_INVALID_PARAM, "an array is null");
    }
    if (batch.count == 0 || batch.count > max) {
        return failure(CANN_INVALID_PARAM, "%zu copies: from 1 to %zu are possible", batch.count, max);
    }
    if (auto status = check_attributes(batch); !status.ok()) return status;
    size_t attr = 0;
    copies.reserve(batch.count);
    for (size_t i = 0; i < batch.count; ++i) {
        if (attr + 1 < batch.attrs_count && batch.attrs_indexes[attr + 1] == i) ++attr;
        const CannMemcpyKind kind = kind_of(batch.attrs[attr]);
        fail_index = i;
        if (kind != CANN_COPY_HOST_TO_DEVICE && kind != CANN_COPY_DEVICE_TO_HOST) {
            return failure(CANN_RT_FEATURE_NOT_SUPPORT, "only host to device and device to host are supported");
        }
        if (i > 0 && kind != copies.front().kind) {
            return failure(CANN_RT_FEATURE_NOT_SUPPORT, "the batch has both directions");
        }
        if (auto status = check_location(batch.attrs[attr], device); !status.ok()) return status;
        if (batch.sizes[i] > batch.dst_maxs[i]) {
            return failure(CANN_INVALID_PARAM, "sizes[%zu] exceeds destMaxs[%zu]", i, i);
        }
        copies.push_back(plain_copy(batch.dsts[i], batch.srcs[i], batch.sizes[i], kind));
        const Ends ends = open_ends(copies.back(), device);
        if (!ends.status.ok()) return ends.status;
        unpinned = unpinned || ends.unpinned();
    }
    fail_index = SIZE_MAX;
    return {};
}

Status perform_all(const std::vector<Copy> &copies, int32_t device, const Fault &fault, size_t *fail_index) {
    // Last item first: whoever relies on an order that is not promised finds out here.
    for (size_t i = copies.size(); i-- > 0;) {
        Status status = perform(copies[i], device, i == 0 ? fault : Fault{});
        if (status.ok()) continue;
        if (fail_index != nullptr) *fail_index = i;
        return status;
    }
    return {};
}

CannError copy_now(const Batch &batch, const Fault &fault) {
    int32_t device = 0;
    if (auto status = current_device(device); !status.ok()) return report(status);
    std::vector<Copy> copies;
    bool unpinned = false;
    Status status = expand(batch, device, CANN_MEMCPY_BATCH_MAX, copies, unpinned);
    if (status.ok()) status = perform_all(copies, device, fault, batch.fail_index);
    return report(status);
}

CannError copy_in_stream(const Batch &batch, CannStream handle, const Fault &fault) {
    Status status;
    const auto stream = find_stream(handle, status);
    if (stream == nullptr) return report(status);
    const int32_t device = stream->device();
    std::vector<Copy> copies;
    bool unpinned = false;
    status = expand(batch, device, SIZE_MAX, copies, unpinned);
    if (!status.ok()) return report(status);
    Task task;
    task.fault = fault;
    task.run = [copies = std::move(copies), device, fault](const Cancel &) {
        Status result = perform_all(copies, device, fault, nullptr);
        if (!result.ok()) result.code = CANN_RT_SYS_DMA;
        return result;
    };
    return report(unpinned ? stream->push_and_wait(std::move(task)) : stream->push(std::move(task)));
}

}  // namespace

MOCK_API CannError aclrtMemcpyBatch(void **dsts, size_t *dstMaxs, void **srcs, size_t *sizes, size_t count,
                                    CannMemcpyBatchAttr *attrs, size_t *attrsIndexes, size_t attrsCount,
                                    size_t *failIndex) {
    CANN_CALL(aclrtMemcpyBatch);
    if (failIndex == nullptr) return report(failure(CANN_INVALID_PARAM, "failIndex is null"));
    return copy_now({dsts, dstMaxs, srcs, sizes, count, attrs, attrsIndexes, attrsCount, failIndex}, call.fault());
}

MOCK_API CannError aclrtMemcpyBatchV2(void **dsts, size_t *dstMaxs, void **srcs, size_t *sizes, size_t count,
                                      CannMemcpyBatchAttr *attrs, size_t *attrsIndexes, size_t attrsCount) {
    CANN_CALL(aclrtMemcpyBatchV2);
    return copy_now({dsts, dstMaxs, srcs, sizes, count, attrs, attrsIndexes, attrsCount, nullptr}, call.fault());
}

CannError aclrtMemcpyBatchAsync(void **dsts, size_t *dstMaxs, void **srcs, size_t *sizes, size_t count,
                                CannMemcpyBatchAttr *attrs, size_t *attrsIndexes, size_t attrsCount, size_t *failIndex,
                                CannStream stream) {
    CANN_STREAM_CALL(aclrtMemcpyBatchAsync);
    if (failIndex == nullptr) return report(failure(CANN_INVALID_PARAM, "failIndex is null"));
    return copy_in_stream({dsts, dstMaxs, srcs, sizes, count, attrs, attrsIndexes, attrsCount, failIndex}, stream,
                          call.fault());
}

CannError aclrtMemcpyBatchAsyncV2(void **dsts, size_t *dstMaxs, void **srcs, size_t *sizes, size_t count,
                                  CannMemcpyBatchAttr *attrs, size_t *attrsIndexes, size_t attrsCount,
                                  CannStream stream) {
    CANN_STREAM_CALL(aclrtMemcpyBatchAsyncV2);
    return copy_in_stream({dsts, dstMaxs, srcs, sizes, count, attrs, attrsIndexes, attrsCount, nullptr}, stream,
                          call.fault());
}
