// Element types of HCCL, and reductions over them.
#pragma once

#include <cstdint>

#include "result.hpp"

namespace mock::hccl {

// 0 for an unknown type.
uint64_t size_of(CannHcclType type);

bool can_reduce(CannHcclType type, CannHcclOp op);

// into[i] = into[i] op from[i]. fp16 and bf16 are rounded after each step, to nearest even.
void reduce(void *into, const void *from, uint64_t count, CannHcclType type, CannHcclOp op);

}  // namespace mock::hccl
