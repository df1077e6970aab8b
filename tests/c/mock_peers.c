// HCCL between processes: pairing, time limits, peers that stall, leave or are killed, and nothing left behind.
#include "mock_ranks.h"

#include <dirent.h>
#include <signal.h>

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
