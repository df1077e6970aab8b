// HCCL between processes: results, pairing, time limits, peers that die, and nothing left behind.
#include "mock_control.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>

static void *stream_of_rank(void) {
    void *stream;
    OK(aclrtCreateStream(&stream));
    return stream;
}

static void check_bytes(const void *device, size_t bytes, int value) {
    unsigned char *host = malloc(bytes);
    OK(aclrtMemcpy(host, bytes, device, bytes, D2H));
    for (size_t i = 0; i < bytes; ++i) CHECK(host[i] == (unsigned char)value);
    free(host);
}

static void *filled(size_t bytes, int value) {
    void *buffer = device_buffer(NULL, bytes);
    OK(aclrtMemset(buffer, bytes, value, bytes));
    return buffer;
}

static void meet(int ranks) {
    ++shared->count;
    while (shared->count < ranks) usleep(100);
}

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

// ---- pairing ----

static void unpaired(uint32_t rank) {
    void *comm = join_comm(2, rank), *stream = stream_of_rank();
    void *buffer = filled(64, 1), *other = filled(64, 2);
    int32_t error = -1;
    OK(HcclGetCommAsyncError(comm, &error));
    CHECK(error == 0);
    // Rank 0 sends twice, rank 1 receives once.
    HcclSendRecvItem sends[] = {{HCCL_SEND, buffer, 64, HCCL_UINT8, 1}, {HCCL_SEND, buffer, 64, HCCL_UINT8, 1}};
    HcclSendRecvItem receive = {HCCL_RECV, other, 64, HCCL_UINT8, 0};
    const double start = seconds();
    if (rank == 0) {
        OK(HcclBatchSendRecv(sends, 2, comm, stream));
        REFUSED(107020, "pending: 1 to and 0 from rank 1", aclrtSynchronizeStream(stream));
        CHECK(seconds() - start >= 0.3);
        OK(HcclGetCommAsyncError(comm, &error));
        CHECK(error == 9);
        REFUSED(9, "earlier operation", HcclBarrier(comm, stream));
        CHECK(strstr(HcclGetErrorString(error), "timeout") != NULL);
    } else {
        OK(HcclBatchSendRecv(&receive, 1, comm, stream));
        OK(aclrtSynchronizeStream(stream));
        check_bytes(other, 64, 1);
    }
    meet(2);
    OK(HcclCommDestroy(comm));
}

CASE(unpaired_messages_time_out) {
    control()->hcclExecTimeoutMs = 300;
    run_ranks(2, unpaired);
}

static void unpaired_self(uint32_t rank) {
    void *comm = join_comm(1, rank), *stream = stream_of_rank();
    void *buffer = filled(64, 1);
    HcclSendRecvItem send = {HCCL_SEND, buffer, 64, HCCL_UINT8, 0};
    OK(HcclBatchSendRecv(&send, 1, comm, stream));
    REFUSED(107020, "pending: 1 to", aclrtSynchronizeStream(stream));
}

CASE(unpaired_self_send_times_out) {
    setenv("HCCL_EXEC_TIMEOUT", "1", 1);
    run_ranks(1, unpaired_self);
}

// Two blocking sends towards each other never meet a receive.
static void head_on(uint32_t rank) {
    void *comm = join_comm(2, rank), *stream = stream_of_rank();
    void *buffer = filled(64, 1);
    OK(HcclSend(buffer, 64, HCCL_UINT8, 1 - rank, comm, stream));
    OK(HcclRecv(buffer, 64, HCCL_UINT8, 1 - rank, comm, stream));
    RETURNS(107020, aclrtSynchronizeStream(stream));
    meet(2);
}

CASE(sends_head_on_time_out) {
    control()->hcclExecTimeoutMs = 200;
    run_ranks(2, head_on);
}

static void other_length(uint32_t rank) {
    void *comm = join_comm(2, rank), *stream = stream_of_rank();
    void *buffer = filled(64, 1);
    int32_t error = -1;
    HcclSendRecvItem item = {(int32_t)rank, buffer, 64 - 8 * rank, HCCL_UINT8, 1 - rank};
    OK(HcclBatchSendRecv(&item, 1, comm, stream));
    REFUSED(507000, rank == 0 ? "does not expect the 64 bytes" : "56 bytes", aclrtSynchronizeStream(stream));
    OK(HcclGetCommAsyncError(comm, &error));
    CHECK(error == 1);
    meet(2);
}

CASE(lengths_must_agree) { run_ranks(2, other_length); }

static void other_operation(uint32_t rank) {
    void *comm = join_comm(2, rank), *stream = stream_of_rank();
    void *buffer = filled(64, 1), *both = filled(128, 1);
    if (rank == 0) OK(HcclAllGather(buffer, both, 64, HCCL_UINT8, comm, stream));
    if (rank == 1) OK(HcclAllReduce(buffer, buffer, 64, HCCL_UINT8, HCCL_SUM, comm, stream));
    RETURNS(507000, aclrtSynchronizeStream(stream));
    meet(2);
}

CASE(operations_must_agree) { run_ranks(2, other_operation); }

static void bad_arguments(uint32_t rank) {
    void *comm = join_comm(2, rank), *stream = stream_of_rank(), *elsewhere;
    char host[64];
    char *buffer = filled(64, 1);
    HcclSendRecvItem items[] = {{HCCL_SEND, buffer, 64, HCCL_UINT8, 1 - rank}, {HCCL_RECV, host, 64, HCCL_UINT8, 1 - rank}};
    REFUSED(1, "item 1: ", HcclBatchSendRecv(items, 2, comm, stream));
    items[1].buf = NULL;
    REFUSED(2, "item 1: ", HcclBatchSendRecv(items, 2, comm, stream));
    items[1].buf = buffer, items[1].remoteRank = 2;
    REFUSED(1, "rank 2 of 2", HcclBatchSendRecv(items, 2, comm, stream));
    items[1].remoteRank = 1, items[1].count = 65;
    REFUSED(1, "out of range", HcclBatchSendRecv(items, 2, comm, stream));
    REFUSED(1, "no items", HcclBatchSendRecv(items, 0, comm, stream));
    REFUSED(1, "out of range", HcclAllGather(buffer, buffer, 64, HCCL_UINT8, comm, stream));
    OK(aclrtFree(buffer));
    REFUSED(1, "use after free", HcclAllGather(buffer, host, 1, HCCL_UINT8, comm, stream));
    REFUSED(2, "stream is null", HcclBarrier(comm, NULL));
    OK(aclrtSetDevice((int32_t)rank + 2));
    OK(aclrtCreateStream(&elsewhere));
    REFUSED(1, "the stream is of device", HcclBarrier(comm, elsewhere));
    // None of these has touched the communicator.
    OK(aclrtSetDevice((int32_t)rank));
    OK(HcclBarrier(comm, stream));
    OK(aclrtSynchronizeStream(stream));
}

CASE(arguments_are_checked) { run_ranks(2, bad_arguments); }

// ---- peers that die, leave or stall ----

static void remote_error_within(void *comm, void *stream, double limit) {
    const double start = seconds();
    RETURNS(507056, aclrtSynchronizeStream(stream));
    CHECK(seconds() - start < limit);
    int32_t error = -1;
    OK(HcclGetCommAsyncError(comm, &error));
    CHECK(error == 21);
}

// Nothing that this process has mapped has a name that would outlive it.
static void check_nothing_is_named(void) {
    char line[1024];
    int anonymous = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps != NULL);
    while (fgets(line, sizeof line, maps) != NULL) {
        CHECK(strstr(line, "/dev/shm/") == NULL && strstr(line, "/tmp/seqshift") == NULL);
        anonymous += strstr(line, "/memfd:seqshift-mock-hccl") != NULL;
    }
    CHECK(anonymous == 1);
    fclose(maps);
}

static void dies(uint32_t rank) {
    enum { BYTES = 8 << 20 };
    void *comm = join_comm(3, rank), *stream = stream_of_rank();
    void *buffer = filled(BYTES, (int)rank), *all = filled(3 * BYTES, 0);
    OK(HcclAllGather(buffer, all, BYTES, HCCL_UINT8, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    check_nothing_is_named();
    OK(HcclAllGather(buffer, all, BYTES, HCCL_UINT8, comm, stream));
    if (rank == 1) CHECK(aclrtSynchronizeStream(stream) != 0 && "this process should be dead");
    // The killed process stays a zombie until the test's end: that must not count as alive.
    remote_error_within(comm, stream, 5);
    OK(HcclCommDestroy(comm));
}

CASE(killed_peer_is_noticed_and_leaves_nothing) {
    arm((SeqshiftMockRule){.symbol = "HcclAllGather", .rank = 1, .first = 2, .action = SEQSHIFT_MOCK_KILL_IN_TASK});
    pid_t pids[3];
    for (uint32_t rank = 0; rank < 3; ++rank) pids[rank] = start_rank(rank, dies);
    join_rank(pids[0], 0);
    join_rank(pids[2], 0);
    join_rank(pids[1], SIGKILL);
}

static void dies_before_all_joined(uint32_t rank) {
    void *comm;
    share_root(rank);
    if (rank == 0) ++shared->count;
    if (rank == 1) {
        while (calls_of("HcclCommInitRootInfo", 0) == 0) usleep(100);
    }
    const double start = seconds();
    REFUSED(21, "is dead", HcclCommInitRootInfo(3, &shared->root, rank, &comm));
    CHECK(seconds() - start < 10);
}

// Rank 2 never comes, and rank 1 is killed while it waits.
CASE(killed_peer_is_noticed_while_joining) {
    const pid_t first = start_rank(0, dies_before_all_joined);
    const pid_t second = start_rank(1, dies_before_all_joined);
    while (calls_of("HcclCommInitRootInfo", 1) == 0) usleep(100);
    usleep(200000);  // until both have taken their places, which cannot be asked
    CHECK(kill(second, SIGKILL) == 0);
    join_rank(first, 0);
    join_rank(second, SIGKILL);
}

static void leaves(uint32_t rank) {
    void *comm = join_comm(2, rank), *stream = stream_of_rank();
    void *buffer = filled(64, 1);
    if (rank == 1) {
        OK(HcclCommDestroy(comm));
        meet(2);
        return;
    }
    OK(HcclRecv(buffer, 64, HCCL_UINT8, 1, comm, stream));
    remote_error_within(comm, stream, 5);
    meet(2);
}

CASE(peer_that_left_is_noticed) { run_ranks(2, leaves); }

// The last message of a peer that then leaves or exits is still received.
static void last_message(uint32_t rank) {
    enum { BYTES = 1 << 20 };
    void *comm = join_comm(2, rank), *stream = stream_of_rank();
    void *buffer = filled(BYTES, 1 + (int)rank);
    for (int i = 0; i < 20; ++i) {
        if (rank == 1) OK(HcclSend(buffer, BYTES, HCCL_UINT8, 0, comm, stream));
        if (rank == 0) OK(HcclRecv(buffer, BYTES, HCCL_UINT8, 1, comm, stream));
    }
    OK(HcclBarrier(comm, stream));
    OK(aclrtSynchronizeStream(stream));
    if (rank == 0) check_bytes(buffer, BYTES, 2);
    OK(HcclCommDestroy(comm));
}

CASE(last_message_of_a_peer_that_leaves) { run_ranks(2, last_message); }

// A slow link: the others wait, and nothing is lost.
static void slow(uint32_t rank) {
    void *comm = join_comm(2, rank), *stream = stream_of_rank();
    void *buffer = filled(64, (int)rank), *all = filled(128, 9);
    const double start = seconds();
    OK(HcclAllGather(buffer, all, 64, HCCL_UINT8, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    CHECK(rank == 0 || seconds() - start >= 0.2);
    check_bytes(all, 64, 0);
    check_bytes((char *)all + 64, 64, 1);
    // The next one is damaged in rank 0 only.
    OK(HcclAllGather(buffer, all, 64, HCCL_UINT8, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    unsigned char byte;
    OK(aclrtMemcpy(&byte, 1, (char *)all + 70, 1, D2H));
    CHECK(byte == (rank == 0 ? 0xfe : 1));
    OK(HcclCommDestroy(comm));
}

CASE(slow_and_damaged_links) {
    arm((SeqshiftMockRule){
        .symbol = "HcclAllGather", .rank = 1, .action = SEQSHIFT_MOCK_STALL, .value = 200, .count = 1});
    arm((SeqshiftMockRule){
        .symbol = "HcclAllGather", .rank = 0, .action = SEQSHIFT_MOCK_CORRUPT, .value = 70, .first = 2});
    run_ranks(2, slow);
}

// A stalled rank: the other one gives up by itself, aborts, destroys, and is done.
static void stalled(uint32_t rank) {
    void *comm = join_comm(2, rank), *stream = stream_of_rank();
    int32_t error = 0;
    OK(HcclBarrier(comm, stream));
    RETURNS(507046, aclrtSynchronizeStreamWithTimeout(stream, 50));
    meet(2);
    if (rank == 0) {
        OK(aclrtStreamAbort(stream));
        OK(HcclGetCommAsyncError(comm, &error));
        CHECK(error == 7);
        REFUSED(7, "earlier operation", HcclBarrier(comm, stream));
    }
    meet(4);
    OK(HcclCommDestroy(comm));
    OK(aclrtDestroyStreamForce(stream));
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_COMMUNICATORS) == 0 && LIVE(SEQSHIFT_MOCK_LIVE_STREAMS) == 0);
}

CASE(stalled_peer_can_be_abandoned) {
    arm((SeqshiftMockRule){.symbol = "HcclBarrier", .rank = 1, .action = SEQSHIFT_MOCK_STALL});
    run_ranks(2, stalled);
}

// Operations of one communicator run in issue order, whatever streams they are in.
static void two_streams(uint32_t rank) {
    void *comm = join_comm(2, rank), *first = stream_of_rank(), *second = stream_of_rank();
    char *buffer = filled(64, (int)rank), *a = filled(128, 9), *b = filled(128, 9);
    OK(HcclAllGather(buffer, a, 64, HCCL_UINT8, comm, first));
    OK(HcclAllGather(a, b, 64, HCCL_UINT8, comm, second));
    OK(aclrtSynchronizeStream(second));
    check_bytes(b, 128, 0);
    OK(aclrtSynchronizeStream(first));
    OK(HcclCommDestroy(comm));
}

CASE(issue_order_over_streams) {
    arm((SeqshiftMockRule){
        .symbol = "HcclAllGather", .rank = 0, .action = SEQSHIFT_MOCK_STALL, .value = 100, .count = 1});
    run_ranks(2, two_streams);
}

// No descriptor, thread or mapping is left after a communicator is gone.
static int open_descriptors(void) {
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    CHECK(directory != NULL);
    while (readdir(directory) != NULL) ++count;
    closedir(directory);
    return count;
}

static void again(uint32_t rank) {
    int before = 0;
    void *stream = stream_of_rank();
    void *buffer = filled(64, 1), *all = filled(128, 1);
    for (int round = 0; round < 20; ++round) {
        if (round == 1) before = open_descriptors();
        shared->ready = 0;
        meet(2 * (2 * round + 1));
        void *comm = join_comm(2, rank);
        OK(HcclAllGather(buffer, all, 64, HCCL_UINT8, comm, stream));
        OK(aclrtSynchronizeStream(stream));
        OK(HcclCommDestroy(comm));
        meet(2 * (2 * round + 2));
    }
    CHECK(open_descriptors() == before);
}

CASE(communicators_come_and_go) { run_ranks(2, again); }

// A rank is killed at any moment of a transfer, over and over; the other one notices, whatever the memory.
static int on_registered;

static void transfer_until_killed(uint32_t rank) {
    enum { BYTES = 2 << 20 };
    static char tensor[3 * BYTES];
    void *comm = join_comm(2, rank), *stream = stream_of_rank();
    char *buffer = tensor;
    if (on_registered) {
        OK(REGISTER(tensor, sizeof tensor, (int32_t)rank));
    } else {
        buffer = device_buffer(NULL, 3 * BYTES);
    }
    int code = 0;
    shared->count = 1;
    for (int i = 0; code == 0; ++i) {
        code = HcclAllGather(buffer, buffer + BYTES, BYTES, HCCL_UINT8, comm, stream);
        if (code == 0 && i % 4 == 3) code = aclrtSynchronizeStreamWithTimeout(stream, 20000);
    }
    CHECK(rank == 0 && (code == 507056 || code == 21));
    RETURNS(507056, aclrtSynchronizeStream(stream));
    OK(HcclCommDestroy(comm));
}

static void kill_in_transfers(void) {
    srand(1311);
    printf("seed 1311\n");
    for (int round = 0; round < 8; ++round) {
        shared->ready = shared->count = 0;
        const pid_t first = start_rank(0, transfer_until_killed), second = start_rank(1, transfer_until_killed);
        while (shared->count == 0) usleep(100);
        usleep((useconds_t)(rand() % 20000));
        CHECK(kill(second, SIGKILL) == 0);
        join_rank(first, 0);
        join_rank(second, SIGKILL);
    }
}

CASE(killed_in_mid_transfer) { kill_in_transfers(); }

CASE(killed_in_mid_transfer_by_bounce) {
    on_registered = 1;
    kill_in_transfers();
}

// A buffer that is freed while its message is under way is an error, even if the bytes have left already.
static void frees_too_early(uint32_t rank) {
    void *comm = join_comm(2, rank), *stream = stream_of_rank();
    void *buffer = filled(64, 1);
    if (rank == 1) {
        meet(2);
        OK(HcclRecv(buffer, 64, HCCL_UINT8, 0, comm, stream));
        const int code = aclrtSynchronizeStream(stream);
        CHECK(code == 0 || code == 107020);
    } else {
        OK(HcclSend(buffer, 64, HCCL_UINT8, 1, comm, stream));
        OK(aclrtFree(buffer));
        meet(2);
        REFUSED(507000, "use after free", aclrtSynchronizeStream(stream));
    }
    meet(4);
}

CASE(buffer_freed_under_way) {
    control()->hcclExecTimeoutMs = 2000;
    run_ranks(2, frees_too_early);
}

static void alone(uint32_t rank) {
    void *comm;
    share_root(rank);
    const double start = seconds();
    REFUSED(9, "1 of 2 ranks came in 1000 ms", HcclCommInitRootInfo(2, &shared->root, rank, &comm));
    CHECK(seconds() - start >= 1);
}

CASE(connect_timeout_from_environment) {
    setenv("HCCL_CONNECT_TIMEOUT", "1", 1);
    run_ranks(1, alone);
}
