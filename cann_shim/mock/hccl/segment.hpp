// The shared memory of one communicator, and how its ranks find it.
//
// It is a memfd of the process that made the root info; the others open it through /proc/<pid>/fd/<fd>. Nothing ever
// has a name in /dev/shm, so nothing can be left behind there, whoever dies when.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "result.hpp"

namespace mock::hccl {

constexpr uint32_t kMaxRanks = 64;
// Of one direction between two ranks, for memory that the other rank cannot map. Several parts (exchange.cpp), so that
// a side whose processor is taken away does not stop the other one at once.
constexpr uint64_t kBounceBytes = 2 << 20;

enum SlotState : uint32_t { kEmpty = 0, kJoined = 1, kLeft = 2 };

struct alignas(64) Slot {
    std::atomic<int32_t> pid;
    std::atomic<uint32_t> state;
    std::atomic<uint32_t> doorbell;  // a futex; rung when something may have changed for this rank
    std::atomic<int32_t> arena;      // descriptor of the device memory file in that process
};

// Where a message is. The sender moves empty -> posted, and done or refused -> empty; the receiver the rest. A sender
// that gives up takes a posted message back.
enum ChannelState : uint32_t { kIdle = 0, kPosted = 1, kTaken = 2, kDone = 3, kRefused = 4 };

enum Mode : uint32_t {
    kLocal = 0,   // same process: `address`
    kArena = 1,   // `offset` in the sender's device memory file, in the block [block, block + block_bytes)
    kBounce = 2,  // the sender copies to the bounce buffer, the receiver from it
};

struct alignas(64) Channel {
    std::atomic<uint32_t> state;
    std::atomic<uint32_t> mode;
    uint64_t tag;
    uint64_t bytes;
    uint64_t address;
    uint64_t offset;
    uint64_t block;
    uint64_t block_bytes;
    alignas(64) std::atomic<uint64_t> produced;
    alignas(64) std::atomic<uint64_t> consumed;
    alignas(64) char bounce[kBounceBytes];
};

struct Header {
    uint64_t magic;
    uint8_t nonce[16];
    std::atomic<uint32_t> ranks;
    std::atomic<uint32_t> joined;  // a futex
    std::atomic<uint64_t> buffer_bytes;
    Slot slots[kMaxRanks];
};

// Waits until `word` is no longer `value`, or for `limit`; rings it.
void futex_wait(std::atomic<uint32_t> &word, uint32_t value, std::chrono::milliseconds limit);
void futex_wake(std::atomic<uint32_t> &word);

// Another process of the communicator.
class Peer {
   public:
    Peer() = default;
    Peer(Peer &&other) noexcept;
    Peer &operator=(Peer &&) = delete;
    ~Peer();

    void open(int32_t pid);
    bool dead() const;

   private:
    int pidfd_ = -1;
    bool gone_ = false;
};

class Segment {
   public:
    static Result make_root(CannHcclRoot &root);
    // Takes the place of `rank` and waits for all others.
    static Result join(const CannHcclRoot &root, uint32_t ranks, uint32_t rank, uint64_t buffer_bytes,
                       std::unique_ptr<Segment> &segment);
    ~Segment();
    Segment(const Segment &) = delete;
    Segment &operator=(const Segment &) = delete;

    uint32_t rank() const { return rank_; }
    uint32_t ranks() const { return ranks_; }
    const uint8_t *nonce() const { return header_->nonce; }
    Slot &slot(uint32_t rank) const { return header_->slots[rank]; }
    Channel &channel(uint32_t from, uint32_t to) const { return channels_[uint64_t{from} * ranks_ + to]; }
    bool is_local(uint32_t rank) const;

    void ring(uint32_t rank) const;
    // Whether the rank will never do anything again in this communicator.
    bool is_gone(uint32_t rank, std::string &why) const;
    void leave();

    // Address at which `offset` of the rank's device memory file can be read; the block around it is mapped once.
    // Null if that process does not let us.
    const char *map_arena(uint32_t rank, uint64_t block, uint64_t block_bytes, uint64_t offset);

   private:
    struct Mapping {
        uint32_t rank;
        uint64_t block;
        uint64_t bytes;
        char *address;
    };

    Segment(Header *header, Channel *channels, uint32_t ranks, uint32_t rank)
        : header_(header), channels_(channels), ranks_(ranks), rank_(rank), peers_(ranks), arenas_(ranks, -1) {}
    Result wait_for_all();

    Header *const header_;
    Channel *const channels_;
    const uint32_t ranks_, rank_;
    std::vector<Peer> peers_;
    std::vector<int> arenas_;
    std::vector<Mapping> mappings_;
};

}  // namespace mock::hccl
