// An event: a point in a stream that others wait for.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "stream.hpp"

namespace mock {

// Each record is a generation; whoever waits, waits for the latest generation recorded when it began.
class Event {
   public:
    // Ex: made by aclrtCreateEventExWithFlag, which has no reset and no legacy query.
    Event(uint32_t flags, bool ex) : flags_(flags), ex_(ex) {}

    bool is_ex() const { return ex_; }
    bool has_time() const { return (flags_ & CANN_EVENT_FLAG_TIME_LINE) != 0; }

    static Status record(const std::shared_ptr<Event> &event, const std::shared_ptr<Stream> &stream,
                         const Fault &fault);
    static Status reset(const std::shared_ptr<Event> &event, const std::shared_ptr<Stream> &stream,
                        const Fault &fault);
    // The stream waits. An Ex event that was never recorded is passed, another one is waited for. 0: no time limit.
    static Status wait_in(const std::shared_ptr<Event> &event, const std::shared_ptr<Stream> &stream,
                          const Fault &fault, int64_t timeout_ms);

    bool complete() const;
    bool waits_complete() const;
    // The caller waits; also gives the error of the stream that recorded it. Negative: for ever.
    Status synchronize(int32_t timeout_ms);
    // When the latest record was reached; false if it was not.
    bool time(std::chrono::steady_clock::time_point &when) const;

   private:
    bool reached() const { return recorded_ > cleared_ && finished_ >= recorded_; }
    void finish(uint64_t generation, Status status);

    const uint32_t flags_;
    const bool ex_;
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    // Generations recorded, reached, and recorded before the last reset; and waits that are still to come.
    uint64_t recorded_ = 0, finished_ = 0, cleared_ = 0, waits_ = 0;
    Status status_;
    std::chrono::steady_clock::time_point when_;
};

}  // namespace mock
