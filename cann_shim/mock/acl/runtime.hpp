// Devices, contexts and the handles of a process.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "event.hpp"
#include "stream.hpp"
#include "tracker.hpp"

namespace mock {

struct Context {
    int32_t device = 0;
    bool destroyed = false;  // guarded by Runtime's mutex
};

// Handles are numbers that are never reused and are no addresses: a stale one is found out, a dereferenced one faults.
template <typename T>
class Handles {
   public:
    void *add(std::shared_ptr<T> object) {
        const std::lock_guard lock(mutex_);
        void *handle = reinterpret_cast<void *>(kBase | (++count() << 4));
        objects_.emplace(handle, std::move(object));
        return handle;
    }
    std::shared_ptr<T> find(void *handle) const {
        const std::lock_guard lock(mutex_);
        const auto entry = objects_.find(handle);
        return entry == objects_.end() ? nullptr : entry->second;
    }
    std::shared_ptr<T> take(void *handle) {
        const std::lock_guard lock(mutex_);
        const auto entry = objects_.find(handle);
        if (entry == objects_.end()) return nullptr;
        auto object = std::move(entry->second);
        objects_.erase(entry);
        return object;
    }
    template <typename F>
    std::vector<std::shared_ptr<T>> take_if(F wanted) {
        const std::lock_guard lock(mutex_);
        std::vector<std::shared_ptr<T>> taken;
        for (auto entry = objects_.begin(); entry != objects_.end();) {
            if (wanted(*entry->second)) {
                taken.push_back(std::move(entry->second));
                entry = objects_.erase(entry);
            } else {
                ++entry;
            }
        }
        return taken;
    }
    std::vector<std::shared_ptr<T>> all() const {
        const std::lock_guard lock(mutex_);
        std::vector<std::shared_ptr<T>> objects;
        for (const auto &[handle, object] : objects_) objects.push_back(object);
        return objects;
    }
    int64_t size() const {
        const std::lock_guard lock(mutex_);
        return static_cast<int64_t>(objects_.size());
    }

   private:
    static constexpr uintptr_t kBase = 0xe5e0000000000000;
    // Common to all types of this library, so that an event's handle is never a stream's.
    static std::atomic<uintptr_t> &count();

    mutable std::mutex mutex_;
    std::map<void *, std::shared_ptr<T>> objects_;
};

MOCK_SHARED std::atomic<uintptr_t> &handle_count();

template <typename T>
std::atomic<uintptr_t> &Handles<T>::count() {
    return handle_count();
}

class Runtime {
   public:
    static Runtime &instance();

    std::atomic<bool> initialized{false};
    Handles<Context> contexts;
    Handles<Stream> streams;
    Handles<Event> events;

    static uint32_t device_count();
    static const char *soc_name();
    // A2 needs peer access to be switched on before devices copy to each other.
    static bool needs_peer_access();

    Status set_device(int32_t device);
    Status reset_device(int32_t device, bool force);
    Status create_context(int32_t device, void **handle);
    Status destroy_context(void *handle);
    Status enter_context(void *handle);
    void *current_handle() const;

    // Context of the calling thread; null and `status` set if it has none.
    std::shared_ptr<Context> current(Status &status) const;
    std::shared_ptr<Stream> default_stream(const std::shared_ptr<Context> &context);

    void enable_peer(int32_t device, int32_t peer);
    bool peers(int32_t device, int32_t peer) const;

   private:
    struct Primary {
        void *handle = nullptr;
        int references = 0;
    };
    void destroy(const std::shared_ptr<Context> &context);

    mutable std::mutex mutex_;
    std::map<int32_t, Primary> primaries_;
    std::map<Context *, std::shared_ptr<Stream>> default_streams_;
    std::map<std::pair<int32_t, int32_t>, bool> peers_;
};

// Kept by libhccl.
MOCK_SHARED std::atomic<int64_t> &live_communicators();

// Refuses what needs a device when there is none; gives the current device otherwise.
MOCK_SHARED Status current_device(int32_t &device);

}  // namespace mock
