// How fast 16 MiB go from one process to another, beside a plain memcpy of as much; both printed in GB/s.
#include "mock_control.h"

enum { BYTES = 16 << 20, ROUNDS = 20 };

static double memcpy_rate(void) {
    char *from = malloc(BYTES), *to = malloc(BYTES);
    double best = 1e9;
    memset(from, 1, BYTES);
    memset(to, 2, BYTES);
    for (int i = 0; i < ROUNDS; ++i) {
        const double start = seconds();
        memcpy(to, from, BYTES);
        __asm__ volatile("" : : "r"(to) : "memory");
        const double time = seconds() - start;
        if (time < best) best = time;
    }
    free(from);
    free(to);
    return BYTES / best / 1e9;
}

static int registered;

static void send_and_receive(uint32_t rank) {
    static char tensor[BYTES];
    void *comm = join_comm(2, rank), *stream, *buffer = tensor;
    OK(aclrtCreateStream(&stream));
    if (registered) {
        memset(tensor, 1, BYTES);
        OK(REGISTER(tensor, BYTES, (int32_t)rank));
    } else {
        buffer = device_buffer(NULL, BYTES);
    }
    const double plain = memcpy_rate();
    double best = 1e9;
    for (int i = 0; i < ROUNDS; ++i) {
        OK(HcclBarrier(comm, stream));
        OK(aclrtSynchronizeStream(stream));
        const double start = seconds();
        if (rank == 0) OK(HcclSend(buffer, BYTES, HCCL_UINT8, 1, comm, stream));
        if (rank == 1) OK(HcclRecv(buffer, BYTES, HCCL_UINT8, 0, comm, stream));
        OK(aclrtSynchronizeStream(stream));
        const double time = seconds() - start;
        if (time < best) best = time;
    }
    if (rank == 1) printf("mock HCCL, 16 MiB, %s: %.2f GB/s; memcpy: %.2f GB/s\n", registered ? "registered memory" : "aclrtMalloc",
                           BYTES / best / 1e9, plain);
    OK(HcclCommDestroy(comm));
}

static void latency(uint32_t rank) {
    void *comm = join_comm(2, rank), *stream, *out = device_buffer(NULL, 64), *in = device_buffer(NULL, 128);
    OK(aclrtCreateStream(&stream));
    const double start = seconds();
    for (int i = 0; i < 1000; ++i) {
        OK(HcclAllGather(out, in, 64, HCCL_UINT8, comm, stream));
        OK(aclrtSynchronizeStream(stream));
    }
    if (rank == 1) printf("mock HCCL, all-gather of 64 bytes: %.1f us\n", (seconds() - start) * 1e3);
    OK(HcclCommDestroy(comm));
}

CASE(device_memory) { run_ranks(2, send_and_receive); }

CASE(registered_memory) {
    registered = 1;
    run_ranks(2, send_and_receive);
}

CASE(small_all_gather) { run_ranks(2, latency); }
