#include "segment.hpp"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "tracker.hpp"

namespace mock::hccl {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using Nonce = std::array<uint8_t, 16>;

constexpr uint64_t kMagic = 0x4c4343484b434f4d;
constexpr uint64_t kHeaderBytes = (sizeof(Header) + 4095) / 4096 * 4096;
constexpr uint64_t kDefaultConnectMs = 120'000;
// How often a waiting rank looks whether the others still live.
constexpr auto kLiveness = 20ms;
constexpr size_t kMaxMappings = 64;

struct RootInfo {
    uint64_t magic;
    int32_t pid;
    int32_t fd;
    Nonce nonce;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// Descriptors of root infos made by this process, kept open until the communicator is complete.
struct Roots {
    std::mutex mutex;
    std::map<Nonce, int> open;
};

Roots &roots() {
    static Roots *instance = new Roots;
    return *instance;
}

void close_root(const Nonce &nonce) {
    const std::lock_guard lock(roots().mutex);
    if (const auto entry = roots().open.find(nonce); entry != roots().open.end()) {
        close(entry->second);
        roots().open.erase(entry);
    }
}

uint64_t file_bytes(uint64_t ranks) { return kHeaderBytes + ranks * ranks * sizeof(Channel); }

int open_of(int32_t pid, int32_t fd, int flags) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    return open(path, flags | O_CLOEXEC);
}

template <typename T>
bool agree(std::atomic<T> &field, T value) {
    T expected = 0;
    return field.compare_exchange_strong(expected, value) || expected == value;
}

}  // namespace

void futex_wait(std::atomic<uint32_t> &word, uint32_t value, std::chrono::milliseconds limit) {
    const timespec time{limit.count() / 1000, limit.count() % 1000 * 1'000'000};
    syscall(SYS_futex, &word, FUTEX_WAIT, value, &time, nullptr, 0);
}

void futex_wake(std::atomic<uint32_t> &word) { syscall(SYS_futex, &word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0); }

Peer::Peer(Peer &&other) noexcept : pidfd_(std::exchange(other.pidfd_, -1)), gone_(other.gone_) {}

Peer::~Peer() {
    if (pidfd_ >= 0) close(pidfd_);
}

void Peer::open(int32_t pid) {
    if (pidfd_ >= 0 || gone_ || pid == getpid()) return;
    pidfd_ = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    gone_ = pidfd_ < 0 && errno == ESRCH;
}

bool Peer::dead() const {
    if (gone_ || pidfd_ < 0) return gone_;
    pollfd poller{pidfd_, POLLIN, 0};
    return poll(&poller, 1, 0) > 0;
}

Result Segment::make_root(CannHcclRoot &root) {
    RootInfo info{.magic = kMagic, .pid = getpid(), .fd = -1, .nonce = {}};
    info.fd = memfd_create("seqshift-mock-hccl", MFD_CLOEXEC);
    // Sparse: pages that nobody touches cost nothing.
    if (info.fd < 0 || ftruncate(info.fd, static_cast<off_t>(file_bytes(kMaxRanks))) != 0 ||
        getrandom(info.nonce.data(), info.nonce.size(), 0) != static_cast<ssize_t>(info.nonce.size())) {
        return error(CANN_HCCL_SYSCALL, "cannot make shared memory: %s", std::strerror(errno));
    }
    Header head{};
    head.magic = kMagic;
    std::memcpy(head.nonce, info.nonce.data(), sizeof head.nonce);
    if (pwrite(info.fd, &head, offsetof(Header, ranks), 0) != static_cast<ssize_t>(offsetof(Header, ranks))) {
        return error(CANN_HCCL_SYSCALL, "cannot write shared memory: %s", std::strerror(errno));
    }
    std::memset(&root, 0, sizeof root);
    std::memcpy(&root, &info, sizeof info);
    const std::lock_guard lock(roots().mutex);
    roots().open.emplace(info.nonce, info.fd);
    return {};
}

Result Segment::join(const CannHcclRoot &root, uint32_t ranks, uint32_t rank, uint64_t buffer_bytes,
                     std::unique_ptr<Segment> &segment) {
    RootInfo info;
    std::memcpy(&info, &root, sizeof info);
    if (info.magic != kMagic) return error(CANN_HCCL_PARA, "the root info was not made by HcclGetRootInfo");
    if (ranks == 0 || ranks > kMaxRanks || rank >= ranks) {
        return error(CANN_HCCL_PARA, "rank %u of %u; the mock has room for %u", rank, ranks, kMaxRanks);
    }
    const int fd = open_of(info.pid, info.fd, O_RDWR);
    if (fd < 0) {
        return error(CANN_HCCL_TCP_CONNECT, "the root, process %d, cannot be reached: %s", info.pid,
                     std::strerror(errno));
    }
    Nonce nonce{};
    const bool same = pread(fd, nonce.data(), nonce.size(), offsetof(Header, nonce)) == static_cast<ssize_t>(nonce.size()) &&
                      nonce == info.nonce;
    const uint64_t bytes = file_bytes(ranks);
    void *memory = same ? mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    close(fd);
    if (!same) return error(CANN_HCCL_TCP_CONNECT, "the root info is of a communicator that is complete or gone");
    if (memory == MAP_FAILED) return error(CANN_HCCL_MEMORY, "cannot map shared memory: %s", std::strerror(errno));
    auto *header = static_cast<Header *>(memory);
    auto *channels = reinterpret_cast<Channel *>(static_cast<char *>(memory) + kHeaderBytes);
    auto &slot = header->slots[rank];
    int32_t nobody = 0;
    Result result;
    if (!agree(header->ranks, ranks)) {
        result = error(CANN_HCCL_PARA, "the ranks disagree: %u ranks here, %u elsewhere", ranks, header->ranks.load());
    } else if (!agree(header->buffer_bytes, buffer_bytes)) {
        result = error(CANN_HCCL_PARA, "the ranks disagree on the buffer size");
    } else if (!slot.pid.compare_exchange_strong(nobody, getpid())) {
        result = error(CANN_HCCL_PARA, "rank %u is taken by process %d", rank, nobody);
    }
    if (!result.ok()) {
        munmap(memory, bytes);
        return result;
    }
    std::unique_ptr<Segment> made(new Segment(header, channels, ranks, rank));
    slot.arena = tracker().arena();
    slot.state = kJoined;
    ++header->joined;
    futex_wake(header->joined);
    result = made->wait_for_all();
    close_root(info.nonce);
    if (result.ok()) segment = std::move(made);
    return result;
}

Result Segment::wait_for_all() {
    const auto limit = std::chrono::milliseconds(
        setting(control().hcclConnectTimeoutMs, "HCCL_CONNECT_TIMEOUT", 1000, kDefaultConnectMs));
    const auto end = Clock::now() + limit;
    for (uint32_t seen = header_->joined; seen < ranks_; seen = header_->joined) {
        futex_wait(header_->joined, seen, kLiveness);
        for (uint32_t rank = 0; rank < ranks_; ++rank) {
            std::string why;
            if (slot(rank).state == kEmpty) continue;
            peers_[rank].open(slot(rank).pid);
            // A rank may be done with a complete communicator before another one has looked.
            if (is_gone(rank, why) && header_->joined < ranks_) {
                return error(CANN_HCCL_REMOTE, "rank %u %s", rank, why.c_str());
            }
        }
        if (Clock::now() >= end) {
            return error(CANN_HCCL_TIMEOUT, "%u of %u ranks came in %lld ms", seen, ranks_,
                         static_cast<long long>(limit.count()));
        }
    }
    for (uint32_t rank = 0; rank < ranks_; ++rank) peers_[rank].open(slot(rank).pid);
    return {};
}

Segment::~Segment() {
    leave();
    for (const auto &mapping : mappings_) munmap(mapping.address, mapping.bytes);
    for (const int arena : arenas_) {
        if (arena >= 0) close(arena);
    }
    munmap(header_, file_bytes(ranks_));
}

bool Segment::is_local(uint32_t rank) const { return slot(rank).pid == getpid(); }

void Segment::ring(uint32_t rank) const {
    auto &doorbell = slot(rank).doorbell;
    ++doorbell;
    futex_wake(doorbell);
}

bool Segment::is_gone(uint32_t rank, std::string &why) const {
    if (rank == rank_) return false;
    if (slot(rank).state == kLeft) {
        why = "has left the communicator";
        return true;
    }
    if (!peers_[rank].dead()) return false;
    why = "is dead (process " + std::to_string(slot(rank).pid) + ")";
    return true;
}

void Segment::leave() {
    if (slot(rank_).state.exchange(kLeft) == kLeft) return;
    for (uint32_t rank = 0; rank < ranks_; ++rank) ring(rank);
}

const char *Segment::map_arena(uint32_t rank, uint64_t block, uint64_t block_bytes, uint64_t offset) {
    static const bool forced = [] {
        const char *text = std::getenv("SEQSHIFT_MOCK_TRANSPORT");
        return text != nullptr && std::string_view(text) == "bounce";
    }();
    if (forced) return nullptr;
    for (const auto &mapping : mappings_) {
        const bool inside = mapping.rank == rank && mapping.block == block && mapping.bytes == block_bytes;
        if (inside) return mapping.address + (offset - block);
    }
    if (arenas_[rank] < 0) arenas_[rank] = open_of(slot(rank).pid, slot(rank).arena, O_RDONLY);
    if (arenas_[rank] < 0) return nullptr;
    void *address = mmap(nullptr, block_bytes, PROT_READ, MAP_SHARED, arenas_[rank], static_cast<off_t>(block));
    if (address == MAP_FAILED) return nullptr;
    if (mappings_.size() == kMaxMappings) {
        munmap(mappings_.front().address, mappings_.front().bytes);
        mappings_.erase(mappings_.begin());
    }
    mappings_.push_back({rank, block, block_bytes, static_cast<char *>(address)});
    return mappings_.back().address + (offset - block);
}

}  // namespace mock::hccl
