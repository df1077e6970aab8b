#include "exchange.hpp"

#include <algorithm>
#include <cstring>

#include "copy_past_cache.hpp"

namespace mock::hccl {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// How long to sleep before looking whether the others still live and the stream was not aborted.
constexpr auto kNap = 5ms;

// Bytes that one side copies into or out of the bounce buffer before the other one gets to know: small enough to stay
// in a processor's cache, large enough that waking the other side costs less than the copy.
constexpr uint64_t kBouncePart = 256 << 10;

Result bad_memory(const Status &status) { return error(CANN_HCCL_MEMORY, "%s", status.text.c_str()); }

}  // namespace

Exchange::Exchange(Segment &segment, int32_t device, uint64_t tag)
    : segment_(segment), device_(device), tag_(tag), outgoing_(segment.ranks()), incoming_(segment.ranks()) {}

Access Exchange::open(const Message &message, uint64_t offset, uint64_t bytes) const {
    return tracker().access_device(static_cast<char *>(message.address) + offset, bytes, device_);
}

Result Exchange::post(uint32_t rank, const Message &message) {
    Channel &channel = segment_.channel(segment_.rank(), rank);
    channel.mode = segment_.is_local(rank) ? kLocal : kBounce;
    channel.tag = tag_;
    channel.bytes = message.bytes;
    channel.address = reinterpret_cast<uint64_t>(message.address);
    channel.produced = 0;
    channel.consumed = 0;
    // Memory of the mock itself reaches another thread of this process like that of the program: through a copy.
    if (message.internal) channel.mode = kBounce;
    if (message.bytes > 0 && !message.internal) {
        const Access access = open(message, 0, message.bytes);
        if (!access.ok()) return bad_memory(access.status());
        const Block &block = *access.block();
        if (channel.mode == kBounce && block.kind == Kind::device) {
            channel.mode = kArena;
            channel.block = tracker().arena_offset(block);
            channel.block_bytes = block.reserved;
            channel.offset = channel.block + (reinterpret_cast<uintptr_t>(message.address) - block.base);
        }
    }
    channel.state.store(kPosted, std::memory_order_release);
    segment_.ring(rank);
    return {};
}

Result Exchange::feed_bounce(Channel &channel, uint32_t rank, Direction &direction, bool &progress) {
    const Message &message = direction.queue.front();
    const uint64_t used = direction.moved - channel.consumed.load(std::memory_order_acquire);
    const uint64_t at = direction.moved % kBounceBytes;
    const uint64_t bytes = std::min({message.bytes - direction.moved, kBounceBytes - used, kBounceBytes - at,
                                     kBouncePart, chunk_});
    if (bytes == 0) return {};
    const char *source = static_cast<const char *>(message.address) + direction.moved;
    Access access;
    if (!message.internal) {
        access = open(message, direction.moved, bytes);
        if (!access.ok()) return bad_memory(access.status());
        source = access.data();
    }
    std::memcpy(channel.bounce + at, source, bytes);
    direction.moved += bytes;
    channel.produced.store(direction.moved, std::memory_order_release);
    segment_.ring(rank);
    progress = true;
    return {};
}

Result Exchange::step_send(uint32_t rank, Direction &direction, bool &progress) {
    if (direction.queue.empty()) return {};
    Channel &channel = segment_.channel(segment_.rank(), rank);
    if (!direction.active) {
        direction.active = true;
        direction.moved = 0;
        progress = true;
        return post(rank, direction.queue.front());
    }
    switch (channel.state.load(std::memory_order_acquire)) {
        case kTaken:
            return channel.mode == kBounce ? feed_bounce(channel, rank, direction, progress) : Result{};
        case kRefused:
            channel.state = kIdle;
            direction.active = false;
            return error(CANN_HCCL_PARA, "rank %u does not expect the %lu bytes sent to it", rank, channel.bytes);
        case kDone: {
            const Message &message = direction.queue.front();
            if (message.bytes > 0 && !message.internal) {
                const Access access = open(message, 0, message.bytes);
                if (!access.ok()) return bad_memory(access.status());
            }
            channel.state = kIdle;
            direction.active = false;
            direction.queue.pop_front();
            progress = true;
            return {};
        }
        default:
            return {};
    }
}

// Copies the next part of a message that was taken; `bytes` is 0 if there is nothing to copy yet.
Result Exchange::take(Channel &channel, uint32_t rank, Direction &direction, uint64_t &bytes) {
    const Message &message = direction.queue.front();
    bytes = std::min(message.bytes - direction.moved, chunk_);
    const uint64_t at = direction.moved % kBounceBytes;
    const char *source = nullptr;
    Access from;
    if (channel.mode == kArena) {
        source = segment_.map_arena(rank, channel.block, channel.block_bytes, channel.offset + direction.moved);
        if (source == nullptr) {
            channel.mode = kBounce;
            segment_.ring(rank);
        }
    }
    if (channel.mode == kLocal) {
        from = tracker().access(reinterpret_cast<const char *>(channel.address) + direction.moved, bytes);
        if (!from.ok()) return bad_memory(from.status());
        source = from.data();
    } else if (channel.mode == kBounce) {
        const uint64_t there = channel.produced.load(std::memory_order_acquire) - direction.moved;
        bytes = std::min({bytes, there, kBounceBytes - at, kBouncePart});
        source = channel.bounce + at;
    }
    if (bytes == 0) return {};
    char *target = static_cast<char *>(message.address) + direction.moved;
    Access to;
    if (!message.internal) {
        to = open(message, direction.moved, bytes);
        if (!to.ok()) return bad_memory(to.status());
        target = to.data();
    }
    // A program's own tensor is where the bytes stay; other memory is mostly staging, read again at once.
    if (to.block() != nullptr && to.block()->kind == Kind::registered) {
        copy_past_cache(target, source, bytes);
    } else {
        std::memcpy(target, source, bytes);
    }
    direction.moved += bytes;
    if (channel.mode == kBounce) {
        channel.consumed.store(direction.moved, std::memory_order_release);
        segment_.ring(rank);
    }
    return {};
}

Result Exchange::step_receive(uint32_t rank, Direction &direction, bool &progress) {
    if (direction.queue.empty()) return {};
    Channel &channel = segment_.channel(rank, segment_.rank());
    const Message &message = direction.queue.front();
    if (!direction.active) {
        uint32_t posted = kPosted;
        if (!channel.state.compare_exchange_strong(posted, kTaken)) return {};
        direction.active = true;
        direction.moved = 0;
        progress = true;
        if (channel.tag != tag_ || channel.bytes != message.bytes) {
            Result result = error(CANN_HCCL_PARA, "rank %u sends %lu bytes (operation %#lx), %lu bytes (operation %#lx)"
                                  " are expected", rank, channel.bytes, channel.tag, message.bytes, tag_);
            channel.state.store(kRefused, std::memory_order_release);
            segment_.ring(rank);
            return result;
        }
        // A sender that has to use the bounce buffer is waiting for this.
        segment_.ring(rank);
    }
    if (direction.moved < message.bytes) {
        uint64_t bytes = 0;
        if (auto result = take(channel, rank, direction, bytes); !result.ok()) return result;
        progress = progress || bytes > 0;
    }
    if (direction.moved == message.bytes) {
        direction.active = false;
        direction.queue.pop_front();
        progress = true;
        channel.state.store(kDone, std::memory_order_release);
        segment_.ring(rank);
    }
    return {};
}

// A rank may send to itself when it receives from itself, too.
Result Exchange::step_self(bool &progress) {
    auto &sends = outgoing_[segment_.rank()].queue;
    auto &receives = incoming_[segment_.rank()].queue;
    while (!sends.empty() && !receives.empty()) {
        const Message from = sends.front();
        const Message to = receives.front();
        if (from.bytes != to.bytes) {
            return error(CANN_HCCL_PARA, "%lu bytes sent to oneself, %lu expected", from.bytes, to.bytes);
        }
        if (from.bytes > 0) {
            const Access source = open(from, 0, from.bytes);
            const Access target = open(to, 0, to.bytes);
            if (!source.ok() || !target.ok()) return bad_memory(source.ok() ? target.status() : source.status());
            std::memmove(target.data(), source.data(), from.bytes);
        }
        sends.pop_front();
        receives.pop_front();
        progress = true;
    }
    return {};
}

bool Exchange::finished() const {
    const auto empty = [](const Direction &direction) { return direction.queue.empty(); };
    return std::all_of(outgoing_.begin(), outgoing_.end(), empty) &&
           std::all_of(incoming_.begin(), incoming_.end(), empty);
}

std::string Exchange::pending() const {
    std::string text;
    for (uint32_t rank = 0; rank < segment_.ranks(); ++rank) {
        const size_t out = outgoing_[rank].queue.size(), in = incoming_[rank].queue.size();
        if (out + in == 0) continue;
        text += (text.empty() ? "" : ", ") + std::to_string(out) + " to and " + std::to_string(in) + " from rank " +
                std::to_string(rank);
    }
    return text;
}

// A peer that is gone may have done its part before: only what cannot be finished any more is an error.
Result Exchange::check_peers() const {
    for (uint32_t rank = 0; rank < segment_.ranks(); ++rank) {
        std::string why;
        const bool waiting = !outgoing_[rank].queue.empty() || !incoming_[rank].queue.empty();
        if (!waiting || !segment_.is_gone(rank, why)) continue;
        const auto &out = outgoing_[rank];
        const bool sent = out.queue.empty() ||
                          (out.active && segment_.channel(segment_.rank(), rank).state == kDone);
        const auto &in = incoming_[rank];
        const bool here = in.queue.empty() ||
                          (!in.active && segment_.channel(rank, segment_.rank()).state == kPosted);
        if (sent && here) continue;
        return error(CANN_HCCL_REMOTE, "rank %u %s", rank, why.c_str());
    }
    return {};
}

void Exchange::withdraw() {
    for (uint32_t rank = 0; rank < segment_.ranks(); ++rank) {
        if (!outgoing_[rank].active) continue;
        uint32_t posted = kPosted;
        segment_.channel(segment_.rank(), rank).state.compare_exchange_strong(posted, kIdle);
    }
}

Result Exchange::run(const Limits &limits) {
    chunk_ = limits.chunk;
    auto &doorbell = segment_.slot(segment_.rank()).doorbell;
    Result result;
    while (result.ok()) {
        const uint32_t heard = doorbell;
        bool progress = false;
        result = step_self(progress);
        for (uint32_t i = 1; i < segment_.ranks() && result.ok(); ++i) {
            // Each rank begins with its neighbour, so that not all of them queue at the same one.
            const uint32_t rank = (segment_.rank() + i) % segment_.ranks();
            result = step_send(rank, outgoing_[rank], progress);
            if (result.ok()) result = step_receive(rank, incoming_[rank], progress);
        }
        if (!result.ok() || finished()) break;
        if (limits.cancelled()) {
            result = error(CANN_HCCL_UNAVAIL, "the operation was aborted (pending: %s)", pending().c_str());
        } else if (Clock::now() >= limits.end) {
            result = error(CANN_HCCL_TIMEOUT, "pending: %s", pending().c_str());
        } else if (!progress) {
            futex_wait(doorbell, heard, kNap);
            result = check_peers();
        }
    }
    if (!result.ok()) withdraw();
    return result;
}

}  // namespace mock::hccl
