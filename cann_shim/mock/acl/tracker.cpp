#include "tracker.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace mock {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHuge = size_t{2} << 20;

size_t align_up(size_t value, size_t step) { return (value + step - 1) / step * step; }

uintptr_t integer(const void *address) { return reinterpret_cast<uintptr_t>(address); }
void *pointer(uintptr_t address) { return reinterpret_cast<void *>(address); }

[[noreturn]] void give_up(const char *what) {
    std::perror(what);
    std::abort();
}

uintptr_t reserve_window(size_t bytes) {
    void *address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) give_up("mock: cannot reserve address space");
    return integer(address);
}

const char *name_of(Kind kind) {
    switch (kind) {
        case Kind::device:
            return "device memory";
        case Kind::registered:
            return "registered device memory";
        case Kind::pinned:
            return "pinned host memory";
        default:
            return "registered host memory";
    }
}

}  // namespace

Access::Access(Access &&other) noexcept
    : status_(std::move(other.status_)),
      data_(other.data_),
      block_(std::move(other.block_)),
      tracker_(std::exchange(other.tracker_, nullptr)) {}

Access &Access::operator=(Access &&other) noexcept {
    std::swap(status_, other.status_);
    std::swap(data_, other.data_);
    std::swap(block_, other.block_);
    std::swap(tracker_, other.tracker_);
    return *this;
}

Access::~Access() {
    if (tracker_ != nullptr) tracker_->unpin(*block_);
}

Tracker::Tracker(std::function<uint64_t()> capacity, size_t window)
    : capacity_(std::move(capacity)), window_(window) {
    device_window_.base = device_window_.next = reserve_window(window_);
    host_window_.base = host_window_.next = reserve_window(window_);
    arena_ = memfd_create("seqshift-mock-device", MFD_CLOEXEC);
    if (arena_ < 0 || ftruncate(arena_, window_) != 0) give_up("mock: cannot make the device memory file");
}

Tracker::~Tracker() {
    for (const auto &[base, block] : blocks_) {
        if (!block->freed && block->kind == Kind::device) munmap(block->data, block->reserved);
    }
    munmap(pointer(device_window_.base), window_);
    munmap(pointer(host_window_.base), window_);
    close(arena_);
}

bool Tracker::in_window(uintptr_t address) const {
    return address - device_window_.base < window_ || address - host_window_.base < window_;
}

// Addresses are handed out in ascending order and come round late, so that a stale pointer is found out as long as
// possible. Returns 0 when live blocks fill the window.
uintptr_t Tracker::take_range(Window &window, size_t bytes) {
    const uintptr_t end = window.base + window_;
    uintptr_t start = window.next;
    bool wrapped = false;
    while (true) {
        if (bytes > end - start) {
            if (wrapped || bytes > window_) return 0;
            wrapped = true;
            start = window.base;
        }
        auto overlap = blocks_.upper_bound(start);
        if (overlap != blocks_.begin()) {
            const auto before = std::prev(overlap);
            if (before->second->base + before->second->reserved > start) overlap = before;
        }
        if (overlap == blocks_.end() || overlap->second->base >= start + bytes) {
            window.next = start + bytes;
            return start;
        }
        if (overlap->second->freed) {
            blocks_.erase(overlap);
        } else {
            start = overlap->second->base + overlap->second->reserved;
        }
    }
}

Status Tracker::insert_window_block(std::shared_ptr<Block> block, Window &window) {
    // One page beyond the end stays unused, so that an overrun never lands in a neighbour.
    block->reserved = align_up(block->size, kPage) + kPage;
    block->base = take_range(window, block->reserved);
    if (block->base == 0) return failure(CANN_RT_MEMORY_ALLOCATION, "no address space left for %zu bytes", block->size);
    const bool device = block->kind == Kind::device;
    void *data = device ? mmap(nullptr, block->reserved, PROT_READ | PROT_WRITE, MAP_SHARED, arena_,
                               static_cast<off_t>(arena_offset(*block)))
                        : mmap(pointer(block->base), block->reserved - kPage, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (data == MAP_FAILED) return failure(CANN_RT_MEMORY_ALLOCATION, "the host has no %zu bytes left", block->size);
    block->data = static_cast<char *>(data);
    std::memset(block->data, kPoison, block->size);
    blocks_.emplace(block->base, std::move(block));
    return {};
}

Status Tracker::take_capacity(int32_t device, uint64_t bytes) {
    uint64_t &used = used_[static_cast<size_t>(device)];
    const uint64_t total = capacity_();
    if (used > total || bytes > total - used) {
        return failure(CANN_RT_MEMORY_ALLOCATION, "device %d is out of memory: %" PRIu64 " bytes wanted, %" PRIu64
                       " of %" PRIu64 " in use", device, bytes, used, total);
    }
    used += bytes;
    return {};
}

Status Tracker::charge(int32_t device, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    return take_capacity(device, bytes);
}

void Tracker::discharge(int32_t device, uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    used_[static_cast<size_t>(device)] -= bytes;
}

Status Tracker::allocate(int32_t device, size_t size, bool pad, bool huge, void **address) {
    if (size == 0) return failure(CANN_INVALID_PARAM, "size is 0");
    if (size > window_) return failure(CANN_RT_MEMORY_ALLOCATION, "size %zu is beyond any device", size);
    const size_t padded = align_up(size, 32) + (pad ? 32 : 0);
    auto block = std::make_shared<Block>();
    block->size = size;
    block->kind = Kind::device;
    block->device = device;
    block->charged = align_up(padded, huge && padded >= kHuge ? kHuge : kPage);
    const std::lock_guard lock(mutex_);
    if (auto status = take_capacity(device, block->charged); !status.ok()) return status;
    if (auto status = insert_window_block(block, device_window_); !status.ok()) {
        used_[static_cast<size_t>(device)] -= block->charged;
        return status;
    }
    *address = pointer(block->base);
    return {};
}

Status Tracker::allocate_host(size_t size, void **address) {
    if (size == 0) return failure(CANN_INVALID_PARAM, "size is 0");
    auto block = std::make_shared<Block>();
    block->size = size;
    block->kind = Kind::pinned;
    const std::lock_guard lock(mutex_);
    if (auto status = insert_window_block(block, host_window_); !status.ok()) return status;
    *address = pointer(block->base);
    return {};
}

// The block that holds `address`, live or freed.
std::shared_ptr<Block> Tracker::find(uintptr_t address) const {
    auto after = blocks_.upper_bound(address);
    if (after == blocks_.begin()) return nullptr;
    const auto &block = std::prev(after)->second;
    return address - block->base < std::max(block->reserved, block->size) ? block : nullptr;
}

// Waits for those who are using the bytes, then gives them back. The address stays known as freed.
void Tracker::drop(std::unique_lock<std::mutex> &lock, const std::shared_ptr<Block> &block) {
    block->freed = true;
    unpinned_.wait(lock, [&] { return block->pins == 0; });
    if (block->kind == Kind::device) {
        used_[static_cast<size_t>(block->device)] -= block->charged;
        munmap(block->data, block->reserved);
        fallocate(arena_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(arena_offset(*block)),
                  static_cast<off_t>(block->reserved));
    } else if (block->kind == Kind::pinned) {
        mmap(pointer(block->base), block->reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
             -1, 0);
    } else {
        // Not our addresses: the program's allocator may hand them out again.
        blocks_.erase(block->base);
    }
}

Status Tracker::release(void *address, bool host) {
    if (address == nullptr) return failure(CANN_INVALID_PARAM, "the pointer is null");
    std::unique_lock lock(mutex_);
    const auto block = find(integer(address));
    const Kind wanted = host ? Kind::pinned : Kind::device;
    if (block == nullptr) return failure(CANN_RT_PARAM_INVALID, "%p was never allocated", address);
    if (block->freed) return failure(CANN_RT_PARAM_INVALID, "double free of %p (%s)", address, name_of(block->kind));
    if (block->kind != wanted) {
        return failure(CANN_RT_PARAM_INVALID, "%p is %s, not %s", address, name_of(block->kind), name_of(wanted));
    }
    if (block->base != integer(address)) {
        return failure(CANN_RT_PARAM_INVALID, "%p lies inside the allocation at %p", address, pointer(block->base));
    }
    drop(lock, block);
    return {};
}

Status Tracker::adopt(void *address, size_t size, Kind kind, int32_t device) {
    if (address == nullptr || size == 0) return failure(CANN_INVALID_PARAM, "the pointer is null or the size is 0");
    const uintptr_t base = integer(address);
    if (size > UINTPTR_MAX - base) return failure(CANN_INVALID_PARAM, "%zu bytes at %p wrap around", size, address);
    if (in_window(base)) return failure(CANN_INVALID_PARAM, "%p belongs to the mock already", address);
    const std::lock_guard lock(mutex_);
    if (const auto same = blocks_.find(base); same != blocks_.end() && same->second->size == size) {
        auto &block = *same->second;
        if (block.kind == kind && block.device == device && !block.freed) {
            ++block.registrations;
            return {};
        }
    }
    const auto after = blocks_.lower_bound(base);
    const bool hits_next = after != blocks_.end() && after->second->base < base + size;
    const auto holder = find(base);
    if (holder != nullptr || hits_next) {
        const auto &other = holder != nullptr ? holder : after->second;
        return failure(CANN_INVALID_PARAM, "%zu bytes at %p overlap the %zu bytes at %p (%s, device %d)", size, address,
                       other->size, pointer(other->base), name_of(other->kind), other->device);
    }
    auto block = std::make_shared<Block>();
    block->base = base;
    block->size = size;
    block->kind = kind;
    block->device = device;
    block->data = static_cast<char *>(address);
    block->registrations = 1;
    blocks_.emplace(base, std::move(block));
    return {};
}

Status Tracker::abandon(void *address, Kind kind) {
    std::unique_lock lock(mutex_);
    const auto entry = blocks_.find(integer(address));
    if (entry == blocks_.end() || entry->second->kind != kind || entry->second->freed) {
        return failure(CANN_INVALID_PARAM, "%p is not the start of %s", address, name_of(kind));
    }
    const auto block = entry->second;
    if (--block->registrations == 0) drop(lock, block);
    return {};
}

Access Tracker::access(const void *address, size_t size) {
    Access access;
    const uintptr_t begin = integer(address);
    const auto refuse = [&](Status status) {
        access.status_ = std::move(status);
        return std::move(access);
    };
    if (address == nullptr) return refuse(failure(CANN_INVALID_PARAM, "the pointer is null"));
    const std::lock_guard lock(mutex_);
    const auto block = find(begin);
    if (block == nullptr) {
        if (in_window(begin)) {
            return refuse(failure(CANN_RT_PARAM_INVALID, "%p is an address of the mock's that was never allocated",
                                  address));
        }
        const auto after = blocks_.lower_bound(begin);
        if (after != blocks_.end() && after->second->base - begin < size) {
            return refuse(failure(CANN_RT_PARAM_INVALID, "%zu bytes at %p run into %s at %p", size, address,
                                  name_of(after->second->kind), pointer(after->second->base)));
        }
        access.data_ = static_cast<char *>(const_cast<void *>(address));
        return access;
    }
    if (block->freed) {
        return refuse(failure(CANN_RT_PARAM_INVALID, "use after free: %p lies in %s at %p, %zu bytes", address,
                              name_of(block->kind), pointer(block->base), block->size));
    }
    const size_t offset = begin - block->base;
    if (offset > block->size || size > block->size - offset) {
        return refuse(failure(CANN_RT_PARAM_INVALID, "out of range: %zu bytes at offset %zu of %s at %p, %zu bytes",
                              size, offset, name_of(block->kind), pointer(block->base), block->size));
    }
    ++block->pins;
    access.block_ = block;
    access.tracker_ = this;
    access.data_ = block->data + offset;
    return access;
}

Access Tracker::access_device(const void *address, size_t size, int32_t device) {
    Access access = this->access(address, size);
    if (!access.ok()) return access;
    if (!access.on_device()) {
        access.status_ = failure(CANN_RT_PARAM_INVALID, "%p is not device memory", address);
    } else if (access.device() != device) {
        access.status_ = failure(CANN_RT_PARAM_INVALID, "wrong device: %p is memory of device %d, the operation runs on"
                                 " device %d", address, access.device(), device);
    }
    return access;
}

void Tracker::unpin(Block &block) {
    const std::lock_guard lock(mutex_);
    if (--block.pins == 0 && block.freed) unpinned_.notify_all();
}

void Tracker::reset_device(int32_t device) {
    std::unique_lock lock(mutex_);
    // drop() gives up the lock while it waits, so the search starts anew each time.
    while (true) {
        std::shared_ptr<Block> found;
        for (const auto &[base, block] : blocks_) {
            if (!block->freed && block->kind == Kind::device && block->device == device) {
                found = block;
                break;
            }
        }
        if (found == nullptr) return;
        drop(lock, found);
    }
}

uint64_t Tracker::capacity() const { return capacity_(); }

uint64_t Tracker::used(int32_t device) const {
    const std::lock_guard lock(mutex_);
    return used_[static_cast<size_t>(device)];
}

int64_t Tracker::live(Kind kind) const {
    const std::lock_guard lock(mutex_);
    int64_t count = 0;
    for (const auto &[base, block] : blocks_) count += !block->freed && block->kind == kind;
    return count;
}

int64_t Tracker::live_bytes() const {
    const std::lock_guard lock(mutex_);
    int64_t bytes = 0;
    for (const auto &[base, block] : blocks_) {
        if (!block->freed && block->kind == Kind::device) bytes += static_cast<int64_t>(block->size);
    }
    return bytes;
}

Tracker &tracker() {
    constexpr uint64_t kDefaultMib = 4096;
    // Never destroyed: streams may still run when the process exits.
    static Tracker *instance = new Tracker([] {
        const int32_t rank = rank_of_process();
        const bool known = rank >= 0 && rank < SEQSHIFT_MOCK_RANKS - 1;
        const auto &field = control().deviceMemory[known ? rank : SEQSHIFT_MOCK_RANKS - 1];
        return setting(field, "SEQSHIFT_MOCK_DEVICE_MEMORY_MIB", uint64_t{1} << 20, kDefaultMib << 20);
    });
    return *instance;
}

}  // namespace mock
