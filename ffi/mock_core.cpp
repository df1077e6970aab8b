#include "mock_core.hpp"

#include "seqshift/ffi/mock_core.rs.h"

namespace mock {
namespace {

void *pointer(size_t address) { return reinterpret_cast<void *>(address); }

Reply reply(const Status &status, const void *address = nullptr) {
    return {status.code, status.text, reinterpret_cast<size_t>(address), 0};
}

}  // namespace

Reply TrackerCore::allocate(int32_t device, size_t size, bool pad, bool huge) {
    void *address = nullptr;
    const Status status = tracker_.allocate(device, size, pad, huge, &address);
    return reply(status, address);
}

Reply TrackerCore::allocate_host(size_t size) {
    void *address = nullptr;
    const Status status = tracker_.allocate_host(size, &address);
    return reply(status, address);
}

Reply TrackerCore::release(size_t address, bool host) { return reply(tracker_.release(pointer(address), host)); }

Reply TrackerCore::adopt(size_t address, size_t size, int32_t device) {
    return reply(tracker_.adopt(pointer(address), size, Kind::registered, device));
}

Reply TrackerCore::abandon(size_t address) { return reply(tracker_.abandon(pointer(address), Kind::registered)); }

Reply TrackerCore::access(size_t address, size_t size) {
    const Access access = tracker_.access(pointer(address), size);
    Reply out = reply(access.status(), access.data());
    const Block *block = access.block();
    // Registered memory need not be there at all.
    const bool ours = block != nullptr && (block->kind == Kind::device || block->kind == Kind::pinned);
    if (access.ok() && size > 0 && ours) out.byte = static_cast<uint8_t>(*access.data());
    return out;
}

std::unique_ptr<TrackerCore> new_tracker(size_t window, uint64_t capacity) {
    return std::make_unique<TrackerCore>(window, capacity);
}

}  // namespace mock
