// Exported: streams, and functions that run in stream order.
#include "callback.hpp"
#include "runtime.hpp"

using namespace mock;

namespace {

CannError create(CannStream *stream, uint32_t priority, uint32_t flags) {
    constexpr uint32_t kMaxPriority = 7;
    constexpr uint32_t kKnownFlags = 0x3f;
    if (stream == nullptr) return report(failure(CANN_INVALID_PARAM, "stream is null"));
    if (priority > kMaxPriority || (flags & ~kKnownFlags) != 0) {
        return report(failure(CANN_RT_PARAM_INVALID, "priority %u or flags %#x are unknown", priority, flags));
    }
    Status status;
    const auto context = Runtime::instance().current(status);
    if (context != nullptr) *stream = Runtime::instance().streams.add(std::make_shared<Stream>(context));
    return report(status);
}

CannError destroy(CannStream handle, bool force) {
    Status status;
    if (handle == nullptr) return report(failure(CANN_INVALID_PARAM, "the default stream cannot be destroyed"));
    const auto stream = find_stream(handle, status);
    if (stream == nullptr) return report(status);
    if (stream->is_worker()) return report(failure(CANN_RT_PARAM_INVALID, "called from a task of the stream itself"));
    if (!force) stream->synchronize(-1);
    if (Runtime::instance().streams.take(handle) == nullptr) {
        return report(failure(CANN_RT_INVALID_HANDLE, "the stream was destroyed by another thread"));
    }
    stream->stop();
    forget_callbacks(stream.get());
    return CANN_OK;
}

CannError synchronize(CannStream handle, int32_t timeout_ms) {
    if (timeout_ms < -1) return report(failure(CANN_RT_PARAM_INVALID, "timeout %d", timeout_ms));
    Status status;
    const auto stream = find_stream(handle, status);
    if (stream == nullptr) return report(status);
    if (stream->is_worker()) return report(failure(CANN_RT_PARAM_INVALID, "called from a task of the stream itself"));
    return report(stream->synchronize(timeout_ms));
}

}  // namespace

MOCK_API CannError aclrtCreateStream(CannStream *stream) {
    CANN_CALL(aclrtCreateStream);
    return create(stream, 0, 0);
}

CannError aclrtCreateStreamWithConfig(CannStream *stream, uint32_t priority, uint32_t flags) {
    CANN_CALL(aclrtCreateStreamWithConfig);
    return create(stream, priority, flags);
}

CannError aclrtDestroyStream(CannStream stream) {
    CANN_CALL(aclrtDestroyStream);
    return destroy(stream, false);
}

CannError aclrtDestroyStreamForce(CannStream stream) {
    CANN_CALL(aclrtDestroyStreamForce);
    return destroy(stream, true);
}

MOCK_API CannError aclrtSynchronizeStream(CannStream stream) {
    CANN_CALL(aclrtSynchronizeStream);
    return synchronize(stream, -1);
}

CannError aclrtSynchronizeStreamWithTimeout(CannStream stream, int32_t timeoutMs) {
    CANN_CALL(aclrtSynchronizeStreamWithTimeout);
    return synchronize(stream, timeoutMs);
}

CannError aclrtStreamQuery(CannStream handle, CannStreamStatus *result) {
    CANN_CALL(aclrtStreamQuery);
    if (result == nullptr) return report(failure(CANN_INVALID_PARAM, "status is null"));
    Status status;
    const auto stream = find_stream(handle, status);
    if (stream == nullptr) return report(status);
    *result = stream->idle() ? CANN_STREAM_COMPLETE : CANN_STREAM_NOT_READY;
    return report(stream->error());
}

CannError aclrtStreamAbort(CannStream handle) {
    CANN_CALL(aclrtStreamAbort);
    Status status;
    const auto stream = find_stream(handle, status);
    if (stream == nullptr) return report(status);
    if (stream->is_worker()) return report(failure(CANN_RT_PARAM_INVALID, "called from a task of the stream itself"));
    stream->abort();
    return CANN_OK;
}

MOCK_API CannError aclrtSynchronizeDevice(void) {
    CANN_CALL(aclrtSynchronizeDevice);
    int32_t device = 0;
    Status status;
    const auto context = Runtime::instance().current(status);
    if (context == nullptr) return report(status);
    device = context->device;
    auto streams = Runtime::instance().streams.all();
    streams.push_back(Runtime::instance().default_stream(context));
    for (const auto &stream : streams) {
        if (stream->device() != device) continue;
        Status result = stream->synchronize(-1);
        if (status.ok()) status = std::move(result);
    }
    return report(status);
}

MOCK_API CannError aclrtLaunchHostFunc(CannStream handle, void (*function)(void *), void *argument) {
    CANN_STREAM_CALL(aclrtLaunchHostFunc);
    if (function == nullptr) return report(failure(CANN_INVALID_PARAM, "the function is null"));
    Status status;
    const auto stream = find_stream(handle, status);
    if (stream == nullptr) return report(status);
    Task task;
    task.fault = call.fault();
    task.run = [function, argument](const Cancel &) {
        function(argument);
        return Status{};
    };
    return report(stream->push(std::move(task)));
}

MOCK_API CannError aclrtSubscribeReport(uint64_t thread, CannStream handle) {
    CANN_CALL(aclrtSubscribeReport);
    Status status;
    const auto stream = find_stream(handle, status);
    return report(stream == nullptr ? status : subscribe_callbacks(thread, stream.get()));
}

MOCK_API CannError aclrtUnSubscribeReport(uint64_t thread, CannStream handle) {
    CANN_CALL(aclrtUnSubscribeReport);
    Status status;
    const auto stream = find_stream(handle, status);
    return report(stream == nullptr ? status : unsubscribe_callbacks(thread, stream.get()));
}

MOCK_API CannError aclrtLaunchCallback(CannCallback function, void *argument, CannCallbackBlock block,
                                       CannStream handle) {
    CANN_STREAM_CALL(aclrtLaunchCallback);
    if (function == nullptr) return report(failure(CANN_INVALID_PARAM, "the function is null"));
    if (block != CANN_CALLBACK_BLOCK && block != CANN_CALLBACK_NO_BLOCK) {
        return report(failure(CANN_RT_PARAM_INVALID, "block type %d is unknown", block));
    }
    Status status;
    const auto stream = find_stream(handle, status);
    if (stream == nullptr) return report(status);
    return report(launch_callback(function, argument, block == CANN_CALLBACK_BLOCK, *stream, call.fault()));
}

MOCK_API CannError aclrtProcessReport(int32_t timeout_ms) {
    CANN_CALL(aclrtProcessReport);
    if (timeout_ms < -1 || timeout_ms == 0) return report(failure(CANN_RT_PARAM_INVALID, "timeout %d", timeout_ms));
    return report(process_callback(timeout_ms));
}
