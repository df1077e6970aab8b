// The control segment: counters, and every kind of fault rule.
#include "mock_control.h"

#include <signal.h>

enum { LAST = SEQSHIFT_MOCK_RANKS - 1 };

CASE(layout) {
    start_device(0);
    SeqshiftMockControl *own = MOCK_CALL(SeqshiftMockControl *, seqshiftMockControl, (void));
    CHECK(own->magic == SEQSHIFT_MOCK_MAGIC && own->version == 1 && own->bytes == sizeof *own);
    CHECK(own != control() && control()->magic == SEQSHIFT_MOCK_MAGIC);
    OK(aclrtSynchronizeDevice());
    CHECK(own->hcclExecTimeoutMs == 0);
    control()->hcclExecTimeoutMs = 5;
    CHECK(own->hcclExecTimeoutMs == 5);
}

CASE(private_without_a_file) {
    unsetenv("SEQSHIFT_MOCK_CONTROL");
    load_cann();
    SeqshiftMockControl *own = MOCK_CALL(SeqshiftMockControl *, seqshiftMockControl, (void));
    CHECK(own->magic == SEQSHIFT_MOCK_MAGIC);
    strcpy(own->rules[0].symbol, "aclInit");
    own->rules[0].action = SEQSHIFT_MOCK_RETURN, own->rules[0].value = 500000, own->rules[0].rank = -1;
    own->rules[0].armed = 1;
    RETURNS(500000, aclInit(NULL));
}

static void count_some(uint32_t rank) {
    for (uint32_t i = 0; i <= rank; ++i) OK(aclrtSynchronizeDevice());
}

CASE(counters_by_rank) {
    control();
    run_ranks(3, count_some);
    for (uint32_t rank = 0; rank < 3; ++rank) {
        CHECK(calls_of("aclrtSynchronizeDevice", rank) == rank + 1);
        CHECK(calls_of("aclInit", rank) == 1);
    }
    CHECK(calls_of("aclInit", LAST) == 0);
    start_device(0);
    CHECK(calls_of("aclInit", LAST) == 1);
    ((void (*)(int32_t))symbol_of(acl_library, "seqshiftMockSetRank"))(7);
    OK(aclrtSynchronizeDevice());
    CHECK(calls_of("aclrtSynchronizeDevice", 7) == 1);
}

// Calls 3 and 4 fail, in rank 1 only.
static void some_fail(uint32_t rank) {
    for (int i = 1; i <= 6; ++i) {
        const int hit = rank == 1 && (i == 3 || i == 4);
        void *block = NULL;
        if (hit) {
            REFUSED(207001, "injected", aclrtMalloc(&block, 64, 0));
        } else {
            OK(aclrtMalloc(&block, 64, 0));
        }
        CHECK((block == NULL) == hit);
    }
}

CASE(fail_the_nth_call_of_a_rank) {
    SeqshiftMockRule *rule = arm((SeqshiftMockRule){.symbol = "aclrtMalloc", .rank = 1, .action = SEQSHIFT_MOCK_RETURN,
                                                    .value = 207001, .first = 3, .count = 2});
    run_ranks(2, some_fail);
    CHECK(rule->seen == 6 && rule->hits == 2);
}

CASE(one_process_only) {
    start_device(0);
    SeqshiftMockRule *other = arm((SeqshiftMockRule){
        .symbol = "aclrtSynchronizeDevice", .rank = -1, .pid = getpid() + 1, .action = SEQSHIFT_MOCK_RETURN, .value = 1});
    OK(aclrtSynchronizeDevice());
    arm((SeqshiftMockRule){
        .symbol = "aclrtSynchronizeDevice", .rank = -1, .pid = getpid(), .action = SEQSHIFT_MOCK_RETURN, .value = 1});
    RETURNS(1, aclrtSynchronizeDevice());
    CHECK(other->seen == 0);
}

CASE(prefix) {
    HcclRootInfo root;
    int32_t device;
    start_device(0);
    arm((SeqshiftMockRule){.symbol = "Hccl*", .rank = -1, .action = SEQSHIFT_MOCK_RETURN, .value = 7});
    RETURNS(7, HcclGetRootInfo(&root));
    OK(aclrtGetDevice(&device));
}

CASE(delay) {
    start_device(0);
    SeqshiftMockRule *rule = arm((SeqshiftMockRule){
        .symbol = "aclrtSynchronizeDevice", .rank = -1, .action = SEQSHIFT_MOCK_DELAY, .value = 50, .count = 1});
    const double start = seconds();
    OK(aclrtSynchronizeDevice());
    CHECK(seconds() - start >= 0.05 && rule->hits == 1);
}

CASE(stall_ends_by_itself) {
    void *stream;
    char *pinned;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    OK(aclrtMallocHost((void **)&pinned, 64));
    void *device = device_buffer(NULL, 64);
    memset(pinned, 3, 64);
    arm((SeqshiftMockRule){
        .symbol = "aclrtMemcpyAsync", .rank = -1, .action = SEQSHIFT_MOCK_STALL, .value = 60, .count = 1});
    const double start = seconds();
    OK(aclrtMemcpyAsync(device, 64, pinned, 64, H2D, stream));
    CHECK(seconds() - start < 30);
    OK(aclrtSynchronizeStream(stream));
    CHECK(seconds() - start >= 0.06);
    OK(aclrtMemcpyAsync(pinned + 1, 1, device, 1, D2H, stream));
    OK(aclrtSynchronizeStream(stream));
    CHECK(pinned[1] == 3);
}

CASE(corrupt) {
    unsigned char host[64], back[64];
    void *stream;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    void *device = device_buffer(NULL, 64);
    memset(host, 0x11, 64);
    arm((SeqshiftMockRule){
        .symbol = "aclrtMemcpyAsync", .rank = -1, .action = SEQSHIFT_MOCK_CORRUPT, .value = 64 + 5, .count = 1});
    OK(aclrtMemcpyAsync(device, 64, host, 64, H2D, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtMemcpy(back, 64, device, 64, D2H));
    for (int i = 0; i < 64; ++i) CHECK(back[i] == (i == 5 ? 0xee : 0x11));
}

static void die(uint32_t rank) {
    void *stream;
    OK(aclrtCreateStream(&stream));
    char *pinned;
    OK(aclrtMallocHost((void **)&pinned, 64));
    void *device = device_buffer(NULL, 64);
    const int code = aclrtMemcpyAsync(device, 64, pinned, 64, H2D, stream);
    shared->mark = 1;
    CHECK(code == 0 && aclrtSynchronizeStream(stream) == 0 && rank == 0);
}

CASE(kill_the_caller) {
    arm((SeqshiftMockRule){.symbol = "aclrtMemcpyAsync", .rank = 1, .action = SEQSHIFT_MOCK_KILL});
    join_rank(start_rank(0, die), 0);
    CHECK(shared->mark == 1);
    shared->mark = 0;
    join_rank(start_rank(1, die), SIGKILL);
    CHECK(shared->mark == 0);
}

CASE(kill_in_task) {
    SeqshiftMockRule *rule =
        arm((SeqshiftMockRule){.symbol = "aclrtMemcpyAsync", .rank = 1, .action = SEQSHIFT_MOCK_KILL_IN_TASK});
    join_rank(start_rank(1, die), SIGKILL);
    CHECK(rule->hits == 1);
}

// A file that is something else must not be taken for an empty segment: rules in it would silently do nothing.
CASE(foreign_file) {
    const int fd = open(getenv("SEQSHIFT_MOCK_CONTROL"), O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && write(fd, "something else altogether", 25) == 25);
    close(fd);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        load_cann();
        aclInit(NULL);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

CASE(log_of_calls) {
    int pipes[2];
    char text[4096] = {0};
    CHECK(pipe(pipes) == 0);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        CHECK(dup2(pipes[1], 2) == 2);
        setenv("SEQSHIFT_MOCK_LOG", "1", 1);
        start_device(0);
        _exit(aclrtFree(NULL) == 0);
    }
    join_rank(pid, 0);
    CHECK(read(pipes[0], text, sizeof text - 1) > 0);
    CHECK(strstr(text, "aclrtSetDevice") != NULL && strstr(text, "[aclrtFree] 100000") != NULL);
}
