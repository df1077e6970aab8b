// Exported: events.
#include "runtime.hpp"

using namespace mock;

namespace {

// Seconds that a stream waits for an event; 0: for ever.
std::atomic<uint32_t> g_wait_seconds{0};

CannError create(CannEvent *handle, uint32_t flags, bool ex) {
    constexpr uint32_t kKnownFlags = 0x7b;
    if (handle == nullptr) return report(failure(CANN_INVALID_PARAM, "event is null"));
    if ((flags & ~kKnownFlags) != 0) return report(failure(CANN_RT_PARAM_INVALID, "flags %#x are unknown", flags));
    int32_t device = 0;
    if (auto status = current_device(device); !status.ok()) return report(status);
    *handle = Runtime::instance().events.add(std::make_shared<Event>(flags, ex));
    return CANN_OK;
}

std::shared_ptr<Event> find(CannEvent handle, Status &status) {
    int32_t device = 0;
    status = current_device(device);
    if (!status.ok()) return nullptr;
    auto event = Runtime::instance().events.find(handle);
    if (event == nullptr) status = failure(CANN_RT_INVALID_HANDLE, "%p is not a live event", handle);
    return event;
}

using Enqueue = Status (*)(const std::shared_ptr<Event> &, const std::shared_ptr<Stream> &, const Fault &);

CannError enqueue(CannEvent handle, CannStream stream_handle, const Fault &fault, Enqueue function) {
    Status status;
    const auto event = find(handle, status);
    if (event == nullptr) return report(status);
    const auto stream = find_stream(stream_handle, status);
    return report(stream == nullptr ? status : function(event, stream, fault));
}

CannError wait(CannEvent handle, CannStream stream_handle, const Fault &fault, int64_t timeout_ms) {
    Status status;
    const auto event = find(handle, status);
    if (event == nullptr) return report(status);
    const auto stream = find_stream(stream_handle, status);
    return report(stream == nullptr ? status : Event::wait_in(event, stream, fault, timeout_ms));
}

Status refuse_ex(const Event &event) {
    if (!event.is_ex()) return {};
    return failure(CANN_RT_FEATURE_NOT_SUPPORT, "not for events of aclrtCreateEventExWithFlag");
}

CannError synchronize(CannEvent handle, int32_t timeout_ms) {
    if (timeout_ms < -1) return report(failure(CANN_RT_PARAM_INVALID, "timeout %d", timeout_ms));
    Status status;
    const auto event = find(handle, status);
    return report(event == nullptr ? status : event->synchronize(timeout_ms));
}

}  // namespace

MOCK_API CannError aclrtCreateEvent(CannEvent *event) {
    CANN_CALL(aclrtCreateEvent);
    return create(event, CANN_EVENT_FLAG_SYNC | CANN_EVENT_FLAG_TIME_LINE, false);
}

MOCK_API CannError aclrtCreateEventWithFlag(CannEvent *event, uint32_t flags) {
    CANN_CALL(aclrtCreateEventWithFlag);
    return create(event, flags, false);
}

CannError aclrtCreateEventExWithFlag(CannEvent *event, uint32_t flags) {
    CANN_CALL(aclrtCreateEventExWithFlag);
    return create(event, flags, true);
}

CannError aclrtDestroyEvent(CannEvent event) {
    CANN_CALL(aclrtDestroyEvent);
    if (Runtime::instance().events.take(event) != nullptr) return CANN_OK;
    return report(failure(CANN_RT_INVALID_HANDLE, "%p is not a live event", event));
}

CannError aclrtRecordEvent(CannEvent event, CannStream stream) {
    CANN_STREAM_CALL(aclrtRecordEvent);
    return enqueue(event, stream, call.fault(), Event::record);
}

MOCK_API CannError aclrtResetEvent(CannEvent handle, CannStream stream) {
    CANN_STREAM_CALL(aclrtResetEvent);
    Status status;
    const auto event = find(handle, status);
    if (event != nullptr) status = refuse_ex(*event);
    return status.ok() ? enqueue(handle, stream, call.fault(), Event::reset) : report(status);
}

CannError aclrtStreamWaitEvent(CannStream stream, CannEvent event) {
    CANN_STREAM_CALL(aclrtStreamWaitEvent);
    return wait(event, stream, call.fault(), int64_t{g_wait_seconds} * 1000);
}

MOCK_API CannError aclrtStreamWaitEventWithTimeout(CannStream stream, CannEvent event, int32_t timeoutMs) {
    CANN_STREAM_CALL(aclrtStreamWaitEventWithTimeout);
    if (timeoutMs < -1 || timeoutMs == 0) return report(failure(CANN_RT_PARAM_INVALID, "timeout %d", timeoutMs));
    return wait(event, stream, call.fault(), timeoutMs < 0 ? 0 : timeoutMs);
}

MOCK_API CannError aclrtSetOpWaitTimeout(uint32_t seconds) {
    CANN_CALL(aclrtSetOpWaitTimeout);
    g_wait_seconds = seconds;
    return CANN_OK;
}

MOCK_API CannError aclrtQueryEvent(CannEvent handle, CannEventStatus *result) {
    CANN_CALL(aclrtQueryEvent);
    if (result == nullptr) return report(failure(CANN_INVALID_PARAM, "status is null"));
    Status status;
    const auto event = find(handle, status);
    if (event != nullptr) status = refuse_ex(*event);
    if (status.ok()) *result = event->complete() ? CANN_EVENT_COMPLETE : CANN_EVENT_NOT_READY;
    return report(status);
}

CannError aclrtQueryEventStatus(CannEvent handle, CannRecordedStatus *result) {
    CANN_CALL(aclrtQueryEventStatus);
    if (result == nullptr) return report(failure(CANN_INVALID_PARAM, "status is null"));
    Status status;
    const auto event = find(handle, status);
    if (event != nullptr) *result = event->complete() ? CANN_RECORDED_COMPLETE : CANN_RECORDED_NOT_READY;
    return report(status);
}

MOCK_API CannError aclrtQueryEventWaitStatus(CannEvent handle, CannWaitStatus *result) {
    CANN_CALL(aclrtQueryEventWaitStatus);
    if (result == nullptr) return report(failure(CANN_INVALID_PARAM, "status is null"));
    Status status;
    const auto event = find(handle, status);
    if (event != nullptr) status = refuse_ex(*event);
    if (status.ok()) *result = event->waits_complete() ? CANN_WAIT_COMPLETE : CANN_WAIT_NOT_READY;
    return report(status);
}

MOCK_API CannError aclrtSynchronizeEvent(CannEvent event) {
    CANN_CALL(aclrtSynchronizeEvent);
    return synchronize(event, -1);
}

CannError aclrtSynchronizeEventWithTimeout(CannEvent event, int32_t timeoutMs) {
    CANN_CALL(aclrtSynchronizeEventWithTimeout);
    return synchronize(event, timeoutMs);
}

CannError aclrtEventElapsedTime(float *milliseconds, CannEvent start, CannEvent end) {
    CANN_CALL(aclrtEventElapsedTime);
    if (milliseconds == nullptr) return report(failure(CANN_INVALID_PARAM, "milliseconds is null"));
    Status status;
    const auto first = find(start, status);
    const auto last = first == nullptr ? nullptr : find(end, status);
    if (last == nullptr) return report(status);
    if (!first->has_time() || !last->has_time()) {
        return report(failure(CANN_RT_PARAM_INVALID, "both events need the TIME_LINE flag"));
    }
    std::chrono::steady_clock::time_point from, to;
    if (!first->time(from) || !last->time(to)) {
        return report(failure(CANN_RT_PARAM_INVALID, "an event was not reached yet"));
    }
    *milliseconds = std::chrono::duration<float, std::milli>(to - from).count();
    return CANN_OK;
}

MOCK_API CannError aclrtEventGetTimestamp(CannEvent handle, uint64_t *microseconds) {
    CANN_CALL(aclrtEventGetTimestamp);
    if (microseconds == nullptr) return report(failure(CANN_INVALID_PARAM, "timestamp is null"));
    Status status;
    const auto event = find(handle, status);
    if (event == nullptr) return report(status);
    if (!event->has_time()) return report(failure(CANN_RT_PARAM_INVALID, "the event needs the TIME_LINE flag"));
    std::chrono::steady_clock::time_point when;
    if (!event->time(when)) return report(failure(CANN_RT_PARAM_INVALID, "the event was not reached yet"));
    *microseconds = static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::microseconds>(when.time_since_epoch()).count());
    return CANN_OK;
}
