// Device memory: every kind of misuse is an error that says what is wrong.
#include "mock_control.h"

#include <signal.h>

CASE(out_of_range) {
    char host[200] = {0};
    start_device(0);
    char *device = device_buffer(NULL, 100);
    OK(aclrtMemcpy(device, 100, host, 100, H2D));
    OK(aclrtMemcpy(device + 99, 1, host, 1, H2D));
    REFUSED(107000, "out of range", aclrtMemcpy(device, 101, host, 101, H2D));
    REFUSED(107000, "out of range", aclrtMemcpy(device + 1, 100, host, 100, H2D));
    REFUSED(107000, "out of range", aclrtMemcpy(host, 1, device + 100, 1, D2H));
    REFUSED(107000, "never allocated", aclrtMemcpy(host, 1, device + (1 << 20), 1, D2H));
    REFUSED(107000, "out of range", aclrtMemset(device + 50, 51, 0, 51));
    REFUSED(100000, "exceeds", aclrtMemcpy(device, 99, host, 100, H2D));
    REFUSED(100000, "null", aclrtMemcpy(NULL, 1, host, 1, H2D));
    REFUSED(107000, "nothing", aclrtMemcpy(device, 100, host, 0, H2D));
    CHECK(aclGetRecentErrMsg() == NULL);
}

CASE(use_after_free) {
    char host[64] = {0};
    void *stream;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    char *device = device_buffer(NULL, 64);
    OK(aclrtFree(device));
    REFUSED(107000, "use after free", aclrtMemcpy(host, 64, device, 64, D2H));
    REFUSED(107000, "use after free", aclrtMemcpyAsync(device + 8, 8, host, 8, H2D, stream));
    REFUSED(107000, "double free", aclrtFree(device));
    char *next = device_buffer(NULL, 64);
    CHECK(next != device);
    REFUSED(107000, "inside", aclrtFree(next + 8));
    REFUSED(107000, "never allocated", aclrtFree(host));
    REFUSED(107000, "not pinned host memory", aclrtFreeHost(next));
    REFUSED(100000, "null", aclrtFree(NULL));
    REFUSED(100000, "size is 0", aclrtMalloc((void **)&next, 0, 0));
}

// The copy is fine when it is issued; its memory goes while it waits in the stream.
CASE(freed_before_the_copy_runs) {
    void *stream, *pinned;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    OK(aclrtMallocHost(&pinned, 64));
    void *device = device_buffer(NULL, 64);
    SeqshiftMockRule *rule = arm((SeqshiftMockRule){.symbol = "aclrtMemcpyAsync", .rank = -1, .action = 3});
    OK(aclrtMemcpyAsync(pinned, 64, device, 64, D2H, stream));
    await_stalled(rule, 1);
    OK(aclrtFree(device));
    let_go(rule);
    REFUSED(507013, "use after free", aclrtSynchronizeStream(stream));
}

// Memory that is being copied is not given back before the copy is over.
CASE(free_waits_for_a_running_copy) {
    enum { BYTES = 16 << 20 };
    void *stream, *pinned, *device[8];
    start_device(0);
    OK(aclrtCreateStream(&stream));
    OK(aclrtMallocHost(&pinned, BYTES));
    memset(pinned, 7, BYTES);
    for (int i = 0; i < 8; ++i) {
        device[i] = device_buffer(NULL, BYTES);
        OK(aclrtMemcpyAsync(device[i], BYTES, pinned, BYTES, H2D, stream));
        OK(aclrtSynchronizeStream(stream));
        OK(aclrtMemcpyAsync(device[i], BYTES, pinned, BYTES, H2D, stream));
        OK(aclrtFree(device[i]));
        const int code = aclrtSynchronizeStream(stream);
        CHECK(code == 0 || code == 507013);
        OK(aclrtStreamAbort(stream));
    }
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_DEVICE_BLOCKS) == 0);
}

CASE(host_cannot_read_device_memory) {
    start_device(0);
    volatile char *device = device_buffer(NULL, 64);
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        _exit(device[0] == 1 ? 3 : 4);
    }
    // A sanitizer may turn the fault into an exit status of its own.
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSEGV : WEXITSTATUS(status) != 3 && WEXITSTATUS(status) != 4);
}

CASE(new_memory_is_not_zero) {
    unsigned char host[512];
    start_device(0);
    void *device = device_buffer(NULL, sizeof host);
    OK(aclrtMemcpy(host, sizeof host, device, sizeof host, D2H));
    for (size_t i = 0; i < sizeof host; ++i) CHECK(host[i] == 0xa5);
    CHECK((uintptr_t)device % 64 == 0);
}

CASE(wrong_device) {
    char host[64] = {0};
    void *stream_1;
    setenv("SEQSHIFT_MOCK_SOC", "Ascend910B1", 1);
    start_device(0);
    void *on_0 = device_buffer(NULL, 64);
    OK(aclrtSetDevice(1));
    OK(aclrtCreateStream(&stream_1));
    void *on_1 = device_buffer(NULL, 64);
    REFUSED(107000, "wrong device", aclrtMemcpyAsync(on_0, 64, host, 64, H2D, stream_1));
    REFUSED(107000, "wrong device", aclrtMemsetAsync(on_0, 64, 0, 64, stream_1));
    REFUSED(107000, "wrong device", aclrtMemcpy(host, 64, on_0, 64, D2H));
    REFUSED(107000, "EnablePeerAccess", aclrtMemcpyAsync(on_1, 64, on_0, 64, D2D, stream_1));
    int32_t can = 0;
    OK(aclrtDeviceCanAccessPeer(&can, 1, 0));
    CHECK(can == 1);
    OK(aclrtDeviceEnablePeerAccess(0, 0));
    OK(aclrtMemcpyAsync(on_1, 64, on_0, 64, D2D, stream_1));
    OK(aclrtSynchronizeStream(stream_1));
    OK(aclrtSetDevice(0));
    REFUSED(107003, "another context", aclrtMemcpyAsync(on_0, 64, host, 64, H2D, stream_1));
    REFUSED(107001, "device 16 of 16", aclrtSetDevice(16));
    REFUSED(107001, "device -1", aclrtSetDevice(-1));
}

CASE(a3_needs_no_peer_access) {
    start_device(0);
    void *on_0 = device_buffer(NULL, 64);
    OK(aclrtSetDevice(1));
    void *on_1 = device_buffer(NULL, 64);
    OK(aclrtMemcpy(on_1, 64, on_0, 64, D2D));
}

CASE(capacity) {
    size_t total = 0, before = 0, after = 0;
    void *block, *next;
    control()->deviceMemory[SEQSHIFT_MOCK_RANKS - 1] = 8 << 20;
    start_device(0);
    OK(aclrtGetMemInfo(1, &before, &total));
    CHECK(total == 8 << 20 && before == total);
    // 64 + 32 bytes take a small page; 2 MiB and 32 bytes take two large pages, or small ones if asked for.
    OK(aclrtMalloc(&block, 64, 0));
    OK(aclrtGetMemInfo(1, &after, &total));
    CHECK(before - after == 4096);
    OK(aclrtFree(block));
    OK(aclrtMalloc(&block, 2 << 20, 0));
    OK(aclrtGetMemInfo(1, &after, &total));
    CHECK(before - after == 4 << 20);
    OK(aclrtFree(block));
    OK(aclrtMallocAlign32(&block, 2 << 20, 0));
    OK(aclrtGetMemInfo(1, &after, &total));
    CHECK(before - after == 2 << 20);
    REFUSED(207001, "out of memory", aclrtMalloc(&next, 7 << 20, 2));
    OK(aclrtMalloc(&next, 5 << 20, 2));
    OK(aclrtFree(next));
    OK(aclrtFree(block));
    OK(aclrtGetMemInfo(1, &after, &total));
    CHECK(after == before);
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_DEVICE_BYTES) == 0);
    REFUSED(100000, "policy", aclrtMalloc(&next, 64, 6));
}

CASE(capacity_from_environment) {
    size_t free = 0, total = 0;
    void *block;
    setenv("SEQSHIFT_MOCK_DEVICE_MEMORY_MIB", "3", 1);
    start_device(0);
    OK(aclrtGetMemInfo(0, &free, &total));
    CHECK(total == 3 << 20);
    REFUSED(207001, "out of memory", aclrtMalloc(&block, 2 << 20, 0));
}

CASE(kinds) {
    char host[64] = {0}, other[64];
    void *stream, *pinned;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    OK(aclrtMallocHost(&pinned, 64));
    void *device = device_buffer(NULL, 64), *second = device_buffer(NULL, 64);
    REFUSED(107000, "the kind says device to host", aclrtMemcpy(device, 64, host, 64, D2H));
    REFUSED(107000, "the kind says host to device", aclrtMemcpyAsync(pinned, 64, device, 64, H2D, stream));
    REFUSED(107000, "the kind says host to host", aclrtMemcpyAsync(second, 64, device, 64, H2H, stream));
    REFUSED(100000, "kind 9", aclrtMemcpy(device, 64, host, 64, 9));
    REFUSED(207000, "host to host", aclrtMemcpyAsync(pinned, 64, host, 64, H2H, stream));
    OK(aclrtMemcpy(other, 64, host, 64, H2H));
    OK(aclrtMemcpyAsync(second, 64, device, 64, D2D, stream));
    REFUSED(107000, "overlap", aclrtMemcpyAsync((char *)device + 1, 63, device, 63, D2D, stream));
    OK(aclrtSynchronizeStream(stream));
}

// With host memory that is not pinned the call returns when the copy is done; with pinned memory at once.
CASE(pinned_or_not) {
    char host[64] = {0};
    void *stream, *pinned, *mapped;
    static char registered[64];
    int32_t status = -1;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    OK(aclrtMallocHost(&pinned, 64));
    OK(aclrtHostRegister(registered, 64, 0, &mapped));
    void *device = device_buffer(NULL, 64);
    SeqshiftMockRule *slow =
        arm((SeqshiftMockRule){.symbol = "aclrtMemcpyAsync", .rank = -1, .action = 3, .value = 100, .count = 1});
    const double start = seconds();
    OK(aclrtMemcpyAsync(device, 64, host, 64, H2D, stream));
    CHECK(seconds() - start >= 0.1);
    OK(aclrtStreamQuery(stream, &status));
    CHECK(status == 0);
    disarm(slow);
    void *sources[] = {pinned, registered};
    for (int i = 0; i < 2; ++i) {
        SeqshiftMockRule *rule = arm((SeqshiftMockRule){.symbol = "aclrtMemcpyAsync", .rank = -1, .action = 3});
        OK(aclrtMemcpyAsync(device, 64, sources[i], 64, H2D, stream));
        await_stalled(rule, 1);
        OK(aclrtStreamQuery(stream, &status));
        CHECK(status == 1);
        disarm(rule);
        let_go(rule);
        OK(aclrtSynchronizeStream(stream));
    }
    REFUSED(107000, "out of range", aclrtMemcpyAsync(device, 64, registered + 1, 64, H2D, stream));
    OK(aclrtHostUnregister(registered));
    REFUSED(100000, "not the start", aclrtHostUnregister(registered));
    OK(aclrtFreeHost(pinned));
    REFUSED(107000, "use after free", aclrtMemcpyAsync(device, 64, pinned, 64, H2D, stream));
    REFUSED(107000, "double free", aclrtFreeHost(pinned));
}

CASE(two_dimensional) {
    enum { PITCH = 48, WIDTH = 20, HEIGHT = 5 };
    unsigned char host[PITCH * HEIGHT], back[WIDTH * HEIGHT];
    void *stream;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    for (size_t i = 0; i < sizeof host; ++i) host[i] = (unsigned char)i;
    void *device = device_buffer(NULL, 24 * (HEIGHT - 1) + WIDTH);
    OK(aclrtMemcpy2d(device, 24, host, PITCH, WIDTH, HEIGHT, H2D));
    OK(aclrtMemcpy2dAsync(back, WIDTH, device, 24, WIDTH, HEIGHT, D2H, stream));
    OK(aclrtSynchronizeStream(stream));
    for (int row = 0; row < HEIGHT; ++row) {
        for (int i = 0; i < WIDTH; ++i) CHECK(back[row * WIDTH + i] == host[row * PITCH + i]);
    }
    REFUSED(107000, "exceeds a pitch", aclrtMemcpy2d(device, 19, host, PITCH, WIDTH, HEIGHT, H2D));
    REFUSED(107000, "out of range", aclrtMemcpy2dAsync(device, 25, host, PITCH, WIDTH, HEIGHT, H2D, stream));
    REFUSED(107000, "nothing", aclrtMemcpy2dAsync(device, 24, host, PITCH, WIDTH, 0, H2D, stream));
}

CASE(set) {
    unsigned char host[64];
    void *stream;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    void *device = device_buffer(NULL, 64);
    OK(aclrtMemset(device, 64, 1, 64));
    OK(aclrtMemsetAsync((char *)device + 16, 48, 2, 16, stream));
    OK(aclrtSynchronizeStream(stream));
    OK(aclrtMemcpy(host, 64, device, 64, D2H));
    for (int i = 0; i < 64; ++i) CHECK(host[i] == (i >= 16 && i < 32 ? 2 : 1));
    REFUSED(100000, "exceeds", aclrtMemsetAsync(device, 15, 2, 16, stream));
    REFUSED(107000, "not device memory", aclrtMemsetAsync(host, 64, 2, 16, stream));
}

CASE(registered_memory) {
    static char tensor[4096], other[64];
    aclrtPtrAttributes attributes;
    start_device(0);
    OK(REGISTER(tensor + 64, 1024, 0));
    OK(REGISTER(tensor + 64, 1024, 0));
    RETURNS(100000, REGISTER(tensor + 64, 512, 0));
    RETURNS(100000, REGISTER(tensor, 65, 0));
    RETURNS(100000, REGISTER(tensor + 1087, 10, 0));
    RETURNS(100000, REGISTER(tensor + 64, 1024, 1));
    OK(REGISTER(tensor + 1088, 10, 0));
    RETURNS(107001, REGISTER(other, 64, 99));
    RETURNS(100000, REGISTER(NULL, 64, 0));
    OK(aclrtPointerGetAttributes(tensor + 100, &attributes));
    CHECK(attributes.location.type == 1 && attributes.location.id == 0);
    OK(aclrtPointerGetAttributes(tensor, &attributes));
    CHECK(attributes.location.type == 2);
    memset(other, 5, sizeof other);
    OK(aclrtMemcpy(tensor + 64, 64, other, 64, H2D));
    CHECK(tensor[63] == 0 && tensor[64] == 5 && tensor[127] == 5 && tensor[128] == 0);
    REFUSED(107000, "run into", aclrtMemcpy(tensor + 32, 64, other, 64, H2H));
    REFUSED(107000, "out of range", aclrtMemcpy(tensor + 1080, 16, other, 16, H2D));
    REFUSED(107000, "is registered device memory", aclrtFree(tensor + 64));
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_REGISTERED) == 2);
    OK(UNREGISTER(tensor + 64));
    OK(aclrtMemcpy(tensor + 64, 64, other, 64, H2D));
    OK(UNREGISTER(tensor + 64));
    REFUSED(107000, "the kind says", aclrtMemcpy(tensor + 64, 64, other, 64, H2D));
    RETURNS(100000, UNREGISTER(tensor + 64));
    OK(UNREGISTER(tensor + 1088));
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_REGISTERED) == 0);
}

CASE(reset_frees_everything) {
    void *stream;
    char host[64] = {0};
    start_device(0);
    OK(aclrtCreateStream(&stream));
    void *device = device_buffer(NULL, 64);
    OK(aclrtResetDevice(0));
    REFUSED(107002, "was destroyed", aclrtMemcpy(device, 64, host, 64, H2D));
    OK(aclrtSetDevice(0));
    REFUSED(107017, "not a live stream", aclrtSynchronizeStream(stream));
    REFUSED(107000, "use after free", aclrtMemcpy(device, 64, host, 64, H2D));
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_DEVICE_BLOCKS) == 0 && LIVE(SEQSHIFT_MOCK_LIVE_STREAMS) == 0);
}

// Addresses come round after a long time only, and live blocks are never handed out twice.
CASE(many_allocations) {
    enum { LIVE_BLOCKS = 64, ROUNDS = 2000 };
    void *blocks[LIVE_BLOCKS] = {0};
    start_device(0);
    srand(20251130);
    printf("seed 20251130\n");
    for (int i = 0; i < ROUNDS; ++i) {
        const int slot = rand() % LIVE_BLOCKS;
        if (blocks[slot] != NULL) {
            int32_t mark = 0;
            OK(aclrtMemcpy(&mark, 4, blocks[slot], 4, D2H));
            CHECK(mark == slot);
            OK(aclrtFree(blocks[slot]));
        }
        OK(aclrtMalloc(&blocks[slot], (size_t)(4 + rand() % 100000), 2));
        OK(aclrtMemcpy(blocks[slot], 4, &slot, 4, H2D));
    }
    CHECK(LIVE(SEQSHIFT_MOCK_LIVE_DEVICE_BLOCKS) <= LIVE_BLOCKS);
}

typedef struct {
    void *dsts[4], *srcs[4];
    size_t maxs[4], sizes[4], indexes[4], fail;
    aclrtMemcpyBatchAttr attrs[4];
} Batch;

static Batch make_batch(char *device, char *host, int to_device) {
    Batch batch = {.indexes = {0}, .fail = 77};
    for (int i = 0; i < 4; ++i) {
        batch.dsts[i] = (to_device ? device : host) + 16 * i;
        batch.srcs[i] = (to_device ? host : device) + 16 * i;
        batch.maxs[i] = batch.sizes[i] = 16;
        batch.attrs[i].dstLoc.type = to_device;
        batch.attrs[i].srcLoc.type = !to_device;
    }
    return batch;
}

static int run_batch(Batch *b, size_t attrs, void *stream) {
    if (stream == NULL) {
        return aclrtMemcpyBatch(b->dsts, b->maxs, b->srcs, b->sizes, 4, b->attrs, b->indexes, attrs, &b->fail);
    }
    return aclrtMemcpyBatchAsync(b->dsts, b->maxs, b->srcs, b->sizes, 4, b->attrs, b->indexes, attrs, &b->fail, stream);
}

CASE(batches) {
    char host[64], back[64];
    void *stream;
    start_device(0);
    OK(aclrtCreateStream(&stream));
    char *device = device_buffer(NULL, 64);
    for (int i = 0; i < 64; ++i) host[i] = (char)i;
    for (int async = 0; async < 2; ++async) {
        void *in = async ? stream : NULL;
        memset(back, 0, sizeof back);
        Batch batch = make_batch(device, host, 1);
        OK(run_batch(&batch, 1, in));
        CHECK(batch.fail == SIZE_MAX);
        batch = make_batch(device, back, 0);
        OK(run_batch(&batch, 1, in));
        OK(aclrtSynchronizeStream(stream));
        CHECK(memcmp(host, back, 64) == 0);

        batch = make_batch(device, host, 1);
        batch.attrs[1].dstLoc.type = 0, batch.attrs[1].srcLoc.type = 1, batch.indexes[1] = 2;
        REFUSED(207000, "both directions", run_batch(&batch, 2, in));
        CHECK(batch.fail == 2);
        batch = make_batch(device, host, 1);
        batch.attrs[0].srcLoc.type = 1;
        REFUSED(207000, "only host to device", run_batch(&batch, 1, in));
        CHECK(batch.fail == 0);
        batch = make_batch(device, host, 1);
        batch.dsts[3] = device + 49;
        REFUSED(107000, "out of range", run_batch(&batch, 1, in));
        CHECK(batch.fail == 3);
        batch = make_batch(device, host, 1);
        batch.maxs[1] = 15;
        REFUSED(100000, "exceeds", run_batch(&batch, 1, in));
        CHECK(batch.fail == 1);
        batch = make_batch(device, host, 1);
        batch.attrs[0].dstLoc.id = 3;
        REFUSED(107000, "names device 3", run_batch(&batch, 1, in));
        batch = make_batch(device, host, 1);
        batch.attrs[0].rsv[5] = 1;
        REFUSED(100000, "reserved", run_batch(&batch, 1, in));
        CHECK(batch.fail == SIZE_MAX);
        batch = make_batch(device, host, 1);
        batch.indexes[0] = 1;
        REFUSED(100000, "attrsIndexes[0]", run_batch(&batch, 1, in));
        batch.indexes[0] = 0, batch.indexes[1] = 0;
        REFUSED(100000, "attrsIndexes[1]", run_batch(&batch, 2, in));
        batch.indexes[1] = 4;
        REFUSED(100000, "attrsIndexes[1]", run_batch(&batch, 2, in));
        REFUSED(100000, "5 attributes for 4", run_batch(&batch, 5, in));
        REFUSED(100000, "0 attributes", run_batch(&batch, 0, in));
    }
    // The newer form has no fail index.
    Batch newer = make_batch(device, host, 1);
    OK(MOCK_CALL(int, aclrtMemcpyBatchV2,
                 (void **, size_t *, void **, size_t *, size_t, aclrtMemcpyBatchAttr *, size_t *, size_t), newer.dsts,
                 newer.maxs, newer.srcs, newer.sizes, 4, newer.attrs, newer.indexes, 1));
    static void *many[4097];
    static size_t ones[4097];
    Batch batch = make_batch(device, host, 1);
    REFUSED(100000, "4097 copies", aclrtMemcpyBatch(many, ones, many, ones, 4097, batch.attrs, batch.indexes, 1, &batch.fail));
    REFUSED(100000, "0 copies", aclrtMemcpyBatch(many, ones, many, ones, 0, batch.attrs, batch.indexes, 0, &batch.fail));
}
