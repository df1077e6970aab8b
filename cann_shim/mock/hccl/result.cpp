#include "result.hpp"

#include <cstdarg>
#include <cstdio>

namespace mock::hccl {

Result error(int32_t code, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return {code, text};
}

int32_t report(const Result &result) { return mock::report(Status{result.code, result.text}); }

Status to_status(const Result &result) {
    switch (result.code) {
        case CANN_HCCL_OK:
            return {};
        case CANN_HCCL_TIMEOUT:
            return {CANN_RT_TASK_TIMEOUT, "HCCL timeout: " + result.text};
        case CANN_HCCL_REMOTE:
            return {CANN_RT_LINK_ERROR, "HCCL remote error: " + result.text};
        default:
            return {CANN_RT_INTERNAL, std::string("HCCL ") + describe(result.code) + ": " + result.text};
    }
}

const char *describe(int32_t code) {
    static constexpr const char *kTexts[] = {
        "no error",         "parameter error",      "empty pointer",         "memory error",
        "internal error",   "not supported",        "not found",             "resource unavailable",
        "system call error", "timeout",             "open file error",       "tcp connect error",
        "roce connect error", "tcp transfer error", "roce transfer error",   "runtime error",
        "driver error",     "profiling error",      "cce error",             "network error",
        "try again",        "remote error",         "suspending",
    };
    const auto index = static_cast<size_t>(code);
    return code >= 0 && index < std::size(kTexts) ? kTexts[index] : "unknown error";
}

}  // namespace mock::hccl
