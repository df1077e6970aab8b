// Exported: copies and fills.
#include <cstring>

#include "copy.hpp"
#include "runtime.hpp"

using namespace mock;

namespace {

// Accesses that were fine when a task was pushed and fail when it runs are faults of the device's copy engine.
Status as_device_error(Status status) {
    if (!status.ok()) status.code = CANN_RT_SYS_DMA;
    return status;
}

CannError copy_now(const Copy &copy, const Fault &fault) {
    int32_t device = 0;
    if (auto status = current_device(device); !status.ok()) return report(status);
    return report(perform(copy, device, fault));
}

CannError copy_in_stream(const Copy &copy, CannStream handle, const Fault &fault) {
    Status status;
    const auto stream = find_stream(handle, status);
    if (stream == nullptr) return report(status);
    const int32_t device = stream->device();
    bool wait = false;
    {
        const Ends ends = open_ends(copy, device);
        if (!ends.status.ok()) return report(ends.status);
        wait = ends.unpinned();
    }
    if (copy.kind == CANN_COPY_HOST_TO_HOST) {
        return report(failure(CANN_RT_FEATURE_NOT_SUPPORT, "host to host is not supported in a stream"));
    }
    Task task;
    task.fault = fault;
    task.run = [copy, device, fault](const Cancel &) { return as_device_error(perform(copy, device, fault)); };
    return report(wait ? stream->push_and_wait(std::move(task)) : stream->push(std::move(task)));
}

Status check_limit(size_t limit, size_t count) {
    if (count <= limit) return {};
    return failure(CANN_INVALID_PARAM, "count %zu exceeds the destination's %zu bytes", count, limit);
}

Status fill(void *address, int32_t value, size_t count, int32_t device, const Fault &fault) {
    if (count == 0) return failure(CANN_RT_PARAM_INVALID, "nothing to set");
    const Access access = tracker().access(address, count);
    if (!access.ok()) return access.status();
    if (access.on_device() && access.device() != device) {
        return failure(CANN_RT_PARAM_INVALID, "wrong device: memory of device %d, running on device %d",
                       access.device(), device);
    }
    std::memset(access.data(), value, count);
    corrupt(fault, access.data(), count);
    return {};
}

}  // namespace

CannError aclrtMemcpy(void *dst, size_t dstMax, const void *src, size_t count, CannMemcpyKind kind) {
    CANN_CALL(aclrtMemcpy);
    if (auto status = check_limit(dstMax, count); !status.ok()) return report(status);
    return copy_now(plain_copy(dst, src, count, kind), call.fault());
}

CannError aclrtMemcpyAsync(void *dst, size_t dstMax, const void *src, size_t count, CannMemcpyKind kind,
                           CannStream stream) {
    CANN_STREAM_CALL(aclrtMemcpyAsync);
    if (auto status = check_limit(dstMax, count); !status.ok()) return report(status);
    return copy_in_stream(plain_copy(dst, src, count, kind), stream, call.fault());
}

MOCK_API CannError aclrtMemcpy2d(void *dst, size_t dstPitch, const void *src, size_t srcPitch, size_t width,
                                 size_t height, CannMemcpyKind kind) {
    CANN_CALL(aclrtMemcpy2d);
    return copy_now({dst, src, dstPitch, srcPitch, width, height, kind}, call.fault());
}

CannError aclrtMemcpy2dAsync(void *dst, size_t dstPitch, const void *src, size_t srcPitch, size_t width, size_t height,
                             CannMemcpyKind kind, CannStream stream) {
    CANN_STREAM_CALL(aclrtMemcpy2dAsync);
    return copy_in_stream({dst, src, dstPitch, srcPitch, width, height, kind}, stream, call.fault());
}

MOCK_API CannError aclrtMemset(void *address, size_t maxCount, int32_t value, size_t count) {
    CANN_CALL(aclrtMemset);
    if (auto status = check_limit(maxCount, count); !status.ok()) return report(status);
    int32_t device = 0;
    if (auto status = current_device(device); !status.ok()) return report(status);
    return report(fill(address, value, count, device, call.fault()));
}

CannError aclrtMemsetAsync(void *address, size_t maxCount, int32_t value, size_t count, CannStream handle) {
    CANN_STREAM_CALL(aclrtMemsetAsync);
    Status status = check_limit(maxCount, count);
    if (!status.ok()) return report(status);
    const auto stream = find_stream(handle, status);
    if (stream == nullptr) return report(status);
    const int32_t device = stream->device();
    {
        const Access access = tracker().access_device(address, count, device);
        if (!access.ok()) return report(access.status());
    }
    if (count == 0) return report(failure(CANN_RT_PARAM_INVALID, "nothing to set"));
    Task task;
    task.fault = call.fault();
    task.run = [=, fault = call.fault()](const Cancel &) {
        return as_device_error(fill(address, value, count, device, fault));
    };
    return report(stream->push(std::move(task)));
}
