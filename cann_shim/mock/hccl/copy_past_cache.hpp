// A copy to memory that nobody reads soon.
#pragma once

#include <cstdint>

namespace mock::hccl {

// As memcpy. On x86-64 the target does not go through the cache: its lines are not read before they are overwritten, and
// what the cache holds (a bounce buffer) stays. Done when it returns, for other threads, too.
void copy_past_cache(char *to, const char *from, uint64_t bytes);

}  // namespace mock::hccl
