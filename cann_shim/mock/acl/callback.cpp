#include "callback.hpp"

#include <pthread.h>

#include <chrono>
#include <map>

namespace mock {
namespace {

using namespace std::chrono_literals;

struct Report {
    CannCallback function;
    void *argument;
    std::shared_ptr<std::atomic<bool>> done;
};

struct Reports {
    std::mutex mutex;
    std::condition_variable changed;
    std::map<const Stream *, uint64_t> subscribers;
    std::map<uint64_t, std::deque<Report>> queues;
};

Reports &reports() {
    static Reports *instance = new Reports;
    return *instance;
}

}  // namespace

Status subscribe_callbacks(uint64_t thread, const Stream *stream) {
    auto &state = reports();
    const std::lock_guard lock(state.mutex);
    if (!state.subscribers.emplace(stream, thread).second) {
        return failure(CANN_RT_PARAM_INVALID, "the stream has a subscriber already");
    }
    return {};
}

Status unsubscribe_callbacks(uint64_t thread, const Stream *stream) {
    auto &state = reports();
    const std::lock_guard lock(state.mutex);
    const auto entry = state.subscribers.find(stream);
    if (entry == state.subscribers.end() || entry->second != thread) {
        return failure(CANN_RT_PARAM_INVALID, "the thread has not subscribed to the stream");
    }
    state.subscribers.erase(entry);
    return {};
}

void forget_callbacks(const Stream *stream) {
    auto &state = reports();
    const std::lock_guard lock(state.mutex);
    state.subscribers.erase(stream);
}

Status launch_callback(CannCallback function, void *argument, bool block, Stream &stream, const Fault &fault) {
    auto &state = reports();
    uint64_t thread = 0;
    {
        const std::lock_guard lock(state.mutex);
        const auto entry = state.subscribers.find(&stream);
        if (entry == state.subscribers.end()) {
            return failure(CANN_RT_PARAM_INVALID, "no thread has subscribed to the stream (aclrtSubscribeReport)");
        }
        thread = entry->second;
    }
    Task task;
    task.fault = fault;
    task.run = [=, &state](const Cancel &cancel) {
        auto done = std::make_shared<std::atomic<bool>>(false);
        std::unique_lock lock(state.mutex);
        state.queues[thread].push_back({function, argument, done});
        state.changed.notify_all();
        while (block && !*done && !cancel()) state.changed.wait_for(lock, 2ms);
        return Status{};
    };
    return stream.push(std::move(task));
}

Status process_callback(int32_t timeout_ms) {
    auto &state = reports();
    const auto self = static_cast<uint64_t>(pthread_self());
    std::unique_lock lock(state.mutex);
    auto &queue = state.queues[self];
    const auto some = [&] { return !queue.empty(); };
    if (timeout_ms < 0) {
        state.changed.wait(lock, some);
    } else if (!state.changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), some)) {
        return failure(CANN_RT_WAIT_TIMEOUT, "no callback in %d ms", timeout_ms);
    }
    const Report report = std::move(queue.front());
    queue.pop_front();
    lock.unlock();
    report.function(report.argument);
    lock.lock();
    *report.done = true;
    state.changed.notify_all();
    return {};
}

}  // namespace mock
