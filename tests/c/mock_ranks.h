// What cases of HCCL have in common.
#ifndef TESTS_C_MOCK_RANKS_H
#define TESTS_C_MOCK_RANKS_H

#include "mock_control.h"

__attribute__((unused)) static void *stream_of_rank(void) {
    void *stream;
    OK(aclrtCreateStream(&stream));
    return stream;
}

__attribute__((unused)) static void check_bytes(const void *device, size_t bytes, int value) {
    unsigned char *host = malloc(bytes);
    OK(aclrtMemcpy(host, bytes, device, bytes, D2H));
    for (size_t i = 0; i < bytes; ++i) CHECK(host[i] == (unsigned char)value);
    free(host);
}

__attribute__((unused)) static void *filled(size_t bytes, int value) {
    void *buffer = device_buffer(NULL, bytes);
    OK(aclrtMemset(buffer, bytes, value, bytes));
    return buffer;
}

// Waits until `ranks` calls have been made by all processes together.
__attribute__((unused)) static void meet(int ranks) {
    ++shared->count;
    while (shared->count < ranks) usleep(100);
}

#endif
