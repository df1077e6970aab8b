#include "copy_past_cache.hpp"

#include <algorithm>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace mock::hccl {

#ifdef __SSE2__

void copy_past_cache(char *to, const char *from, uint64_t bytes) {
    constexpr uint64_t kVector = sizeof(__m128i), kLine = 4 * kVector;
    const uint64_t head = std::min((kVector - reinterpret_cast<uintptr_t>(to) % kVector) % kVector, bytes);
    std::memcpy(to, from, head);
    uint64_t at = head;
    for (; bytes - at >= kLine; at += kLine) {
        const auto *source = reinterpret_cast<const __m128i *>(from + at);
        auto *target = reinterpret_cast<__m128i *>(to + at);
        const __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
        const __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
        _mm_stream_si128(target, a);
        _mm_stream_si128(target + 1, b);
        _mm_stream_si128(target + 2, c);
        _mm_stream_si128(target + 3, d);
    }
    // Such stores are ordered by nothing else.
    _mm_sfence();
    std::memcpy(to + at, from + at, bytes - at);
}

#else

void copy_past_cache(char *to, const char *from, uint64_t bytes) { std::memcpy(to, from, bytes); }

#endif

}  // namespace mock::hccl
