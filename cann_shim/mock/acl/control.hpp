// The control segment: which calls are counted, and which of them meet a fault.
#pragma once

#include <atomic>
#include <cstdint>

#include "seqshift_mock.h"

#define MOCK_SHARED __attribute__((visibility("default")))

namespace mock {

// One exported function. Each has a single static object, at its definition.
struct Symbol {
    const char *name;
    // Index of its counter in the segment; -1: not looked up yet, -2: the segment has no room.
    std::atomic<int32_t> slot{-1};
};

// What a rule does to one call.
struct Fault {
    uint32_t action = SEQSHIFT_MOCK_NOTHING;
    int64_t value = 0;
    SeqshiftMockRule *rule = nullptr;
};

MOCK_SHARED SeqshiftMockControl &control();

// Counts the call and finds the first armed rule that hits it.
Fault count_call(Symbol &symbol);

// Waits as a STALL rule says, or until `cancelled` returns true.
MOCK_SHARED void stall(const Fault &fault, bool (*cancelled)(const void *), const void *argument);

int32_t rank_of_process();
void set_rank_of_process(int32_t rank);

// The value of a control field, else of an environment variable times `unit`, else the default.
MOCK_SHARED uint64_t setting(const uint64_t &field, const char *variable, uint64_t unit, uint64_t fallback);

}  // namespace mock
