#include "copy.hpp"

#include <cstring>

#include "runtime.hpp"

namespace mock {
namespace {

constexpr const char *kKindNames[] = {"host to host", "host to device", "device to host", "device to device"};

Status check_kind(const Copy &copy, bool dst_on_device, bool src_on_device) {
    if (copy.kind < CANN_COPY_HOST_TO_HOST || copy.kind > CANN_COPY_DEVICE_TO_DEVICE) {
        return failure(CANN_INVALID_PARAM, "kind %d is unknown", copy.kind);
    }
    const int actual = src_on_device ? (dst_on_device ? CANN_COPY_DEVICE_TO_DEVICE : CANN_COPY_DEVICE_TO_HOST)
                                     : (dst_on_device ? CANN_COPY_HOST_TO_DEVICE : CANN_COPY_HOST_TO_HOST);
    if (actual == copy.kind) return {};
    return failure(CANN_RT_PARAM_INVALID, "the kind says %s, the pointers %p and %p are %s", kKindNames[copy.kind],
                   copy.src, copy.dst, kKindNames[actual]);
}

// Device memory must be that of the device the copy runs on; the other end may be on a peer.
Status check_devices(const Access &dst, const Access &src, int32_t device) {
    for (const Access *end : {&dst, &src}) {
        const Access &other = end == &dst ? src : dst;
        if (!end->on_device() || end->device() == device) continue;
        const bool reaches = other.on_device() && other.device() == device;
        if (reaches && Runtime::instance().peers(device, end->device())) continue;
        return failure(CANN_RT_PARAM_INVALID, "wrong device: %s lies on device %d, the copy runs on device %d%s",
                       end == &dst ? "dst" : "src", end->device(), device,
                       reaches ? " (aclrtDeviceEnablePeerAccess was not called)" : "");
    }
    return {};
}

bool overlap(const Copy &copy) {
    const auto dst = reinterpret_cast<uintptr_t>(copy.dst);
    const auto src = reinterpret_cast<uintptr_t>(copy.src);
    return dst < src + copy.src_extent() && src < dst + copy.dst_extent();
}

Status with_prefix(const char *prefix, const Status &status) { return {status.code, prefix + status.text}; }

}  // namespace

Copy plain_copy(void *dst, const void *src, size_t bytes, CannMemcpyKind kind) {
    return {.dst = dst, .src = src, .dst_pitch = bytes, .src_pitch = bytes, .width = bytes, .height = 1, .kind = kind};
}

bool Ends::unpinned() const {
    const auto plain = [](const Access &access) { return !access.on_device() && !access.is_pinned(); };
    return plain(dst) || plain(src);
}

Ends open_ends(const Copy &copy, int32_t device) {
    Ends ends;
    const auto refuse = [&](Status status) {
        ends.status = std::move(status);
        return std::move(ends);
    };
    if (copy.dst == nullptr || copy.src == nullptr) return refuse(failure(CANN_INVALID_PARAM, "a pointer is null"));
    if (copy.width == 0 || copy.height == 0) return refuse(failure(CANN_RT_PARAM_INVALID, "nothing to copy"));
    if (copy.width > copy.dst_pitch || copy.width > copy.src_pitch) {
        return refuse(failure(CANN_RT_PARAM_INVALID, "width %zu exceeds a pitch (dst %zu, src %zu)", copy.width,
                              copy.dst_pitch, copy.src_pitch));
    }
    ends.dst = tracker().access(copy.dst, copy.dst_extent());
    if (!ends.dst.ok()) return refuse(with_prefix("dst: ", ends.dst.status()));
    ends.src = tracker().access(copy.src, copy.src_extent());
    if (!ends.src.ok()) return refuse(with_prefix("src: ", ends.src.status()));
    ends.status = check_kind(copy, ends.dst.on_device(), ends.src.on_device());
    if (ends.status.ok()) ends.status = check_devices(ends.dst, ends.src, device);
    if (ends.status.ok() && overlap(copy)) ends.status = failure(CANN_RT_PARAM_INVALID, "dst and src overlap");
    return ends;
}

Status perform(const Copy &copy, int32_t device, const Fault &fault) {
    const Ends ends = open_ends(copy, device);
    if (!ends.status.ok()) return ends.status;
    for (size_t row = 0; row < copy.height; ++row) {
        std::memcpy(ends.dst.data() + row * copy.dst_pitch, ends.src.data() + row * copy.src_pitch, copy.width);
    }
    const size_t row = copy.height > 1 ? static_cast<uint64_t>(fault.value) / copy.width % copy.height : 0;
    corrupt(fault, ends.dst.data() + row * copy.dst_pitch, copy.width);
    return {};
}

}  // namespace mock
