// What a program that knows only CANN's names declares for itself, looked up in libascendcl.so and libhccl.so at run
// time; and how a case checks. No header of this project is used here.
#ifndef TESTS_C_CANN_H
#define TESTS_C_CANN_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef struct { char internal[4108]; } HcclRootInfo;
typedef struct { int32_t type; void *buf; uint64_t count; int32_t dataType; uint32_t remoteRank; } HcclSendRecvItem;
typedef struct { uint32_t id; int32_t type; } aclrtMemLocation;
typedef struct { aclrtMemLocation dstLoc, srcLoc; uint8_t rsv[16]; } aclrtMemcpyBatchAttr;
typedef struct { aclrtMemLocation location; uint32_t pageSize; uint32_t rsv[4]; } aclrtPtrAttributes;

enum { H2H, H2D, D2H, D2D };
enum { HCCL_INT8, HCCL_INT16, HCCL_INT32, HCCL_FP16, HCCL_FP32, HCCL_INT64, HCCL_UINT64, HCCL_UINT8, HCCL_UINT16,
       HCCL_UINT32, HCCL_FP64, HCCL_BF16 };
enum { HCCL_SUM, HCCL_PROD, HCCL_MAX, HCCL_MIN };
enum { HCCL_SEND, HCCL_RECV };

#define CANN_FUNCTIONS(X, Y) \
    X(int, aclInit, (const char *)) X(int, aclFinalize, (void)) X(const char *, aclGetRecentErrMsg, (void)) \
    X(int, aclrtSetDevice, (int32_t)) X(int, aclrtResetDevice, (int32_t)) X(int, aclrtGetDevice, (int32_t *)) \
    X(int, aclrtGetDeviceCount, (uint32_t *)) X(int, aclrtCreateContext, (void **, int32_t)) \
    X(int, aclrtDestroyContext, (void *)) X(int, aclrtGetCurrentContext, (void **)) \
    X(int, aclrtSetCurrentContext, (void *)) \
    X(int, aclrtCreateStream, (void **)) X(int, aclrtCreateStreamWithConfig, (void **, uint32_t, uint32_t)) \
    X(int, aclrtDestroyStream, (void *)) X(int, aclrtDestroyStreamForce, (void *)) \
    X(int, aclrtSynchronizeStream, (void *)) X(int, aclrtSynchronizeStreamWithTimeout, (void *, int32_t)) \
    X(int, aclrtStreamQuery, (void *, int32_t *)) X(int, aclrtStreamAbort, (void *)) \
    X(int, aclrtSynchronizeDevice, (void)) \
    X(int, aclrtCreateEvent, (void **)) X(int, aclrtCreateEventWithFlag, (void **, uint32_t)) \
    X(int, aclrtCreateEventExWithFlag, (void **, uint32_t)) X(int, aclrtDestroyEvent, (void *)) \
    X(int, aclrtRecordEvent, (void *, void *)) X(int, aclrtResetEvent, (void *, void *)) \
    X(int, aclrtStreamWaitEvent, (void *, void *)) \
    X(int, aclrtStreamWaitEventWithTimeout, (void *, void *, int32_t)) \
    X(int, aclrtQueryEvent, (void *, int32_t *)) X(int, aclrtQueryEventStatus, (void *, int32_t *)) \
    X(int, aclrtQueryEventWaitStatus, (void *, int32_t *)) X(int, aclrtSynchronizeEvent, (void *)) \
    X(int, aclrtSynchronizeEventWithTimeout, (void *, int32_t)) X(int, aclrtEventElapsedTime, (float *, void *, void *)) \
    X(int, aclrtEventGetTimestamp, (void *, uint64_t *)) \
    X(int, aclrtLaunchHostFunc, (void *, void (*)(void *), void *)) X(int, aclrtSubscribeReport, (uint64_t, void *)) \
    X(int, aclrtLaunchCallback, (void (*)(void *), void *, int32_t, void *)) X(int, aclrtProcessReport, (int32_t)) \
    X(int, aclrtMalloc, (void **, size_t, int32_t)) X(int, aclrtMallocAlign32, (void **, size_t, int32_t)) \
    X(int, aclrtFree, (void *)) X(int, aclrtMallocHost, (void **, size_t)) X(int, aclrtFreeHost, (void *)) \
    X(int, aclrtHostRegister, (void *, uint64_t, int32_t, void **)) X(int, aclrtHostUnregister, (void *)) \
    X(int, aclrtMemcpy, (void *, size_t, const void *, size_t, int32_t)) \
    X(int, aclrtMemcpyAsync, (void *, size_t, const void *, size_t, int32_t, void *)) \
    X(int, aclrtMemcpy2d, (void *, size_t, const void *, size_t, size_t, size_t, int32_t)) \
    X(int, aclrtMemcpy2dAsync, (void *, size_t, const void *, size_t, size_t, size_t, int32_t, void *)) \
    X(int, aclrtMemset, (void *, size_t, int32_t, size_t)) \
    X(int, aclrtMemsetAsync, (void *, size_t, int32_t, size_t, void *)) \
    X(int, aclrtMemcpyBatch, (void **, size_t *, void **, size_t *, size_t, aclrtMemcpyBatchAttr *, size_t *, size_t, \
                              size_t *)) \
    X(int, aclrtMemcpyBatchAsync, (void **, size_t *, void **, size_t *, size_t, aclrtMemcpyBatchAttr *, size_t *, \
                                   size_t, size_t *, void *)) \
    X(int, aclrtGetMemInfo, (int32_t, size_t *, size_t *)) \
    X(int, aclrtPointerGetAttributes, (const void *, aclrtPtrAttributes *)) \
    X(int, aclrtDeviceCanAccessPeer, (int32_t *, int32_t, int32_t)) \
    X(int, aclrtDeviceEnablePeerAccess, (int32_t, uint32_t)) \
    X(int, aclrtGetVersion, (int32_t *, int32_t *, int32_t *)) X(const char *, aclrtGetSocName, (void)) \
    X(int, aclrtPeekAtLastError, (int32_t)) X(int, aclrtGetLastError, (int32_t)) \
    Y(int, HcclGetRootInfo, (HcclRootInfo *)) \
    Y(int, HcclCommInitRootInfo, (uint32_t, const HcclRootInfo *, uint32_t, void **)) \
    Y(int, HcclCommInitRootInfoConfig, (uint32_t, const HcclRootInfo *, uint32_t, const void *, void **)) \
    Y(int, HcclCommDestroy, (void *)) Y(int, HcclGetRankSize, (void *, uint32_t *)) \
    Y(int, HcclGetRankId, (void *, uint32_t *)) Y(int, HcclGetCommName, (void *, char *)) \
    Y(int, HcclGetCommAsyncError, (void *, int32_t *)) Y(const char *, HcclGetErrorString, (int32_t)) \
    Y(int, HcclAllGather, (void *, void *, uint64_t, int32_t, void *, void *)) \
    Y(int, HcclAllReduce, (void *, void *, uint64_t, int32_t, int32_t, void *, void *)) \
    Y(int, HcclReduceScatter, (void *, void *, uint64_t, int32_t, int32_t, void *, void *)) \
    Y(int, HcclBroadcast, (void *, uint64_t, int32_t, uint32_t, void *, void *)) \
    Y(int, HcclScatter, (void *, void *, uint64_t, int32_t, uint32_t, void *, void *)) \
    Y(int, HcclAlltoAll, (const void *, uint64_t, int32_t, const void *, uint64_t, int32_t, void *, void *)) \
    Y(int, HcclAlltoAllV, (const void *, const void *, const void *, int32_t, const void *, const void *, \
                           const void *, int32_t, void *, void *)) \
    Y(int, HcclSend, (void *, uint64_t, int32_t, uint32_t, void *, void *)) \
    Y(int, HcclRecv, (void *, uint64_t, int32_t, uint32_t, void *, void *)) \
    Y(int, HcclBatchSendRecv, (HcclSendRecvItem *, uint32_t, void *, void *)) \
    Y(int, HcclBarrier, (void *, void *))

#define DECLARE(result, name, parameters) static result (*name) parameters __attribute__((unused));
CANN_FUNCTIONS(DECLARE, DECLARE)

static void *acl_library, *hccl_library;

static void *symbol_of(void *library, const char *name) {
    void *address = dlsym(library, name);
    if (address == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return address;
}

static void load_cann(void) {
    acl_library = dlopen("libascendcl.so", RTLD_NOW | RTLD_LOCAL);
    hccl_library = acl_library == NULL ? NULL : dlopen("libhccl.so", RTLD_NOW | RTLD_LOCAL);
    if (hccl_library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
#define FROM_ACL(result, name, parameters) *(void **)&name = symbol_of(acl_library, #name);
#define FROM_HCCL(result, name, parameters) *(void **)&name = symbol_of(hccl_library, #name);
    CANN_FUNCTIONS(FROM_ACL, FROM_HCCL)
}

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

// The call returns `code`.
#define RETURNS(code, call) \
    do { \
        const int expected_ = (code), got_ = (call); \
        if (got_ != expected_) { \
            fprintf(stderr, "%s:%d: %s is %d, not %d: %s\n", __FILE__, __LINE__, #call, got_, expected_, \
                    aclGetRecentErrMsg()); \
            exit(1); \
        } \
    } while (0)
#define OK(call) RETURNS(0, call)

__attribute__((unused)) static void check_text(int line, const char *part) {
    const char *text = aclGetRecentErrMsg();
    if (text != NULL && strstr(text, part) != NULL) return;
    fprintf(stderr, "line %d: \"%s\" expected in \"%s\"\n", line, part, text == NULL ? "(null)" : text);
    exit(1);
}
// The call returns `code` and leaves an error text that holds `part`.
#define REFUSED(code, part, call) \
    do { \
        RETURNS(code, call); \
        check_text(__LINE__, part); \
    } while (0)

__attribute__((unused)) static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// A case is a function; a program runs the one that its argument names.
typedef struct Case { const char *name; void (*run)(void); struct Case *next; } Case;
static Case *cases;
#define CASE(name) \
    static void name(void); \
    __attribute__((constructor)) static void add_##name(void) { \
        static Case entry = {#name, name, NULL}; \
        entry.next = cases; \
        cases = &entry; \
    } \
    static void name(void)

// What the processes of a case share.
typedef struct { HcclRootInfo root; _Atomic int ready, mark, count; } Shared;
static Shared *shared;

// Runs body(rank) in a process of its own, which has not touched CANN before.
__attribute__((unused)) static pid_t start_rank(uint32_t rank, void (*body)(uint32_t)) {
    fflush(NULL);
    const pid_t pid = fork();
    if (pid != 0) return pid;
    char text[16];
    snprintf(text, sizeof text, "%u", rank);
    setenv("RANK", text, 1);
    alarm(60);
    load_cann();
    OK(aclInit(NULL));
    OK(aclrtSetDevice((int32_t)rank));
    body(rank);
    exit(0);
}

__attribute__((unused)) static void join_rank(pid_t pid, int expected_signal) {
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    if (expected_signal != 0) {
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == expected_signal);
    } else {
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

__attribute__((unused)) static void run_ranks(uint32_t ranks, void (*body)(uint32_t)) {
    pid_t pids[16];
    for (uint32_t rank = 0; rank < ranks; ++rank) pids[rank] = start_rank(rank, body);
    for (uint32_t rank = 0; rank < ranks; ++rank) join_rank(pids[rank], 0);
}

// Rank 0 makes the root info, the others wait for it.
__attribute__((unused)) static void share_root(uint32_t rank) {
    if (rank == 0) {
        OK(HcclGetRootInfo(&shared->root));
        shared->ready = 1;
    }
    while (!shared->ready) usleep(100);
}

__attribute__((unused)) static void *join_comm(uint32_t ranks, uint32_t rank) {
    void *comm = NULL;
    share_root(rank);
    OK(HcclCommInitRootInfo(ranks, &shared->root, rank, &comm));
    return comm;
}

__attribute__((unused)) static void *device_buffer(const void *from, size_t bytes) {
    void *buffer = NULL;
    OK(aclrtMalloc(&buffer, bytes, 0));
    if (from != NULL) OK(aclrtMemcpy(buffer, bytes, from, bytes, H2D));
    return buffer;
}

int main(int count, char **arguments) {
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (Case *entry = cases; entry != NULL; entry = entry->next) {
        if (count == 2 && strcmp(entry->name, arguments[1]) == 0) {
            entry->run();
            return 0;
        }
    }
    fprintf(stderr, "usage: %s CASE\n", arguments[0]);
    return 2;
}

#endif
