// The control segment as a test steers it: a file that the mock maps, too.
#ifndef TESTS_C_MOCK_CONTROL_H
#define TESTS_C_MOCK_CONTROL_H

#include "cann.h"

#include <fcntl.h>

#include "seqshift_mock.h"

static SeqshiftMockControl *control(void) {
    static SeqshiftMockControl *segment;
    if (segment != NULL) return segment;
    const int fd = open(getenv("SEQSHIFT_MOCK_CONTROL"), O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, sizeof *segment) == 0);
    segment = mmap(NULL, sizeof *segment, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(segment != MAP_FAILED);
    close(fd);
    return segment;
}

// Arms the next free rule.
__attribute__((unused)) static SeqshiftMockRule *arm(SeqshiftMockRule rule) {
    static int next;
    SeqshiftMockRule *slot = &control()->rules[next++];
    rule.armed = 0;
    *slot = rule;
    __atomic_store_n(&slot->armed, 1, __ATOMIC_SEQ_CST);
    return slot;
}

__attribute__((unused)) static void disarm(SeqshiftMockRule *rule) { __atomic_store_n(&rule->armed, 0, __ATOMIC_SEQ_CST); }

__attribute__((unused)) static void await_stalled(SeqshiftMockRule *rule, uint32_t tasks) {
    while (__atomic_load_n(&rule->stalled, __ATOMIC_SEQ_CST) != tasks) usleep(200);
}

__attribute__((unused)) static void let_go(SeqshiftMockRule *rule) {
    __atomic_store_n(&rule->released, 1, __ATOMIC_SEQ_CST);
}

__attribute__((unused)) static uint64_t calls_of(const char *name, uint32_t rank) {
    for (int i = 0; i < SEQSHIFT_MOCK_SYMBOLS; ++i) {
        if (strcmp(control()->counters[i].name, name) == 0) return control()->counters[i].calls[rank];
    }
    return 0;
}

// A call of the mock's own.
#define MOCK_CALL(result, name, parameters, ...) \
    (((result(*) parameters)symbol_of(acl_library, #name))(__VA_ARGS__))
#define LIVE(what) MOCK_CALL(int64_t, seqshiftMockLive, (int32_t), what)
#define REGISTER(pointer, size, device) \
    MOCK_CALL(int32_t, seqshiftMockRegisterDeviceMemory, (void *, size_t, int32_t), pointer, size, device)
#define UNREGISTER(pointer) MOCK_CALL(int32_t, seqshiftMockUnregisterDeviceMemory, (void *), pointer)

__attribute__((unused)) static void start_device(int32_t device) {
    alarm(60);
    control();
    load_cann();
    OK(aclInit(NULL));
    OK(aclrtSetDevice(device));
}

#endif
