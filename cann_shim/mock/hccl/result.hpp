// The outcome of an HCCL operation.
#pragma once

#include <string>

#include "call.hpp"

namespace mock::hccl {

struct Result {
    int32_t code = CANN_HCCL_OK;
    std::string text;

    bool ok() const { return code == CANN_HCCL_OK; }
};

Result error(int32_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

// As mock::report: the text becomes the recent error of the thread.
int32_t report(const Result &result);

// What the stream of a failed operation reports.
Status to_status(const Result &result);

const char *describe(int32_t code);

}  // namespace mock::hccl
