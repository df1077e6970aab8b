// HCCL between processes: results, and what a communicator is made with.
#include "mock_ranks.h"

#include <pthread.h>

// ---- results ----

#define REDUCE_CASE(type, code, op, expected) \
    { \
        type mine[3] = {(type)(rank + 1), (type)(2 * rank + 3), (type)(7 - (int)rank)}, got[3]; \
        void *in = device_buffer(mine, sizeof mine), *out = device_buffer(NULL, sizeof mine); \
        OK(HcclAllReduce(in, out, 3, code, op, comm, stream)); \
        OK(aclrtSynchronizeStream(stream)); \
        OK(aclrtMemcpy(got, sizeof got, out, sizeof got, D2H)); \
        const type want[3] = expected; \
        CHECK(memcmp(got, want, sizeof got) == 0); \
        /* in place */ \
        OK(HcclAllReduce(in, in, 3, code, op, comm, stream)); \
        OK(aclrtSynchronizeStream(stream)); \
        OK(aclrtMemcpy(got, sizeof got, in, sizeof got, D2H)); \
        CHECK(memcmp(got, want, sizeof got) == 0); \
    }
#define LIST(...) {__VA_ARGS__}

static void reduce_all(uint32_t rank) {
    void *comm = join_comm(3, rank), *stream = stream_of_rank();
#define REDUCE_TYPE(type, code) \
    REDUCE_CASE(type, code, HCCL_SUM, LIST(6, 15, 18)) \
    REDUCE_CASE(type, code, HCCL_PROD, LIST(6, 105, (type)210)) \
    REDUCE_CASE(type, code, HCCL_MAX, LIST(3, 7, 7)) \
    REDUCE_CASE(type, code, HCCL_MIN, LIST(1, 3, 5))
    REDUCE_TYPE(int8_t, HCCL_INT8)
    REDUCE_TYPE(int16_t, HCCL_INT16)
    REDUCE_TYPE(int32_t, HCCL_INT32)
    REDUCE_TYPE(int64_t, HCCL_INT64)
    REDUCE_TYPE(uint8_t, HCCL_UINT8)
    REDUCE_TYPE(uint16_t, HCCL_UINT16)
    REDUCE_TYPE(uint32_t, HCCL_UINT32)
    REDUCE_TYPE(uint64_t, HCCL_UINT64)
    REDUCE_TYPE(float, HCCL_FP32)
    REDUCE_TYPE(double, HCCL_FP64)
    // fp16: 1, 65504 (the largest), 2^-24 (the smallest), 2049 is not there; bf16: 1, 256 + 1 rounds to even.
    const uint16_t half[3] = {0x3c00, rank == 0 ? 0x7bff : 0, rank < 2 ? 0x0001 : 0};
    const uint16_t brain[3] = {0x3f80, rank == 0 ? 0x4380 : rank == 1 ? 0x3f80 : 0, rank == 0 ? 0xc000 : 0};
    const uint16_t half_sum[3] = {0x4200, 0x7bff, 0x0002}, brain_sum[3] = {0x4040, 0x4380, 0xc000};
    uint16_t got[3];
    void *in = device_buffer(half, sizeof half);
    OK(HcclAllReduce(in, in, 3, HCCL_FP16, HCCL_SUM, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtMemcpy(got, sizeof got, in, sizeof got, D2H));
    CHECK(memcmp(got, half_sum, sizeof got) == 0);
    OK(aclrtMemcpy(in, sizeof brain, brain, sizeof brain, H2D));
    OK(HcclAllReduce(in, in, 3, HCCL_BF16, HCCL_SUM, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtMemcpy(got, sizeof got, in, sizeof got, D2H));
    CHECK(memcmp(got, brain_sum, sizeof got) == 0);
    REFUSED(5, "reduction 9", HcclAllReduce(in, in, 3, HCCL_FP16, 9, comm, stream));
    REFUSED(5, "data type 12", HcclAllGather(in, in, 1, 12, comm, stream));
    OK(HcclCommDestroy(comm));
}

CASE(all_reduce) { run_ranks(3, reduce_all); }

// Longer than the communicator's buffer, so that it goes in several parts.
static void reduce_long(uint32_t rank) {
    enum { COUNT = 1000003 };
    void *comm, *stream = stream_of_rank();
    setenv("HCCL_BUFFSIZE", "1", 1);
    comm = join_comm(2, rank);
    float *host = malloc(COUNT * sizeof *host);
    for (int i = 0; i < COUNT; ++i) host[i] = (float)(i % 1000) * (float)(rank + 1);
    void *in = device_buffer(host, COUNT * sizeof *host), *out = device_buffer(NULL, COUNT * sizeof *host);
    OK(HcclAllReduce(in, out, COUNT, HCCL_FP32, HCCL_SUM, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtMemcpy(host, COUNT * sizeof *host, out, COUNT * sizeof *host, D2H));
    for (int i = 0; i < COUNT; ++i) CHECK(host[i] == 3.0f * (float)(i % 1000));
    free(host);
    OK(HcclCommDestroy(comm));
}

CASE(all_reduce_in_parts) { run_ranks(2, reduce_long); }

static void other_collectives(uint32_t rank) {
    enum { RANKS = 3, N = 100 };
    void *comm = join_comm(RANKS, rank), *stream = stream_of_rank();
    void *buffer = filled(N, (int)rank + 1);
    OK(HcclBroadcast(buffer, N, HCCL_UINT8, 2, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    check_bytes(buffer, N, 3);

    char *parts = filled(RANKS * N, 0), *mine = filled(N, 0);
    for (uint32_t r = 0; r < RANKS; ++r) OK(aclrtMemset(parts + r * N, N, (int)(10 * rank + r), N));
    OK(HcclScatter(parts, mine, N, HCCL_UINT8, 1, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    check_bytes(mine, N, (int)(10 + rank));

    OK(HcclReduceScatter(parts, mine, N, HCCL_UINT8, HCCL_SUM, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    check_bytes(mine, N, (int)(30 + 3 * rank));

    char *got = filled(RANKS * N, 0);
    OK(HcclAlltoAll(parts, N, HCCL_UINT8, got, N, HCCL_UINT8, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    for (uint32_t r = 0; r < RANKS; ++r) check_bytes(got + r * N, N, (int)(10 * r + rank));

    // In place: the own part is where it belongs already.
    OK(aclrtMemset(got + rank * N, N, (int)rank + 50, N));
    OK(HcclAllGather(got + rank * N, got, N, HCCL_UINT8, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    for (uint32_t r = 0; r < RANKS; ++r) check_bytes(got + r * N, N, (int)r + 50);

    if (rank == 0) OK(HcclSend(buffer, N, HCCL_UINT8, 1, comm, stream));
    if (rank == 1) OK(HcclRecv(got, N, HCCL_UINT8, 0, comm, stream));
    OK(HcclBarrier(comm, stream));
    OK(aclrtSynchronizeStream(stream));
    if (rank == 1) check_bytes(got, N, 3);
    REFUSED(1, "this rank itself", HcclSend(buffer, N, HCCL_UINT8, rank, comm, stream));
    OK(HcclCommDestroy(comm));
}

CASE(broadcast_scatter_and_others) { run_ranks(3, other_collectives); }

// Memory of all kinds at both ends. Registered memory goes through the bounce buffer, that of aclrtMalloc directly.
static void all_memory(uint32_t rank) {
    enum { BYTES = (3 << 20) + 17 };
    static unsigned char registered_in[BYTES], registered_out[BYTES], host[BYTES];
    void *comm = join_comm(2, rank), *stream = stream_of_rank();
    OK(REGISTER(registered_in, BYTES, (int32_t)rank));
    OK(REGISTER(registered_out, BYTES, (int32_t)rank));
    for (int i = 0; i < BYTES; ++i) host[i] = (unsigned char)(i * 31 + (int)rank);
    memcpy(registered_out, host, BYTES);
    void *outs[] = {registered_out, device_buffer(host, BYTES)};
    void *ins[] = {registered_in, device_buffer(NULL, BYTES)};
    for (int from = 0; from < 2; ++from) {
        for (int to = 0; to < 2; ++to) {
            HcclSendRecvItem items[] = {{HCCL_SEND, outs[from], BYTES, HCCL_UINT8, 1 - rank},
                                        {HCCL_RECV, ins[to], BYTES, HCCL_UINT8, 1 - rank}};
            OK(aclrtMemset(ins[to], BYTES, 0, BYTES));
            OK(HcclBatchSendRecv(items, 2, comm, stream));
            OK(aclrtSynchronizeStream(stream));
            OK(aclrtMemcpy(host, BYTES, ins[to], BYTES, D2H));
            for (int i = 0; i < BYTES; ++i) CHECK(host[i] == (unsigned char)(i * 31 + 1 - (int)rank));
        }
    }
    OK(HcclCommDestroy(comm));
}

CASE(all_kinds_of_memory) { run_ranks(2, all_memory); }

CASE(all_kinds_of_memory_by_bounce) {
    setenv("SEQSHIFT_MOCK_TRANSPORT", "bounce", 1);
    run_ranks(2, all_memory);
}

// Several communicators at once, each with a thread and a stream of its own.
typedef struct { uint32_t rank, ranks; HcclRootInfo *root; } Member;

static void *member(void *argument) {
    enum { ROUNDS = 50, N = 5000 };
    const Member *self = argument;
    void *comm;
    OK(aclrtSetDevice((int32_t)self->rank));
    OK(HcclCommInitRootInfo(self->ranks, self->root, self->rank, &comm));
    void *stream = stream_of_rank();
    char *out = filled(N, 0), *in = filled((size_t)self->ranks * N, 0);
    for (int round = 0; round < ROUNDS; ++round) {
        OK(aclrtMemsetAsync(out, N, round + (int)self->rank, N, stream));
        OK(HcclAllGather(out, in, N, HCCL_UINT8, comm, stream));
        OK(aclrtSynchronizeStream(stream));
        for (uint32_t r = 0; r < self->ranks; ++r) check_bytes(in + r * N, N, round + (int)r);
    }
    OK(HcclCommDestroy(comm));
    OK(aclrtDestroyStream(stream));
    return NULL;
}

static void run_members(Member *members, int count) {
    pthread_t threads[8];
    for (int i = 0; i < count; ++i) CHECK(pthread_create(&threads[i], NULL, member, &members[i]) == 0);
    for (int i = 0; i < count; ++i) CHECK(pthread_join(threads[i], NULL) == 0);
}

// Ranks may be threads of one process.
CASE(threads_as_ranks) {
    HcclRootInfo root;
    start_device(0);
    OK(HcclGetRootInfo(&root));
    Member members[] = {{0, 3, &root}, {1, 3, &root}, {2, 3, &root}};
    run_members(members, 3);
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_COMMUNICATORS) == 0);
}

static HcclRootInfo *roots;

static void two_comms(uint32_t rank) {
    if (rank == 0) {
        OK(HcclGetRootInfo(&roots[0]));
        OK(HcclGetRootInfo(&roots[1]));
        shared->ready = 1;
    }
    while (!shared->ready) usleep(100);
    Member members[] = {{rank, 2, &roots[0]}, {rank, 2, &roots[1]}};
    run_members(members, 2);
}

CASE(two_communicators) {
    roots = mmap(NULL, 2 * sizeof *roots, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    run_ranks(2, two_comms);
}

// ---- configuration ----

typedef struct {
    size_t size;
    uint32_t magic, version;
    uint64_t reserved;
    uint32_t buffer, deterministic;
    char name[128], udi[128];
    uint32_t rest[3];
} Config;

static void configured(uint32_t rank) {
    Config config = {.size = 300, .magic = 0xf0f0f0f0, .version = 5, .buffer = 64, .name = "migration"};
    void *comm = NULL;
    char name[128];
    size_t before, after, total;
    share_root(rank);
    config.magic = 0;
    REFUSED(1, "magic", HcclCommInitRootInfoConfig(2, &shared->root, rank, &config, &comm));
    config.magic = 0xf0f0f0f0, config.size = 24;
    REFUSED(1, "size 24", HcclCommInitRootInfoConfig(2, &shared->root, rank, &config, &comm));
    config.size = 300, config.buffer = 0;
    REFUSED(1, "buffer size is 0", HcclCommInitRootInfoConfig(2, &shared->root, rank, &config, &comm));
    config.buffer = 4096;
    REFUSED(3, "out of memory", HcclCommInitRootInfoConfig(2, &shared->root, rank, &config, &comm));
    config.buffer = 64;
    REFUSED(1, "rank 2 of 2", HcclCommInitRootInfoConfig(2, &shared->root, 2, &config, &comm));
    HcclRootInfo nonsense;
    memset(&nonsense, 7, sizeof nonsense);
    REFUSED(1, "root info", HcclCommInitRootInfoConfig(2, &nonsense, rank, &config, &comm));
    OK(aclrtGetMemInfo(1, &before, &total));
    OK(HcclCommInitRootInfoConfig(2, &shared->root, rank, &config, &comm));
    OK(aclrtGetMemInfo(1, &after, &total));
    CHECK(before - after == 2 * (64 << 20));
    OK(HcclGetCommName(comm, name));
    CHECK(strcmp(name, "migration") == 0);
    void *stream = stream_of_rank();
    OK(HcclBarrier(comm, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(HcclCommDestroy(comm));
    OK(aclrtGetMemInfo(1, &after, &total));
    CHECK(before == after);
    REFUSED(1, "not a live communicator", HcclCommDestroy(comm));
    REFUSED(1, "not a live communicator", HcclBarrier(comm, stream));
}

CASE(configuration) { run_ranks(2, configured); }

static void disagree(uint32_t rank) {
    void *comm;
    share_root(rank);
    if (rank == 0) {
        REFUSED(9, "1 of 2 ranks", HcclCommInitRootInfo(2, &shared->root, 0, &comm));
        return;
    }
    while (calls_of("HcclCommInitRootInfo", 0) == 0) usleep(100);
    usleep(50000);  // rank 0 is in the call; when it has taken its place cannot be asked
    REFUSED(1, "the ranks disagree: 3", HcclCommInitRootInfo(3, &shared->root, 1, &comm));
    REFUSED(1, "rank 0 is taken", HcclCommInitRootInfo(2, &shared->root, 0, &comm));
}

CASE(ranks_that_disagree) {
    control()->hcclConnectTimeoutMs = 1000;
    run_ranks(2, disagree);
}
