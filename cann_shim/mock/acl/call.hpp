// What every exported function does first: count, log, meet its fault; and how it reports an error.
#pragma once

#include <cstdint>
#include <string>

#include "control.hpp"
#include "seqshift_cann.h"

#define MOCK_API extern "C" MOCK_SHARED

namespace mock {

// The outcome of an operation: a CANN code and, for errors, the text that aclGetRecentErrMsg will give.
struct Status {
    int32_t code = CANN_OK;
    std::string text;

    bool ok() const { return code == CANN_OK; }
};

// An error with a printf-style text.
MOCK_SHARED Status failure(int32_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// Makes `status` the recent error of this thread if it is one; returns its code.
MOCK_SHARED int32_t report(const Status &status);

// Text of the recent error, which is then forgotten; null if there is none.
const char *take_error_text();
int32_t last_error(bool clear);

class MOCK_SHARED Call {
   public:
    // With `has_task`, faults that concern the stream task are left for the task.
    Call(Symbol &symbol, bool has_task);

    // The call must do nothing and return code().
    bool replaced() const { return replaced_; }
    int32_t code() const { return static_cast<int32_t>(fault_.value); }
    // For the stream task.
    const Fault &fault() const { return fault_; }

   private:
    Fault fault_;
    bool replaced_ = false;
};

// Inverts a byte if the fault says so.
MOCK_SHARED void corrupt(const Fault &fault, void *data, size_t bytes);

}  // namespace mock

#define MOCK_ENTER(name, has_task)               \
    static ::mock::Symbol symbol_of_call{#name}; \
    const ::mock::Call call(symbol_of_call, has_task)

// The first line of a function that runs in its caller's thread, and of one that enqueues a stream task.
#define CANN_CALL(name)     \
    MOCK_ENTER(name, false); \
    if (call.replaced()) return call.code()
#define CANN_STREAM_CALL(name) \
    MOCK_ENTER(name, true);    \
    if (call.replaced()) return call.code()
