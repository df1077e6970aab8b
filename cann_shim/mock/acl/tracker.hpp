// Every range of device and pinned host memory of the process, and whether an access to it is allowed.
//
// Device memory of aclrtMalloc has two addresses. The one that the program gets lies in a window that is never
// readable, so that touching device memory from the host faults at once, as on real hardware. The bytes lie in a
// memfd at the same offset (the arena), mapped elsewhere; other ranks map the arena to read from it directly.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include "call.hpp"

namespace mock {

enum class Kind {
    device,           // aclrtMalloc
    registered,       // seqshiftMockRegisterDeviceMemory
    pinned,           // aclrtMallocHost
    registered_host,  // aclrtHostRegister
};

inline bool is_device(Kind kind) { return kind == Kind::device || kind == Kind::registered; }

struct Block {
    uintptr_t base = 0;
    size_t size = 0;      // what was asked for: the bounds of legal accesses
    size_t reserved = 0;  // taken from the window
    size_t charged = 0;   // taken from the device's capacity
    Kind kind = Kind::device;
    int32_t device = 0;
    char *data = nullptr;  // the bytes
    bool freed = false;
    int pins = 0;
    int registrations = 0;
};

class Tracker;

// The right to touch a range until destroyed. Plain host memory, which nobody tracks, has no block.
class MOCK_SHARED Access {
   public:
    Access() = default;
    Access(Access &&other) noexcept;
    Access &operator=(Access &&other) noexcept;
    ~Access();

    const Status &status() const { return status_; }
    bool ok() const { return status_.ok(); }
    char *data() const { return data_; }
    bool on_device() const { return block_ != nullptr && is_device(block_->kind); }
    bool is_pinned() const { return block_ != nullptr && !is_device(block_->kind); }
    int32_t device() const { return block_->device; }
    // The whole range that the access lies in.
    const Block *block() const { return block_.get(); }

   private:
    friend class Tracker;
    Status status_;
    char *data_ = nullptr;
    std::shared_ptr<Block> block_;
    Tracker *tracker_ = nullptr;
};

class MOCK_SHARED Tracker {
   public:
    static constexpr int kDevices = 64;
    // Byte that new memory is filled with: neither zero nor a small number in any dtype.
    static constexpr unsigned char kPoison = 0xa5;

    // Address space for device memory, and as much for pinned host memory.
    static constexpr size_t kWindow = size_t{128} << 30;

    // `capacity` gives the bytes of one device.
    explicit Tracker(std::function<uint64_t()> capacity, size_t window = kWindow);
    ~Tracker();
    Tracker(const Tracker &) = delete;
    Tracker &operator=(const Tracker &) = delete;

    // aclrtMalloc pads by 32 bytes and rounds up to 32; aclrtMallocAlign32 only rounds up. Huge pages: 2 MiB steps.
    Status allocate(int32_t device, size_t size, bool pad, bool huge, void **address);
    Status allocate_host(size_t size, void **address);
    Status release(void *address, bool host);

    // Memory that somebody else has allocated becomes device memory, or pinned host memory.
    Status adopt(void *address, size_t size, Kind kind, int32_t device);
    Status abandon(void *address, Kind kind);

    // Every byte of [address, address + size) must lie in one live range, or in memory nobody tracks.
    Access access(const void *address, size_t size);
    // As access(), but must be device memory of `device`.
    Access access_device(const void *address, size_t size, int32_t device);

    // Device memory that a library takes for itself.
    Status charge(int32_t device, uint64_t bytes);
    void discharge(int32_t device, uint64_t bytes);

    // Frees what the device still holds.
    void reset_device(int32_t device);

    uint64_t capacity() const;
    uint64_t used(int32_t device) const;
    int64_t live(Kind kind) const;
    int64_t live_bytes() const;

    // The arena: its file, and the offset in it of a block of Kind::device.
    int arena() const { return arena_; }
    uint64_t arena_offset(const Block &block) const { return block.base - device_window_.base; }

   private:
    friend class Access;

    struct Window {
        uintptr_t base = 0;
        uintptr_t next = 0;
    };
    using Blocks = std::map<uintptr_t, std::shared_ptr<Block>>;

    Status take_capacity(int32_t device, uint64_t bytes);
    uintptr_t take_range(Window &window, size_t bytes);
    Status insert_window_block(std::shared_ptr<Block> block, Window &window);
    void drop(std::unique_lock<std::mutex> &lock, const std::shared_ptr<Block> &block);
    std::shared_ptr<Block> find(uintptr_t address) const;
    bool in_window(uintptr_t address) const;
    void unpin(Block &block);

    const std::function<uint64_t()> capacity_;
    const size_t window_;
    mutable std::mutex mutex_;
    std::condition_variable unpinned_;
    Blocks blocks_;
    Window device_window_, host_window_;
    int arena_ = -1;
    std::array<uint64_t, kDevices> used_{};
};

// The process's tracker.
MOCK_SHARED Tracker &tracker();

}  // namespace mock
