#include "event.hpp"

namespace mock {
namespace {

using namespace std::chrono_literals;

// How often a waiting stream looks whether it has been aborted.
constexpr auto kCancelInterval = 2ms;

}  // namespace

void Event::finish(uint64_t generation, Status status) {
    const std::lock_guard lock(mutex_);
    if (generation <= finished_) return;
    finished_ = generation;
    status_ = std::move(status);
    when_ = std::chrono::steady_clock::now();
    changed_.notify_all();
}

Status Event::record(const std::shared_ptr<Event> &event, const std::shared_ptr<Stream> &stream, const Fault &fault) {
    const std::unique_lock lock(event->mutex_);
    const uint64_t generation = event->recorded_ + 1;
    Task task;
    task.fault = fault;
    // The stream outlives its tasks, which a shared pointer held by the task itself would turn round.
    task.run = [event, generation, raw = stream.get()](const Cancel &) {
        event->finish(generation, raw->error());
        return Status{};
    };
    Status status = stream->push(std::move(task));
    if (status.ok()) event->recorded_ = generation;
    return status;
}

Status Event::reset(const std::shared_ptr<Event> &event, const std::shared_ptr<Stream> &stream, const Fault &fault) {
    const std::unique_lock lock(event->mutex_);
    Task task;
    task.fault = fault;
    task.run = [](const Cancel &) { return Status{}; };
    Status status = stream->push(std::move(task));
    if (status.ok()) event->cleared_ = event->recorded_;
    return status;
}

Status Event::wait_in(const std::shared_ptr<Event> &event, const std::shared_ptr<Stream> &stream, const Fault &fault,
                      int64_t timeout_ms) {
    const std::unique_lock lock(event->mutex_);
    const bool pending = event->recorded_ > event->cleared_;
    if (!pending && event->ex_) return {};
    const uint64_t target = event->recorded_ + (pending ? 0 : 1);
    Task task;
    task.fault = fault;
    task.drop = [event] {
        const std::lock_guard guard(event->mutex_);
        --event->waits_;
    };
    task.run = [event, target, timeout_ms](const Cancel &cancel) {
        std::unique_lock guard(event->mutex_);
        const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
        Status status;
        while (event->finished_ < target && !cancel()) {
            if (timeout_ms > 0 && std::chrono::steady_clock::now() >= end) {
                status = failure(CANN_RT_WAIT_TIMEOUT, "the event was not reached in %lld ms",
                                 static_cast<long long>(timeout_ms));
                break;
            }
            event->changed_.wait_for(guard, kCancelInterval);
        }
        --event->waits_;
        return status;
    };
    Status status = stream->push(std::move(task));
    if (status.ok()) ++event->waits_;
    return status;
}

bool Event::complete() const {
    const std::lock_guard lock(mutex_);
    return reached();
}

bool Event::waits_complete() const {
    const std::lock_guard lock(mutex_);
    return waits_ == 0;
}

Status Event::synchronize(int32_t timeout_ms) {
    std::unique_lock lock(mutex_);
    if (recorded_ == cleared_) return failure(CANN_RT_PARAM_INVALID, "the event was never recorded");
    const auto over = [&, target = recorded_] { return finished_ >= target; };
    if (timeout_ms < 0) {
        changed_.wait(lock, over);
    } else if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), over)) {
        return failure(CANN_RT_EVENT_SYNC_TIMEOUT, "the event was not reached in %d ms", timeout_ms);
    }
    return status_;
}

bool Event::time(std::chrono::steady_clock::time_point &when) const {
    const std::lock_guard lock(mutex_);
    when = when_;
    return reached();
}

}  // namespace mock
