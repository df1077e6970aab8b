// A set of messages between this rank and others, all under way at the same time.
//
// Every collective is one or more exchanges. Messages between two ranks are matched in order; both sides must agree on
// the tag and the length, and a message that nobody takes or sends lets the exchange time out.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "segment.hpp"
#include "tracker.hpp"

namespace mock::hccl {

struct Message {
    // Device memory of the program, or with `internal` memory of the mock.
    void *address = nullptr;
    uint64_t bytes = 0;
    bool internal = false;
};

class Exchange {
   public:
    struct Limits {
        std::chrono::steady_clock::time_point end;
        // Bytes copied between two looks at the other messages.
        uint64_t chunk;
        std::function<bool()> cancelled;
    };

    Exchange(Segment &segment, int32_t device, uint64_t tag);

    // Messages without bytes are sent too.
    void send(uint32_t to, Message message) { outgoing_[to].queue.push_back(message); }
    void receive(uint32_t from, Message message) { incoming_[from].queue.push_back(message); }

    Result run(const Limits &limits);

   private:
    struct Direction {
        std::deque<Message> queue;  // the front is the one under way
        bool active = false;
        uint64_t moved = 0;
    };

    Result step_send(uint32_t rank, Direction &direction, bool &progress);
    Result step_receive(uint32_t rank, Direction &direction, bool &progress);
    Result step_self(bool &progress);
    Result post(uint32_t rank, const Message &message);
    Result feed_bounce(Channel &channel, uint32_t rank, Direction &direction, bool &progress);
    Result take(Channel &channel, uint32_t rank, Direction &direction, uint64_t &bytes);
    Result check_peers() const;
    std::string pending() const;
    bool finished() const;
    void withdraw();
    Access open(const Message &message, uint64_t offset, uint64_t bytes) const;

    Segment &segment_;
    const int32_t device_;
    const uint64_t tag_;
    uint64_t chunk_ = 0;
    std::vector<Direction> outgoing_, incoming_;
};

}  // namespace mock::hccl
