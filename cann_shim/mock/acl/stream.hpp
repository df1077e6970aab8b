// A stream: a first-in first-out queue of tasks with a worker thread of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "call.hpp"

namespace mock {

struct Context;

// Asked by a task that waits for something: must it stop?
class Cancel {
   public:
    explicit Cancel(const std::atomic<bool> &flag) : flag_(&flag) {}
    bool operator()() const { return flag_->load(); }
    static bool ask(const void *cancel) { return (*static_cast<const Cancel *>(cancel))(); }

   private:
    const std::atomic<bool> *flag_;
};

struct Task {
    std::function<Status(const Cancel &)> run;
    // Called instead of run when the stream is aborted or destroyed first.
    std::function<void()> drop = [] {};
    // STALL, FAIL_TASK and KILL_IN_TASK are applied by the stream, the rest by run.
    Fault fault = {};
};

// After a task has failed the following ones still run, as CANN does by default; the first error is kept, and every
// synchronization reports it, until the stream is aborted.
class MOCK_SHARED Stream {
   public:
    explicit Stream(std::shared_ptr<Context> context);
    // The queue must be empty or stop() have been called.
    ~Stream();
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;

    Context &context() const { return *context_; }
    int32_t device() const;

    // Appends a task; refused while the stream is being aborted.
    Status push(Task task);
    // Appends a task and waits until it is done; its own error, if any, is that of the stream.
    Status push_and_wait(Task task);

    // Waits until everything pushed so far is done. Negative: for ever. 107023 if the stream is aborted meanwhile.
    Status synchronize(int32_t timeout_ms);
    // Whether nothing is left to do.
    bool idle() const;
    Status error() const;

    // Stops the running task, drops the others, forgets the error. The stream can be used again.
    void abort();
    // As abort, for good.
    void stop();

    bool is_worker() const { return std::this_thread::get_id() == worker_.get_id(); }

   private:
    void work();
    void await_work(std::unique_lock<std::mutex> &lock);
    Status run(Task &task);
    Status wait_for(std::unique_lock<std::mutex> &lock, uint64_t sequence, int32_t timeout_ms);
    void clear(std::unique_lock<std::mutex> &lock);

    const std::shared_ptr<Context> context_;
    mutable std::mutex mutex_;
    std::condition_variable work_, done_;
    std::deque<Task> queue_;
    static constexpr uint64_t kNobody = ~uint64_t{0};
    std::atomic<uint64_t> pushed_{0};  // changed under the mutex
    uint64_t completed_ = 0, aborts_ = 0;
    uint64_t awaited_ = kNobody;  // the first task that somebody waits for
    bool running_ = false, aborting_ = false, stopping_ = false;
    std::atomic<bool> cancelled_{false};
    Status error_;
    std::thread worker_;
};

// The live stream behind a handle, which the current context must own; null is the default stream of the context.
// Null and `status` set if there is none.
MOCK_SHARED std::shared_ptr<Stream> find_stream(void *handle, Status &status);

}  // namespace mock
