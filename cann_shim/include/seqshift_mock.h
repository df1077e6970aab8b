/*
 * The control segment of the CPU mock of CANN: counters and fault rules in shared memory.
 *
 * A file named by SEQSHIFT_MOCK_CONTROL is mapped MAP_SHARED by every process that loads the mock, and by whoever
 * steers it. A missing or shorter file is created and filled with zeros, which is the valid initial state; the mock
 * then writes magic, version and size. Without the variable each process has a segment of its own, reached through
 * seqshiftMockControl().
 *
 * To arm a rule: fill a free one, then store 1 in `armed` as the last write. To disarm it: store 0 in `armed`; do not
 * refill a rule while calls may still be looking at it, take another one.
 *
 * All fields are naturally aligned and little-endian on every machine CANN runs on. Valid as C11 and as C++20.
 */
#ifndef SEQSHIFT_MOCK_H
#define SEQSHIFT_MOCK_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define SEQSHIFT_MOCK_ASSERT(condition, text) static_assert(condition, text)
extern "C" {
#else
#define SEQSHIFT_MOCK_ASSERT(condition, text) _Static_assert(condition, text)
#endif

#define SEQSHIFT_MOCK_MAGIC 0x4b434f4d51455353ULL
#define SEQSHIFT_MOCK_VERSION 1
#define SEQSHIFT_MOCK_NAME_BYTES 56
#define SEQSHIFT_MOCK_SYMBOLS 160
#define SEQSHIFT_MOCK_RULES 64
/* Rank r counts in slot r; processes without a rank, or with one that is too large, count in the last slot. */
#define SEQSHIFT_MOCK_RANKS 64
#define SEQSHIFT_MOCK_ANY_RANK (-1)
#define SEQSHIFT_MOCK_ANY_PID 0

#define SEQSHIFT_MOCK_NOTHING 0
/* The call does nothing and returns `value`. */
#define SEQSHIFT_MOCK_RETURN 1
/* The call sleeps `value` ms on the calling thread, then goes on. */
#define SEQSHIFT_MOCK_DELAY 2
/* The stream task of the call (the call itself, if it has none) waits until `released`, at most `value` ms; 0: for
 * ever. Then it goes on. Aborting the stream ends the wait. */
#define SEQSHIFT_MOCK_STALL 3
/* The calling process is killed (SIGKILL). */
#define SEQSHIFT_MOCK_KILL 4
/* The call runs, and the byte at `value` modulo the length is inverted in what it has written. */
#define SEQSHIFT_MOCK_CORRUPT 5
/* The stream task of the call is not run and fails with the error `value`; a call without a task returns `value`. */
#define SEQSHIFT_MOCK_FAIL_TASK 6
/* As SEQSHIFT_MOCK_KILL, at the moment when the stream reaches the task of the call. */
#define SEQSHIFT_MOCK_KILL_IN_TASK 7

typedef struct SeqshiftMockCounter {
    char name[SEQSHIFT_MOCK_NAME_BYTES]; /* the exported symbol, NUL-terminated */
    uint32_t state;                      /* 0 free, 1 being claimed, 2 in use */
    uint32_t reserved;
    uint64_t calls[SEQSHIFT_MOCK_RANKS];
} SeqshiftMockCounter;
SEQSHIFT_MOCK_ASSERT(sizeof(SeqshiftMockCounter) == 576, "SeqshiftMockCounter is 576 bytes");

typedef struct SeqshiftMockRule {
    char symbol[SEQSHIFT_MOCK_NAME_BYTES]; /* a name, or a prefix that ends in '*' */
    uint32_t armed;
    int32_t rank;      /* SEQSHIFT_MOCK_ANY_RANK: every rank */
    int32_t pid;       /* SEQSHIFT_MOCK_ANY_PID: every process */
    uint32_t action;   /* SEQSHIFT_MOCK_* */
    uint64_t first;    /* the first matching call that is hit, from 1; 0 means 1 */
    uint64_t count;    /* how many calls are hit, 0: all that follow */
    int64_t value;
    uint64_t seen;     /* written by the mock: matching calls since the rule was filled */
    uint64_t hits;     /* written by the mock: calls that were hit */
    uint32_t released; /* 1 ends all stalls of this rule */
    uint32_t stalled;  /* written by the mock: tasks that are stalled now */
} SeqshiftMockRule;
SEQSHIFT_MOCK_ASSERT(sizeof(SeqshiftMockRule) == 120, "SeqshiftMockRule is 120 bytes");
SEQSHIFT_MOCK_ASSERT(offsetof(SeqshiftMockRule, first) == 72, "SeqshiftMockRule.first is at 72");
SEQSHIFT_MOCK_ASSERT(offsetof(SeqshiftMockRule, stalled) == 116, "SeqshiftMockRule.stalled is at 116");

typedef struct SeqshiftMockControl {
    uint64_t magic;
    uint32_t version;
    uint32_t bytes;                                 /* sizeof(SeqshiftMockControl) */
    uint64_t hcclExecTimeoutMs;                     /* 0: HCCL_EXEC_TIMEOUT (seconds), else 1836 s */
    uint64_t hcclConnectTimeoutMs;                  /* 0: HCCL_CONNECT_TIMEOUT (seconds), else 120 s */
    uint64_t deviceMemory[SEQSHIFT_MOCK_RANKS];     /* bytes per device, by rank slot; 0: the environment decides */
    SeqshiftMockRule rules[SEQSHIFT_MOCK_RULES];
    SeqshiftMockCounter counters[SEQSHIFT_MOCK_SYMBOLS];
} SeqshiftMockControl;
SEQSHIFT_MOCK_ASSERT(offsetof(SeqshiftMockControl, deviceMemory) == 32, "deviceMemory is at 32");
SEQSHIFT_MOCK_ASSERT(offsetof(SeqshiftMockControl, rules) == 544, "rules are at 544");
SEQSHIFT_MOCK_ASSERT(offsetof(SeqshiftMockControl, counters) == 8224, "counters are at 8224");
SEQSHIFT_MOCK_ASSERT(sizeof(SeqshiftMockControl) == 100384, "SeqshiftMockControl is 100384 bytes");

/* What seqshiftMockLive counts in the calling process. */
#define SEQSHIFT_MOCK_LIVE_DEVICE_BLOCKS 0 /* of aclrtMalloc */
#define SEQSHIFT_MOCK_LIVE_DEVICE_BYTES 1
#define SEQSHIFT_MOCK_LIVE_REGISTERED 2 /* ranges of seqshiftMockRegisterDeviceMemory */
#define SEQSHIFT_MOCK_LIVE_HOST_BLOCKS 3 /* of aclrtMallocHost and aclrtHostRegister */
#define SEQSHIFT_MOCK_LIVE_STREAMS 4
#define SEQSHIFT_MOCK_LIVE_EVENTS 5
#define SEQSHIFT_MOCK_LIVE_COMMUNICATORS 6

#ifdef SEQSHIFT_DECLARE_CANN
#define SEQSHIFT_MOCK_EXPORT __attribute__((visibility("default")))
/* The segment of this process; never NULL. */
SEQSHIFT_MOCK_EXPORT SeqshiftMockControl *seqshiftMockControl(void);
/* Sets the rank that rules and counters know this process by; otherwise it is read from RANK. */
SEQSHIFT_MOCK_EXPORT void seqshiftMockSetRank(int32_t rank);
/* A count of SEQSHIFT_MOCK_LIVE_*, -1 for an unknown one. */
SEQSHIFT_MOCK_EXPORT int64_t seqshiftMockLive(int32_t what);
#endif

#ifdef __cplusplus
}
#endif

#endif /* SEQSHIFT_MOCK_H */
