#include "runtime.hpp"

#include <cstdlib>

namespace mock {
namespace {

struct Current {
    std::shared_ptr<Context> context;
    void *handle = nullptr;
};
thread_local Current t_current;

}  // namespace

std::atomic<uintptr_t> &handle_count() {
    static std::atomic<uintptr_t> count{0};
    return count;
}

std::atomic<int64_t> &live_communicators() {
    static std::atomic<int64_t> count{0};
    return count;
}

Runtime &Runtime::instance() {
    // Never destroyed: streams may still run when the process exits.
    static Runtime *runtime = new Runtime;
    return *runtime;
}

uint32_t Runtime::device_count() {
    constexpr uint64_t kDefault = 16;
    const uint64_t unset = 0;
    return static_cast<uint32_t>(std::min<uint64_t>(setting(unset, "SEQSHIFT_MOCK_DEVICES", 1, kDefault),
                                                    Tracker::kDevices));
}

const char *Runtime::soc_name() {
    const char *name = std::getenv("SEQSHIFT_MOCK_SOC");
    return name != nullptr && *name != '\0' ? name : "Ascend910_9391";
}

bool Runtime::needs_peer_access() { return std::string_view(soc_name()).starts_with("Ascend910B"); }

std::shared_ptr<Context> Runtime::current(Status &status) const {
    if (!initialized) {
        status = failure(CANN_UNINITIALIZE, "aclInit was not called");
        return nullptr;
    }
    const std::lock_guard lock(mutex_);
    if (t_current.context == nullptr) {
        status = failure(CANN_RT_CONTEXT_NULL, "this thread has no context: call aclrtSetDevice in it");
        return nullptr;
    }
    if (t_current.context->destroyed) {
        status = failure(CANN_RT_CONTEXT_NULL, "the context of this thread was destroyed");
        return nullptr;
    }
    return t_current.context;
}

Status current_device(int32_t &device) {
    Status status;
    if (const auto context = Runtime::instance().current(status)) device = context->device;
    return status;
}

Status Runtime::set_device(int32_t device) {
    if (!initialized) return failure(CANN_UNINITIALIZE, "aclInit was not called");
    if (device < 0 || static_cast<uint32_t>(device) >= device_count()) {
        return failure(CANN_RT_INVALID_DEVICE, "device %d of %u", device, device_count());
    }
    const std::lock_guard lock(mutex_);
    auto &primary = primaries_[device];
    if (primary.references == 0) {
        auto context = std::make_shared<Context>();
        context->device = device;
        primary.handle = contexts.add(std::move(context));
    }
    // Setting the device that is current already is no new reference.
    if (t_current.handle != primary.handle) ++primary.references;
    t_current = {contexts.find(primary.handle), primary.handle};
    return {};
}

Status Runtime::reset_device(int32_t device, bool force) {
    if (!initialized) return failure(CANN_UNINITIALIZE, "aclInit was not called");
    std::shared_ptr<Context> context;
    {
        const std::lock_guard lock(mutex_);
        const auto entry = primaries_.find(device);
        if (entry == primaries_.end()) return failure(CANN_RT_INVALID_DEVICE, "device %d was not set", device);
        if (--entry->second.references > 0 && !force) {
            if (t_current.handle == entry->second.handle) t_current = {};
            return {};
        }
        context = contexts.take(entry->second.handle);
        primaries_.erase(entry);
    }
    destroy(context);
    tracker().reset_device(device);
    return {};
}

Status Runtime::create_context(int32_t device, void **handle) {
    if (auto status = set_device(device); !status.ok()) return status;
    auto context = std::make_shared<Context>();
    context->device = device;
    *handle = contexts.add(context);
    t_current = {std::move(context), *handle};
    return {};
}

Status Runtime::destroy_context(void *handle) {
    {
        const std::lock_guard lock(mutex_);
        for (const auto &[device, primary] : primaries_) {
            if (primary.handle == handle) {
                return failure(CANN_RT_PARAM_INVALID, "the default context of device %d: use aclrtResetDevice", device);
            }
        }
    }
    const auto context = contexts.take(handle);
    if (context == nullptr) return failure(CANN_RT_INVALID_HANDLE, "%p is not a live context", handle);
    destroy(context);
    return {};
}

void Runtime::destroy(const std::shared_ptr<Context> &context) {
    auto owned = streams.take_if([&](const Stream &stream) { return &stream.context() == context.get(); });
    {
        const std::lock_guard lock(mutex_);
        context->destroyed = true;
        if (const auto entry = default_streams_.find(context.get()); entry != default_streams_.end()) {
            owned.push_back(std::move(entry->second));
            default_streams_.erase(entry);
        }
    }
    for (const auto &stream : owned) stream->stop();
}

Status Runtime::enter_context(void *handle) {
    auto context = contexts.find(handle);
    if (context == nullptr) return failure(CANN_RT_INVALID_HANDLE, "%p is not a live context", handle);
    t_current = {std::move(context), handle};
    return {};
}

void *Runtime::current_handle() const { return t_current.handle; }

std::shared_ptr<Stream> Runtime::default_stream(const std::shared_ptr<Context> &context) {
    const std::lock_guard lock(mutex_);
    auto &stream = default_streams_[context.get()];
    if (stream == nullptr) stream = std::make_shared<Stream>(context);
    return stream;
}

void Runtime::enable_peer(int32_t device, int32_t peer) {
    const std::lock_guard lock(mutex_);
    peers_[{device, peer}] = true;
}

bool Runtime::peers(int32_t device, int32_t peer) const {
    if (!needs_peer_access()) return true;
    const std::lock_guard lock(mutex_);
    return peers_.contains({device, peer});
}

std::shared_ptr<Stream> find_stream(void *handle, Status &status) {
    auto &runtime = Runtime::instance();
    const auto context = runtime.current(status);
    if (context == nullptr) return nullptr;
    if (handle == nullptr) return runtime.default_stream(context);
    auto stream = runtime.streams.find(handle);
    if (stream == nullptr) {
        status = failure(CANN_RT_INVALID_HANDLE, "%p is not a live stream", handle);
    } else if (&stream->context() != context.get()) {
        status = failure(CANN_RT_STREAM_CONTEXT, "the stream belongs to another context (device %d, current: %d)",
                         stream->device(), context->device);
        stream = nullptr;
    }
    return stream;
}

}  // namespace mock
