// A program that knows only CANN's names runs unchanged on the mock: one process with streams and events, and three
// processes with collectives.
#include "cann.h"

enum { RANKS = 3 };

CASE(memcpy_event_stream) {
    enum { BYTES = 1 << 20 };
    void *first, *second, *event, *pinned, *a, *b;
    load_cann();
    OK(aclInit(NULL));
    OK(aclrtSetDevice(0));
    OK(aclrtCreateStream(&first));
    OK(aclrtCreateStreamWithConfig(&second, 0, 0x3));
    OK(aclrtCreateEventExWithFlag(&event, 0x1));
    OK(aclrtMallocHost(&pinned, BYTES));
    OK(aclrtMalloc(&a, BYTES, 0));
    OK(aclrtMalloc(&b, BYTES, 0));
    for (int i = 0; i < BYTES; ++i) ((unsigned char *)pinned)[i] = (unsigned char)(i * 7 + 3);
    OK(aclrtMemcpyAsync(a, BYTES, pinned, BYTES, H2D, first));
    OK(aclrtRecordEvent(event, first));
    OK(aclrtStreamWaitEvent(second, event));
    OK(aclrtMemcpyAsync(b, BYTES, a, BYTES, D2D, second));
    OK(aclrtSynchronizeStreamWithTimeout(second, 10000));
    memset(pinned, 0, BYTES);
    OK(aclrtMemcpyAsync(pinned, BYTES, b, BYTES, D2H, second));
    OK(aclrtSynchronizeStream(second));
    for (int i = 0; i < BYTES; ++i) CHECK(((unsigned char *)pinned)[i] == (unsigned char)(i * 7 + 3));
    int32_t status = -1;
    OK(aclrtQueryEventStatus(event, &status));
    CHECK(status == 1);
    OK(aclrtFree(a));
    OK(aclrtFree(b));
    OK(aclrtFreeHost(pinned));
    OK(aclrtDestroyEvent(event));
    OK(aclrtDestroyStream(first));
    OK(aclrtDestroyStream(second));
    OK(aclrtResetDevice(0));
    OK(aclFinalize());
}

static void gather(uint32_t rank) {
    enum { COUNT = 1000 };
    static int32_t mine[COUNT], all[RANKS * COUNT];
    void *stream, *comm = join_comm(RANKS, rank);
    uint32_t ranks = 0, self = 9;
    OK(HcclGetRankSize(comm, &ranks));
    OK(HcclGetRankId(comm, &self));
    CHECK(ranks == RANKS && self == rank);
    OK(aclrtCreateStream(&stream));
    for (int i = 0; i < COUNT; ++i) mine[i] = (int32_t)(rank * 100000) + i;
    void *send = device_buffer(mine, sizeof mine), *recv = device_buffer(NULL, sizeof all);
    OK(HcclAllGather(send, recv, COUNT, HCCL_INT32, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtMemcpy(all, sizeof all, recv, sizeof all, D2H));
    for (int r = 0; r < RANKS; ++r) {
        for (int i = 0; i < COUNT; ++i) CHECK(all[r * COUNT + i] == r * 100000 + i);
    }
    OK(HcclCommDestroy(comm));
}

CASE(all_gather) { run_ranks(RANKS, gather); }

// Rank s sends (s + 1) * (r + 2) elements to rank r, except that rank 1 has nothing for rank 2.
static uint64_t amount(uint32_t from, uint32_t to) { return from == 1 && to == 2 ? 0 : (from + 1) * (to + 2); }

static void exchange(uint32_t rank) {
    uint64_t sends[RANKS], receives[RANKS], send_at[RANKS], receive_at[RANKS], sent = 0, received = 0;
    static int64_t out[64], in[64];
    void *stream, *comm = join_comm(RANKS, rank);
    OK(aclrtCreateStream(&stream));
    for (uint32_t r = 0; r < RANKS; ++r) {
        sends[r] = amount(rank, r);
        send_at[r] = sent;
        for (uint64_t i = 0; i < sends[r]; ++i) out[sent++] = (int64_t)(rank * 10000 + r * 100 + i);
        receives[r] = amount(r, rank);
        receive_at[r] = received;
        received += receives[r];
    }
    void *send = device_buffer(out, sizeof out), *recv = device_buffer(in, sizeof in);
    OK(HcclAlltoAllV(send, sends, send_at, HCCL_INT64, recv, receives, receive_at, HCCL_INT64, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtMemcpy(in, sizeof in, recv, sizeof in, D2H));
    for (uint32_t r = 0; r < RANKS; ++r) {
        for (uint64_t i = 0; i < receives[r]; ++i) {
            CHECK(in[receive_at[r] + i] == (int64_t)(r * 10000 + rank * 100 + i));
        }
    }
    for (uint64_t i = received; i < 64; ++i) CHECK(in[i] == 0);
    OK(HcclCommDestroy(comm));
}

CASE(all_to_all_v) { run_ranks(RANKS, exchange); }

// Everybody sends 2 messages of different length to everybody, itself included.
static void batch(uint32_t rank) {
    enum { LONG = 3 << 20, SHORT = 100 };
    HcclSendRecvItem items[4 * RANKS];
    static unsigned char data[LONG];
    uint32_t count = 0;
    void *stream, *comm = join_comm(RANKS, rank);
    OK(aclrtCreateStream(&stream));
    void *long_in[RANKS], *short_in[RANKS];
    for (uint32_t r = 0; r < RANKS; ++r) {
        memset(data, (int)(rank * 16 + r), sizeof data);
        void *long_out = device_buffer(data, LONG);
        memset(data, (int)(128 + rank * 16 + r), sizeof data);
        void *short_out = device_buffer(data, SHORT);
        long_in[r] = device_buffer(NULL, LONG);
        short_in[r] = device_buffer(NULL, SHORT);
        items[count++] = (HcclSendRecvItem){HCCL_SEND, long_out, LONG, HCCL_UINT8, r};
        items[count++] = (HcclSendRecvItem){HCCL_RECV, long_in[r], LONG, HCCL_UINT8, r};
        items[count++] = (HcclSendRecvItem){HCCL_SEND, short_out, SHORT, HCCL_UINT8, r};
        items[count++] = (HcclSendRecvItem){HCCL_RECV, short_in[r], SHORT, HCCL_UINT8, r};
    }
    OK(HcclBatchSendRecv(items, count, comm, stream));
    OK(aclrtSynchronizeStream(stream));
    for (uint32_t r = 0; r < RANKS; ++r) {
        OK(aclrtMemcpy(data, LONG, long_in[r], LONG, D2H));
        for (int i = 0; i < LONG; ++i) CHECK(data[i] == r * 16 + rank);
        OK(aclrtMemcpy(data, SHORT, short_in[r], SHORT, D2H));
        for (int i = 0; i < SHORT; ++i) CHECK(data[i] == 128 + r * 16 + rank);
    }
    OK(HcclBarrier(comm, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(HcclCommDestroy(comm));
}

CASE(batched_send_recv) { run_ranks(RANKS, batch); }
