#include "reduce.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <type_traits>

namespace mock::hccl {
namespace {

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t to_bf16(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
    return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float from_fp16(uint16_t bits) {
    const float sign = (bits & 0x8000) != 0 ? -1.0F : 1.0F;
    const int exponent = bits >> 10 & 0x1f;
    const int fraction = bits & 0x3ff;
    if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
    if (exponent == 0x1f) return fraction != 0 ? std::nanf("") : sign * INFINITY;
    return sign * std::ldexp(static_cast<float>(fraction + 1024), exponent - 25);
}

uint16_t to_fp16(float value) {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return 0x7e00;
    const float magnitude = std::fabs(value);
    // Half way between the largest fp16 number and the next one that there would be.
    if (magnitude >= 65520.0F) return sign | 0x7c00;
    int exponent = 0;
    std::frexp(magnitude, &exponent);
    // The unit of the last place; below the normal range it no longer shrinks. nearbyint rounds to even.
    const int unit = std::max(exponent - 11, -24);
    const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, -unit)));
    if (steps < 1024) return static_cast<uint16_t>(sign | steps);
    // 2048 steps carry into the exponent, which the addition below does by itself.
    return static_cast<uint16_t>(sign | (((unit + 24) << 10) + steps));
}

template <typename T>
T combine(T a, T b, CannHcclOp op) {
    switch (op) {
        case CANN_HCCL_OP_SUM:
            if constexpr (std::is_integral_v<T>) {
                using U = std::make_unsigned_t<T>;
                return static_cast<T>(static_cast<U>(a) + static_cast<U>(b));
            } else {
                return a + b;
            }
        case CANN_HCCL_OP_PROD:
            if constexpr (std::is_integral_v<T>) {
                return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
            } else {
                return a * b;
            }
        case CANN_HCCL_OP_MAX:
            return std::max(a, b);
        default:
            return std::min(a, b);
    }
}

template <typename T>
void reduce_as(void *into, const void *from, uint64_t count, CannHcclOp op) {
    auto *target = static_cast<T *>(into);
    const auto *source = static_cast<const T *>(from);
    for (uint64_t i = 0; i < count; ++i) target[i] = combine(target[i], source[i], op);
}

template <float (*widen)(uint16_t), uint16_t (*narrow)(float)>
void reduce_half(void *into, const void *from, uint64_t count, CannHcclOp op) {
    auto *target = static_cast<uint16_t *>(into);
    const auto *source = static_cast<const uint16_t *>(from);
    for (uint64_t i = 0; i < count; ++i) target[i] = narrow(combine(widen(target[i]), widen(source[i]), op));
}

}  // namespace

uint64_t size_of(CannHcclType type) {
    switch (type) {
        case CANN_HCCL_TYPE_INT8:
        case CANN_HCCL_TYPE_UINT8:
            return 1;
        case CANN_HCCL_TYPE_INT16:
        case CANN_HCCL_TYPE_UINT16:
        case CANN_HCCL_TYPE_FP16:
        case CANN_HCCL_TYPE_BFP16:
            return 2;
        case CANN_HCCL_TYPE_INT32:
        case CANN_HCCL_TYPE_UINT32:
        case CANN_HCCL_TYPE_FP32:
            return 4;
        case CANN_HCCL_TYPE_INT64:
        case CANN_HCCL_TYPE_UINT64:
        case CANN_HCCL_TYPE_FP64:
            return 8;
        default:
            return 0;
    }
}

bool can_reduce(CannHcclType type, CannHcclOp op) {
    return size_of(type) != 0 && op >= CANN_HCCL_OP_SUM && op <= CANN_HCCL_OP_MIN;
}

void reduce(void *into, const void *from, uint64_t count, CannHcclType type, CannHcclOp op) {
    switch (type) {
        case CANN_HCCL_TYPE_INT8:
            return reduce_as<int8_t>(into, from, count, op);
        case CANN_HCCL_TYPE_INT16:
            return reduce_as<int16_t>(into, from, count, op);
        case CANN_HCCL_TYPE_INT32:
            return reduce_as<int32_t>(into, from, count, op);
        case CANN_HCCL_TYPE_INT64:
            return reduce_as<int64_t>(into, from, count, op);
        case CANN_HCCL_TYPE_UINT8:
            return reduce_as<uint8_t>(into, from, count, op);
        case CANN_HCCL_TYPE_UINT16:
            return reduce_as<uint16_t>(into, from, count, op);
        case CANN_HCCL_TYPE_UINT32:
            return reduce_as<uint32_t>(into, from, count, op);
        case CANN_HCCL_TYPE_UINT64:
            return reduce_as<uint64_t>(into, from, count, op);
        case CANN_HCCL_TYPE_FP32:
            return reduce_as<float>(into, from, count, op);
        case CANN_HCCL_TYPE_FP64:
            return reduce_as<double>(into, from, count, op);
        case CANN_HCCL_TYPE_FP16:
            return reduce_half<from_fp16, to_fp16>(into, from, count, op);
        case CANN_HCCL_TYPE_BFP16:
            return reduce_half<from_bf16, to_bf16>(into, from, count, op);
        default:
            return;
    }
}

}  // namespace mock::hccl
