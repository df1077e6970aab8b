#include "call.hpp"

#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <chrono>
#include <thread>
#include <unistd.h>

namespace mock {
namespace {

thread_local const char *t_function = "";
thread_local std::string t_error;
thread_local std::string t_taken;
thread_local int32_t t_last = CANN_OK;

bool logging() {
    static const bool on = [] {
        const char *text = std::getenv("SEQSHIFT_MOCK_LOG");
        return text != nullptr && *text != '\0' && *text != '0';
    }();
    return on;
}

bool never(const void *) { return false; }

}  // namespace

Status failure(int32_t code, const char *format, ...) {
    char text[512];
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return {code, text};
}

int32_t report(const Status &status) {
    if (status.ok()) return CANN_OK;
    t_error = std::string("[") + t_function + "] " + std::to_string(status.code) + ": " + status.text;
    t_last = status.code;
    if (logging()) std::fprintf(stderr, "mock[%d] %s\n", getpid(), t_error.c_str());
    return status.code;
}

const char *take_error_text() {
    if (t_error.empty()) return nullptr;
    t_taken = std::move(t_error);
    t_error.clear();
    return t_taken.c_str();
}

int32_t last_error(bool clear) {
    const int32_t code = t_last;
    if (clear) t_last = CANN_OK;
    return code;
}

Call::Call(Symbol &symbol, bool has_task) : fault_(count_call(symbol)) {
    t_function = symbol.name;
    if (logging()) std::fprintf(stderr, "mock[%d] %s\n", getpid(), symbol.name);
    switch (fault_.action) {
        case SEQSHIFT_MOCK_RETURN:
            replaced_ = true;
            break;
        case SEQSHIFT_MOCK_DELAY:
            std::this_thread::sleep_for(std::chrono::milliseconds(fault_.value));
            break;
        case SEQSHIFT_MOCK_STALL:
            if (!has_task) stall(fault_, never, nullptr);
            break;
        case SEQSHIFT_MOCK_KILL:
            std::raise(SIGKILL);
            break;
        case SEQSHIFT_MOCK_FAIL_TASK:
            replaced_ = !has_task;
            break;
        case SEQSHIFT_MOCK_KILL_IN_TASK:
            if (!has_task) std::raise(SIGKILL);
            break;
        default:
            break;
    }
    if (replaced_) report(failure(code(), "injected by a fault rule"));
}

void corrupt(const Fault &fault, void *data, size_t bytes) {
    if (fault.action != SEQSHIFT_MOCK_CORRUPT || bytes == 0) return;
    auto *byte = static_cast<unsigned char *>(data) + static_cast<uint64_t>(fault.value) % bytes;
    *byte = static_cast<unsigned char>(~*byte);
}

}  // namespace mock
