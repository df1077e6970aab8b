// Streams, events, contexts: order, time limits, aborts, and stale handles.
#include "mock_control.h"

#include <pthread.h>

static _Atomic int steps;

static void add_step(void *expected) { CHECK(steps++ == (int)(intptr_t)expected); }

CASE(start_and_end) {
    uint32_t count = 0;
    int32_t device = -1, major = 0, minor = 0, patch = 0;
    control();
    load_cann();
    REFUSED(100001, "aclInit", aclrtSetDevice(0));
    OK(aclInit(NULL));
    RETURNS(100002, aclInit(NULL));
    REFUSED(107002, "aclrtSetDevice", aclrtGetDevice(&device));
    OK(aclrtGetDeviceCount(&count));
    CHECK(count == 16);
    OK(aclrtSetDevice(5));
    OK(aclrtGetDevice(&device));
    CHECK(device == 5);
    OK(aclrtGetVersion(&major, &minor, &patch));
    CHECK(major == 8 && strcmp(aclrtGetSocName(), "Ascend910_9391") == 0);
    OK(aclFinalize());
    RETURNS(100037, aclFinalize());
    CHECK(aclrtPeekAtLastError(0) == 100037 && aclrtGetLastError(0) == 100037 && aclrtGetLastError(0) == 0);
}

CASE(device_count_from_environment) {
    uint32_t count = 0;
    setenv("SEQSHIFT_MOCK_DEVICES", "3", 1);
    start_device(2);
    OK(aclrtGetDeviceCount(&count));
    CHECK(count == 3);
    REFUSED(107001, "device 3 of 3", aclrtSetDevice(3));
}

static void *other_thread(void *unused) {
    int32_t device = -1;
    (void)unused;
    REFUSED(107002, "no context", aclrtGetDevice(&device));
    OK(aclrtSetDevice(2));
    OK(aclrtGetDevice(&device));
    CHECK(device == 2);
    REFUSED(107000, "timeout -5", aclrtSynchronizeStreamWithTimeout(NULL, -5));
    return NULL;
}

// Current device and error text belong to a thread.
CASE(threads_are_apart) {
    pthread_t thread;
    int32_t device = -1;
    start_device(1);
    RETURNS(107001, aclrtSetDevice(99));
    CHECK(pthread_create(&thread, NULL, other_thread, NULL) == 0 && pthread_join(thread, NULL) == 0);
    OK(aclrtGetDevice(&device));
    CHECK(device == 1);
    check_text(__LINE__, "device 99");
    CHECK(aclGetRecentErrMsg() == NULL);
}

CASE(contexts) {
    void *first, *second, *stream;
    int32_t device = -1;
    start_device(0);
    OK(aclrtGetCurrentContext(&first));
    OK(aclrtCreateContext(&second, 1));
    OK(aclrtGetDevice(&device));
    CHECK(device == 1);
    OK(aclrtCreateStream(&stream));
    OK(aclrtSetCurrentContext(first));
    REFUSED(107003, "another context", aclrtSynchronizeStream(stream));
    OK(aclrtSetCurrentContext(second));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtDestroyContext(second));
    REFUSED(107002, "was destroyed", aclrtSynchronizeStream(stream));
    REFUSED(107017, "not a live context", aclrtSetCurrentContext(second));
    REFUSED(107000, "aclrtResetDevice", aclrtDestroyContext(first));
    OK(aclrtSetCurrentContext(first));
    REFUSED(107017, "not a live stream", aclrtSynchronizeStream(stream));
}

CASE(first_in_first_out) {
    void *stream;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    for (intptr_t i = 0; i < 1000; ++i) OK(aclrtLaunchHostFunc(stream, add_step, (void *)i));
    OK(aclrtSynchronizeStream(stream));
    CHECK(steps == 1000);
    // The default stream is one as well.
    OK(aclrtLaunchHostFunc(NULL, add_step, (void *)1000));
    OK(aclrtSynchronizeDevice());
    CHECK(steps == 1001);
}

CASE(synchronize_timeouts) {
    void *stream, *event;
    int32_t status = -1;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    OK(aclrtCreateEventExWithFlag(&event, 0));
    SeqshiftMockRule *rule = arm((SeqshiftMockRule){.symbol = "aclrtLaunchHostFunc", .rank = -1, .action = 3});
    OK(aclrtLaunchHostFunc(stream, add_step, (void *)0));
    OK(aclrtRecordEvent(event, stream));
    const double start = seconds();
    REFUSED(507046, "not done after 50 ms", aclrtSynchronizeStreamWithTimeout(stream, 50));
    REFUSED(507047, "not reached in 50 ms", aclrtSynchronizeEventWithTimeout(event, 50));
    CHECK(seconds() - start >= 0.1);
    OK(aclrtStreamQuery(stream, &status));
    CHECK(status == 1);
    let_go(rule);
    OK(aclrtSynchronizeStreamWithTimeout(stream, -1));
    OK(aclrtSynchronizeEventWithTimeout(event, 10000));
    REFUSED(107000, "timeout -2", aclrtSynchronizeStreamWithTimeout(stream, -2));
}

// The two queries have opposite polarity.
CASE(event_queries) {
    void *stream, *event, *ex;
    int32_t legacy = -1, recorded = -1, waits = -1;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    OK(aclrtCreateEvent(&event));
    OK(aclrtCreateEventExWithFlag(&ex, 0));
    OK(aclrtQueryEventStatus(event, &recorded));
    CHECK(recorded == 0);
    SeqshiftMockRule *rule = arm((SeqshiftMockRule){.symbol = "aclrtRecordEvent", .rank = -1, .action = 3});
    OK(aclrtRecordEvent(event, stream));
    OK(aclrtQueryEvent(event, &legacy));
    OK(aclrtQueryEventStatus(event, &recorded));
    CHECK(legacy == 1 && recorded == 0);
    let_go(rule);
    OK(aclrtSynchronizeEvent(event));
    OK(aclrtQueryEvent(event, &legacy));
    OK(aclrtQueryEventStatus(event, &recorded));
    CHECK(legacy == 0 && recorded == 1);
    OK(aclrtQueryEventWaitStatus(event, &waits));
    CHECK(waits == 0);
    OK(aclrtResetEvent(event, stream));
    OK(aclrtQueryEventStatus(event, &recorded));
    CHECK(recorded == 0);
    REFUSED(207000, "ExWithFlag", aclrtQueryEvent(ex, &legacy));
    REFUSED(207000, "ExWithFlag", aclrtResetEvent(ex, stream));
    REFUSED(207000, "ExWithFlag", aclrtQueryEventWaitStatus(ex, &waits));
    REFUSED(107000, "never recorded", aclrtSynchronizeEvent(ex));
}

// A wait is for the latest record before it, whatever is recorded later.
CASE(streams_wait_for_events) {
    void *first, *second, *event;
    int32_t waits = -1;
    start_device(0);
    OK(aclrtCreateStream(&first));
    OK(aclrtCreateStream(&second));
    OK(aclrtCreateEvent(&event));
    SeqshiftMockRule *rule =
        arm((SeqshiftMockRule){.symbol = "aclrtLaunchHostFunc", .rank = -1, .action = 3, .count = 1});
    OK(aclrtLaunchHostFunc(first, add_step, (void *)0));
    OK(aclrtRecordEvent(event, first));
    OK(aclrtStreamWaitEvent(second, event));
    OK(aclrtLaunchHostFunc(second, add_step, (void *)1));
    OK(aclrtQueryEventWaitStatus(event, &waits));
    CHECK(waits == 1);
    RETURNS(507046, aclrtSynchronizeStreamWithTimeout(second, 30));
    CHECK(steps == 0);
    let_go(rule);
    OK(aclrtSynchronizeStream(second));
    CHECK(steps == 2);
    OK(aclrtQueryEventWaitStatus(event, &waits));
    CHECK(waits == 0);
}

CASE(waits_for_unrecorded_events) {
    void *first, *second, *ex, *event;
    start_device(0);
    OK(aclrtCreateStream(&first));
    OK(aclrtCreateStream(&second));
    OK(aclrtCreateEventExWithFlag(&ex, 0));
    OK(aclrtCreateEvent(&event));
    OK(aclrtStreamWaitEvent(second, ex));
    OK(aclrtSynchronizeStream(second));
    OK(aclrtStreamWaitEvent(second, event));
    RETURNS(507046, aclrtSynchronizeStreamWithTimeout(second, 30));
    OK(aclrtRecordEvent(event, first));
    OK(aclrtSynchronizeStream(second));
    OK(aclrtResetEvent(event, first));
    OK(aclrtStreamWaitEventWithTimeout(second, event, 30));
    REFUSED(107019, "not reached in 30 ms", aclrtSynchronizeStream(second));
}

CASE(event_times) {
    void *stream, *start, *end, *plain;
    float milliseconds = 0;
    uint64_t from = 0, to = 0;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    OK(aclrtCreateEventExWithFlag(&start, 8));
    OK(aclrtCreateEventExWithFlag(&end, 8));
    OK(aclrtCreateEventExWithFlag(&plain, 0));
    REFUSED(107000, "not reached", aclrtEventElapsedTime(&milliseconds, start, end));
    arm((SeqshiftMockRule){.symbol = "aclrtLaunchHostFunc", .rank = -1, .action = 3, .value = 20});
    OK(aclrtRecordEvent(start, stream));
    OK(aclrtLaunchHostFunc(stream, add_step, (void *)0));
    OK(aclrtRecordEvent(end, stream));
    OK(aclrtRecordEvent(plain, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtEventElapsedTime(&milliseconds, start, end));
    CHECK(milliseconds >= 20 && milliseconds < 20000);
    OK(aclrtEventGetTimestamp(start, &from));
    OK(aclrtEventGetTimestamp(end, &to));
    CHECK(to - from >= 20000);
    REFUSED(107000, "TIME_LINE", aclrtEventElapsedTime(&milliseconds, start, plain));
}

static void *synchronize(void *stream) {
    OK(aclrtSetDevice(0));
    RETURNS(107023, aclrtSynchronizeStream(stream));
    return NULL;
}

CASE(abort_stops_and_drops) {
    void *stream, *waiting, *event;
    pthread_t thread;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    OK(aclrtCreateStream(&waiting));
    OK(aclrtCreateEvent(&event));
    SeqshiftMockRule *rule =
        arm((SeqshiftMockRule){.symbol = "aclrtLaunchHostFunc", .rank = -1, .action = 3, .count = 1});
    OK(aclrtLaunchHostFunc(stream, add_step, (void *)99));
    await_stalled(rule, 1);
    OK(aclrtLaunchHostFunc(stream, add_step, (void *)98));
    OK(aclrtRecordEvent(event, stream));
    OK(aclrtStreamWaitEvent(waiting, event));
    CHECK(pthread_create(&thread, NULL, synchronize, stream) == 0);
    while (calls_of("aclrtSynchronizeStream", SEQSHIFT_MOCK_RANKS - 1) == 0) usleep(100);
    usleep(20000);  // the thread is in the call; when it began to wait cannot be asked
    OK(aclrtStreamAbort(stream));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(steps == 0);
    // The event will never come; the stream that waits for it can be aborted, and both can be used again.
    RETURNS(507046, aclrtSynchronizeStreamWithTimeout(waiting, 30));
    OK(aclrtStreamAbort(waiting));
    OK(aclrtLaunchHostFunc(waiting, add_step, (void *)0));
    OK(aclrtSynchronizeStream(waiting));
    OK(aclrtLaunchHostFunc(stream, add_step, (void *)1));
    OK(aclrtSynchronizeStream(stream));
}

CASE(destroy) {
    void *stream;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    SeqshiftMockRule *slow =
        arm((SeqshiftMockRule){.symbol = "aclrtLaunchHostFunc", .rank = -1, .action = 3, .value = 30, .count = 1});
    OK(aclrtLaunchHostFunc(stream, add_step, (void *)0));
    OK(aclrtDestroyStream(stream));
    CHECK(steps == 1);
    disarm(slow);
    REFUSED(107017, "not a live stream", aclrtDestroyStream(stream));
    REFUSED(107017, "not a live stream", aclrtLaunchHostFunc(stream, add_step, NULL));
    OK(aclrtCreateStream(&stream));
    SeqshiftMockRule *rule = arm((SeqshiftMockRule){.symbol = "aclrtLaunchHostFunc", .rank = -1, .action = 3});
    OK(aclrtLaunchHostFunc(stream, add_step, (void *)99));
    await_stalled(rule, 1);
    OK(aclrtDestroyStreamForce(stream));
    CHECK(steps == 1);
    REFUSED(100000, "default stream", aclrtDestroyStream(NULL));
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_STREAMS) == 0);
}

CASE(stale_handles) {
    void *stream, *event;
    int32_t status;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    OK(aclrtCreateEvent(&event));
    OK(aclrtDestroyEvent(event));
    REFUSED(107017, "not a live event", aclrtDestroyEvent(event));
    REFUSED(107017, "not a live event", aclrtRecordEvent(event, stream));
    REFUSED(107017, "not a live event", aclrtQueryEventStatus(event, &status));
    REFUSED(107017, "not a live event", aclrtRecordEvent(stream, stream));
    REFUSED(107017, "not a live stream", aclrtSynchronizeStream((void *)0x1234));
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_EVENTS) == 0);
}

// After an error the stream goes on; every synchronization reports the first error, and so do events behind it.
CASE(errors_stay) {
    void *stream, *event;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    OK(aclrtCreateEventExWithFlag(&event, 0));
    SeqshiftMockRule *rule = arm((SeqshiftMockRule){
        .symbol = "aclrtLaunchHostFunc", .rank = -1, .action = SEQSHIFT_MOCK_FAIL_TASK, .value = 507015, .count = 1});
    OK(aclrtLaunchHostFunc(stream, add_step, (void *)99));
    OK(aclrtLaunchHostFunc(stream, add_step, (void *)0));
    OK(aclrtRecordEvent(event, stream));
    REFUSED(507015, "injected", aclrtSynchronizeStream(stream));
    RETURNS(507015, aclrtSynchronizeStream(stream));
    RETURNS(507015, aclrtSynchronizeEvent(event));
    CHECK(steps == 1 && rule->hits == 1 && rule->seen == 2);
    OK(aclrtStreamAbort(stream));
    OK(aclrtSynchronizeStream(stream));
}

static void *process_reports(void *ready) {
    OK(aclrtSetDevice(0));
    while (*(_Atomic int *)ready == 0) usleep(100);
    OK(aclrtProcessReport(10000));
    OK(aclrtProcessReport(10000));
    RETURNS(107019, aclrtProcessReport(20));
    return NULL;
}

CASE(callbacks) {
    void *stream;
    pthread_t thread;
    _Atomic int ready = 0;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    REFUSED(107000, "aclrtSubscribeReport", aclrtLaunchCallback(add_step, NULL, 1, stream));
    CHECK(pthread_create(&thread, NULL, process_reports, &ready) == 0);
    OK(aclrtSubscribeReport((uint64_t)thread, stream));
    OK(aclrtLaunchCallback(add_step, (void *)0, 1, stream));
    RETURNS(507046, aclrtSynchronizeStreamWithTimeout(stream, 30));
    ready = 1;
    OK(aclrtSynchronizeStream(stream));
    CHECK(steps == 1);
    OK(aclrtLaunchCallback(add_step, (void *)1, 0, stream));
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(steps == 2);
}

static void *use_streams(void *seed) {
    enum { BYTES = 4096 };
    void *stream, *event, *pinned, *device;
    OK(aclrtSetDevice((int32_t)(intptr_t)seed));
    OK(aclrtMallocHost(&pinned, 2 * BYTES));
    for (int round = 0; round < 50; ++round) {
        OK(aclrtCreateStream(&stream));
        OK(aclrtCreateEventExWithFlag(&event, 0));
        OK(aclrtMalloc(&device, BYTES, 0));
        memset(pinned, round, BYTES);
        OK(aclrtMemcpyAsync(device, BYTES, pinned, BYTES, H2D, stream));
        OK(aclrtMemcpyAsync((char *)pinned + BYTES, BYTES, device, BYTES, D2H, stream));
        OK(aclrtRecordEvent(event, stream));
        OK(aclrtSynchronizeEvent(event));
        CHECK(memcmp(pinned, (char *)pinned + BYTES, BYTES) == 0);
        OK(aclrtFree(device));
        OK(aclrtDestroyEvent(event));
        OK(aclrtDestroyStream(stream));
    }
    OK(aclrtFreeHost(pinned));
    return NULL;
}

CASE(many_threads) {
    pthread_t threads[4];
    start_device(0);
    for (intptr_t i = 0; i < 4; ++i) CHECK(pthread_create(&threads[i], NULL, use_streams, (void *)(i % 2)) == 0);
    for (int i = 0; i < 4; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_STREAMS) == 0 && LIVE(SEQSHIFT_MOCK_LIVE_EVENTS) == 0);
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_DEVICE_BLOCKS) == 0 && LIVE(SEQSHIFT_MOCK_LIVE_HOST_BLOCKS) == 0);
}
