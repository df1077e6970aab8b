// Copies and fills: what is allowed, and doing it.
#pragma once

#include "stream.hpp"
#include "tracker.hpp"

namespace mock {

// Two-dimensional; a plain copy has one row.
struct Copy {
    void *dst = nullptr;
    const void *src = nullptr;
    size_t dst_pitch = 0;
    size_t src_pitch = 0;
    size_t width = 0;
    size_t height = 1;
    CannMemcpyKind kind = CANN_COPY_HOST_TO_DEVICE;

    size_t dst_extent() const { return (height - 1) * dst_pitch + width; }
    size_t src_extent() const { return (height - 1) * src_pitch + width; }
};

Copy plain_copy(void *dst, const void *src, size_t bytes, CannMemcpyKind kind);

// What both ends of a copy are.
struct Ends {
    Access dst, src;
    Status status;

    // An end in host memory that is not pinned: an "asynchronous" copy then returns only when it is done.
    bool unpinned() const;
};

// Checks ranges, ends against kind, and devices against `device`.
Ends open_ends(const Copy &copy, int32_t device);
// Checks again, for memory may have been freed since, and copies.
Status perform(const Copy &copy, int32_t device, const Fault &fault);

}  // namespace mock
