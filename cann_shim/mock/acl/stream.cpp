#include "stream.hpp"

#include <algorithm>
#include <chrono>
#include <csignal>

#include "runtime.hpp"

namespace mock {

// A worker that fell asleep between two small tasks would take longer to wake up than they do.
static constexpr std::chrono::microseconds kLinger{100};

Stream::Stream(std::shared_ptr<Context> context) : context_(std::move(context)), worker_([this] { work(); }) {}

Stream::~Stream() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
        work_.notify_all();
    }
    worker_.join();
}

int32_t Stream::device() const { return context_->device; }

Status Stream::push(Task task) {
    const std::lock_guard lock(mutex_);
    if (aborting_ || stopping_) return failure(CANN_RT_STREAM_ABORT, "the stream is being aborted");
    queue_.push_back(std::move(task));
    ++pushed_;
    work_.notify_one();
    return {};
}

Status Stream::push_and_wait(Task task) {
    std::unique_lock lock(mutex_);
    if (aborting_ || stopping_) return failure(CANN_RT_STREAM_ABORT, "the stream is being aborted");
    queue_.push_back(std::move(task));
    work_.notify_one();
    return wait_for(lock, ++pushed_, -1);
}

Status Stream::synchronize(int32_t timeout_ms) {
    std::unique_lock lock(mutex_);
    return wait_for(lock, pushed_, timeout_ms);
}

Status Stream::wait_for(std::unique_lock<std::mutex> &lock, uint64_t sequence, int32_t timeout_ms) {
    const uint64_t aborts = aborts_;
    const auto over = [&] {
        if (completed_ >= sequence || aborts_ != aborts) return true;
        awaited_ = std::min(awaited_, sequence);
        return false;
    };
    if (timeout_ms < 0) {
        done_.wait(lock, over);
    } else if (!done_.wait_for(lock, std::chrono::milliseconds(timeout_ms), over)) {
        return failure(CANN_RT_STREAM_SYNC_TIMEOUT, "the stream is not done after %d ms", timeout_ms);
    }
    if (aborts_ != aborts) return failure(CANN_RT_STREAM_ABORT, "the stream was aborted");
    return error_;
}

bool Stream::idle() const {
    const std::lock_guard lock(mutex_);
    return completed_ == pushed_;
}

Status Stream::error() const {
    const std::lock_guard lock(mutex_);
    return error_;
}

void Stream::clear(std::unique_lock<std::mutex> &lock) {
    aborting_ = true;
    ++aborts_;
    cancelled_ = true;
    auto dropped = std::move(queue_);
    queue_.clear();
    completed_ += dropped.size();
    done_.notify_all();
    lock.unlock();
    for (auto &task : dropped) task.drop();
    lock.lock();
    done_.wait(lock, [&] {
        if (running_) awaited_ = 0;
        return !running_;
    });
    cancelled_ = false;
    error_ = {};
    aborting_ = false;
}

void Stream::abort() {
    std::unique_lock lock(mutex_);
    clear(lock);
}

void Stream::stop() {
    std::unique_lock lock(mutex_);
    clear(lock);
    stopping_ = true;
}

Status Stream::run(Task &task) {
    const Cancel cancel(cancelled_);
    switch (task.fault.action) {
        case SEQSHIFT_MOCK_STALL:
            stall(task.fault, Cancel::ask, &cancel);
            if (cancel()) {
                task.drop();
                return {};
            }
            break;
        case SEQSHIFT_MOCK_FAIL_TASK:
            task.drop();
            return failure(static_cast<int32_t>(task.fault.value), "injected by a fault rule");
        case SEQSHIFT_MOCK_KILL_IN_TASK:
            std::raise(SIGKILL);
            break;
        default:
            break;
    }
    return task.run(cancel);
}

void Stream::await_work(std::unique_lock<std::mutex> &lock) {
    if (queue_.empty() && !stopping_) {
        const uint64_t before = pushed_;
        const auto until = std::chrono::steady_clock::now() + kLinger;
        lock.unlock();
        while (pushed_ == before && std::chrono::steady_clock::now() < until) std::this_thread::yield();
        lock.lock();
    }
    work_.wait(lock, [&] { return !queue_.empty() || stopping_; });
}

void Stream::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        await_work(lock);
        if (queue_.empty()) return;
        Task task = std::move(queue_.front());
        queue_.pop_front();
        running_ = true;
        lock.unlock();
        Status status = run(task);
        task = {};  // what it holds is let go before anyone is told that it is done
        lock.lock();
        running_ = false;
        ++completed_;
        if (error_.ok() && !status.ok() && !aborting_) error_ = std::move(status);
        // Waking whoever waits for a later task would cost it, and this worker, more than a small task takes.
        if (completed_ >= awaited_) {
            awaited_ = kNobody;
            done_.notify_all();
        }
    }
}

}  // namespace mock
