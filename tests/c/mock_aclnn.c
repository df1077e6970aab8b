// Kernels of aclnn: what they compute, what they check in either phase, and what must live how long.
#include "mock_control.h"

enum { FP32 = 0, INT8 = 2, INT32 = 3, INT64 = 9 };
enum { NULLPTR = 161001, INVALID = 161002, AICORE = 507015 };

static void *(*create)(const int64_t *, uint64_t, int32_t, const int64_t *, int64_t, int32_t, const int64_t *, uint64_t,
                       void *);
static int (*destroy)(const void *), (*destroy_executor)(void *), (*repeatable)(void *);
static int (*select_size)(const void *, int64_t, const void *, void *, uint64_t *, void **);
static int (*select_rows)(void *, uint64_t, void *, void *);
static int (*write_size)(void *, int64_t, const void *, const void *, uint64_t *, void **);
static int (*write_rows)(void *, uint64_t, void *, void *);

// As a program does: libnnopbase first, for all to see; then the kernels, under their new or their old name.
static void load_kernels(const char *soname) {
    void *base = dlopen("libnnopbase.so", RTLD_NOW | RTLD_GLOBAL);
    void *kernels = base == NULL ? NULL : dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (kernels == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    *(void **)&create = symbol_of(base, "aclCreateTensor");
    *(void **)&destroy = symbol_of(base, "aclDestroyTensor");
    *(void **)&destroy_executor = symbol_of(base, "aclDestroyAclOpExecutor");
    *(void **)&repeatable = symbol_of(base, "aclSetAclOpExecutorRepeatable");
    *(void **)&select_size = symbol_of(kernels, "aclnnIndexSelectGetWorkspaceSize");
    *(void **)&select_rows = symbol_of(kernels, "aclnnIndexSelect");
    *(void **)&write_size = symbol_of(kernels, "aclnnInplaceIndexCopyGetWorkspaceSize");
    *(void **)&write_rows = symbol_of(kernels, "aclnnInplaceIndexCopy");
}

// A contiguous tensor of up to two dimensions.
static void *tensor(void *data, int64_t rows, int64_t columns, int32_t type) {
    const int64_t dims[2] = {rows, columns}, strides[2] = {columns == 0 ? 1 : columns, 1};
    return create(dims, columns == 0 ? 1 : 2, type, strides, 0, 2, dims, columns == 0 ? 1 : 2, data);
}

static void *workspace_for(uint64_t bytes) { return bytes == 0 ? NULL : device_buffer(NULL, bytes); }

// Six rows of four numbers, and rows 4, 0, 5 of them.
typedef struct { int32_t numbers[24]; int64_t ids[3]; void *self, *index, *out, *self_data, *index_data, *out_data, *stream; } Setup;

static Setup start(const char *soname) {
    Setup s = {.ids = {4, 0, 5}};
    start_device(0);
    load_kernels(soname);
    for (int i = 0; i < 24; ++i) s.numbers[i] = i;
    s.self_data = device_buffer(s.numbers, sizeof s.numbers);
    s.index_data = device_buffer(s.ids, sizeof s.ids);
    s.out_data = device_buffer(NULL, 48);
    s.self = tensor(s.self_data, 6, 4, INT32);
    s.index = tensor(s.index_data, 3, 0, INT64);
    s.out = tensor(s.out_data, 3, 4, INT32);
    CHECK(s.self != NULL && s.index != NULL && s.out != NULL);
    OK(aclrtCreateStream(&s.stream));
    return s;
}

static void expect(const void *device, const int32_t *numbers, int count) {
    int32_t host[64];
    OK(aclrtMemcpy(host, sizeof host, device, 4 * (size_t)count, D2H));
    for (int i = 0; i < count; ++i) CHECK(host[i] == numbers[i]);
}

static void select_and_write(const char *soname) {
    Setup s = start(soname);
    uint64_t size = 0;
    void *executor = NULL;
    OK(select_size(s.self, 0, s.index, s.out, &size, &executor));
    CHECK(size > 0);
    void *workspace = workspace_for(size);
    OK(select_rows(workspace, size, executor, s.stream));
    OK(aclrtSynchronizeStream(s.stream));
    expect(s.out_data, (int32_t[]){16, 17, 18, 19, 0, 1, 2, 3, 20, 21, 22, 23}, 12);
    const int32_t other[12] = {-1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12};
    OK(aclrtMemcpy(s.out_data, 48, other, 48, H2D));
    OK(write_size(s.self, -2, s.index, s.out, &size, &executor));
    OK(write_rows(workspace, size, executor, s.stream));
    // A second phase that has returned needs the tensors no more.
    OK(destroy(s.self));
    OK(destroy(s.index));
    OK(destroy(s.out));
    OK(aclrtSynchronizeStream(s.stream));
    expect(s.self_data, (int32_t[]){-5, -6, -7, -8, 4,  5,  6,  7,  8,  9,   10,  11,
                                    12, 13, 14, 15, -1, -2, -3, -4, -9, -10, -11, -12}, 24);
}

CASE(rows_are_selected_and_written) { select_and_write("libopapi_nn.so"); }
CASE(the_older_library_has_the_same_kernels) { select_and_write("libopapi.so"); }

// Every second row of a wider tensor, along its second dimension, by 32-bit numbers.
CASE(views_with_strides) {
    Setup s = start("libopapi_nn.so");
    const int64_t dims[2] = {3, 3}, strides[2] = {8, 1}, storage[1] = {24};
    const int32_t columns[2] = {2, 0};
    void *view = create(dims, 2, INT32, strides, 1, 2, storage, 1, s.self_data);
    void *index = tensor(device_buffer(columns, sizeof columns), 2, 0, INT32);
    void *out = tensor(s.out_data, 3, 2, INT32);
    uint64_t size = 0;
    void *executor = NULL;
    OK(select_size(view, 1, index, out, &size, &executor));
    OK(select_rows(workspace_for(size), size, executor, s.stream));
    OK(aclrtSynchronizeStream(s.stream));
    expect(s.out_data, (int32_t[]){3, 1, 11, 9, 19, 17}, 6);
}

CASE(the_first_phase_checks_its_arguments) {
    Setup s = start("libopapi_nn.so");
    uint64_t size = 0;
    void *executor = NULL;
    void *bytes = tensor(s.out_data, 3, 4, INT8), *narrow = tensor(s.out_data, 3, 2, INT32);
    void *real = tensor(s.index_data, 3, 0, FP32), *gone = tensor(s.out_data, 3, 4, INT32);
    OK(destroy(gone));
    REFUSED(NULLPTR, "self is null", select_size(NULL, 0, s.index, s.out, &size, &executor));
    REFUSED(NULLPTR, "executor is null", select_size(s.self, 0, s.index, s.out, &size, NULL));
    REFUSED(INVALID, "out: ", select_size(s.self, 0, s.index, gone, &size, &executor));
    REFUSED(INVALID, "dim 2 is not in [-2, 2)", select_size(s.self, 2, s.index, s.out, &size, &executor));
    REFUSED(INVALID, "data type 3, out has 2", select_size(s.self, 0, s.index, bytes, &size, &executor));
    REFUSED(INVALID, "index has data type 0", select_size(s.self, 0, real, s.out, &size, &executor));
    REFUSED(INVALID, "dimension 1 of out is 2, not 4", select_size(s.self, 0, s.index, narrow, &size, &executor));
    REFUSED(INVALID, "dimension 0 of source is 6, not 3", write_size(s.self, 0, s.index, s.self, &size, &executor));
    REFUSED(INVALID, "not a live tensor", destroy(gone));
    CHECK(tensor(s.out_data, 3, 4, 5) == NULL);
    check_text(__LINE__, "data type 5");
    CHECK(create((int64_t[]){6, 4}, 2, INT32, (int64_t[]){4, 1}, 1, 2, (int64_t[]){24}, 1, s.self_data) == NULL);
    check_text(__LINE__, "ends at element 25 of 24");
}

CASE(the_second_phase_checks_workspace_and_executor) {
    Setup s = start("libopapi_nn.so");
    uint64_t size = 0;
    void *executor = NULL, *host = NULL;
    OK(select_size(s.self, 0, s.index, s.out, &size, &executor));
    void *workspace = workspace_for(size);
    REFUSED(INVALID, "one of aclnnIndexSelect", write_rows(workspace, size, executor, s.stream));
    REFUSED(NULLPTR, "executor is null", select_rows(workspace, size, NULL, s.stream));
    OK(select_rows(workspace, size, executor, s.stream));
    REFUSED(INVALID, "used up", select_rows(workspace, size, executor, s.stream));
    REFUSED(INVALID, "used up", destroy_executor(executor));
    OK(select_size(s.self, 0, s.index, s.out, &size, &executor));
    REFUSED(NULLPTR, "workspace is null", select_rows(NULL, size, executor, s.stream));
    OK(select_size(s.self, 0, s.index, s.out, &size, &executor));
    REFUSED(INVALID, "the first phase asked for", select_rows(workspace, size - 1, executor, s.stream));
    OK(select_size(s.self, 0, s.index, s.out, &size, &executor));
    OK(aclrtMallocHost(&host, size));
    REFUSED(INVALID, "workspace: ", select_rows(host, size, executor, s.stream));
    OK(select_size(s.self, 0, s.index, s.out, &size, &executor));
    OK(destroy_executor(executor));
    REFUSED(INVALID, "used up", select_rows(workspace, size, executor, s.stream));
    OK(select_size(s.self, 0, s.index, s.out, &size, &executor));
    OK(repeatable(executor));
    OK(select_rows(workspace, size, executor, s.stream));
    OK(select_rows(workspace, size, executor, s.stream));
    OK(destroy_executor(executor));
    OK(select_size(s.self, 0, s.index, s.out, &size, &executor));
    OK(destroy(s.index));
    REFUSED(INVALID, "tensor index was destroyed", select_rows(workspace, size, executor, s.stream));
    OK(aclrtSynchronizeStream(s.stream));
}

CASE(memory_of_another_device_is_refused) {
    Setup s = start("libopapi_nn.so");
    uint64_t size = 0;
    void *executor = NULL;
    OK(aclrtSetDevice(1));
    void *foreign = tensor(device_buffer(NULL, 48), 3, 4, INT32);
    OK(aclrtSetDevice(0));
    OK(select_size(s.self, 0, s.index, foreign, &size, &executor));
    REFUSED(INVALID, "out: ", select_rows(workspace_for(size), size, executor, s.stream));
}

CASE(an_index_out_of_range_is_an_exception_of_the_device) {
    Setup s = start("libopapi_nn.so");
    const int64_t bad[3] = {1, 6, 2};
    uint64_t size = 0;
    void *executor = NULL;
    OK(aclrtMemcpy(s.index_data, 24, bad, 24, H2D));
    OK(write_size(s.self, 0, s.index, s.out, &size, &executor));
    OK(write_rows(workspace_for(size), size, executor, s.stream));
    REFUSED(AICORE, "index 6 at 1", aclrtSynchronizeStream(s.stream));
    expect(s.self_data, s.numbers, 24);
}

// Freed before the stream came to the kernel.
CASE(memory_must_live_until_the_stream_has_passed) {
    Setup s = start("libopapi_nn.so");
    SeqshiftMockRule *stalled = arm((SeqshiftMockRule){.symbol = "aclrtMemsetAsync", .rank = -1,
                                                       .action = SEQSHIFT_MOCK_STALL});
    void *executor = NULL, *streams[2], *other = device_buffer(NULL, 64);
    uint64_t size = 0;
    for (int i = 0; i < 2; ++i) {
        void *ids = device_buffer(s.ids, sizeof s.ids), *index = tensor(ids, 3, 0, INT64);
        OK(aclrtCreateStream(&streams[i]));
        OK(aclrtMemsetAsync(other, 64, 0, 64, streams[i]));
        OK(select_size(s.self, 0, index, s.out, &size, &executor));
        void *workspace = workspace_for(size);
        OK(select_rows(workspace, size, executor, streams[i]));
        OK(aclrtFree(i == 0 ? workspace : ids));
    }
    let_go(stalled);
    REFUSED(AICORE, "workspace: ", aclrtSynchronizeStream(streams[0]));
    REFUSED(AICORE, "index: ", aclrtSynchronizeStream(streams[1]));
}

CASE(kernels_run_when_the_stream_comes_to_them) {
    Setup s = start("libopapi_nn.so");
    SeqshiftMockRule *stalled = arm((SeqshiftMockRule){.symbol = "aclnnIndexSelect", .rank = -1, .count = 1,
                                                       .action = SEQSHIFT_MOCK_STALL});
    const int64_t later[3] = {1, 2, 3};
    uint64_t size = 0;
    void *executor = NULL;
    OK(select_size(s.self, 0, s.index, s.out, &size, &executor));
    OK(select_rows(workspace_for(size), size, executor, s.stream));
    await_stalled(stalled, 1);
    CHECK(calls_of("aclnnIndexSelect", SEQSHIFT_MOCK_RANKS - 1) == 1);
    // What the index holds by then counts.
    OK(aclrtMemcpy(s.index_data, 24, later, 24, H2D));
    let_go(stalled);
    OK(aclrtSynchronizeStream(s.stream));
    expect(s.out_data, s.numbers + 4, 12);
}

CASE(faults_reach_kernels) {
    Setup s = start("libopapi_nn.so");
    uint64_t size = 0;
    void *executor = NULL;
    int32_t got[12];
    arm((SeqshiftMockRule){.symbol = "aclnnIndexSelect", .rank = -1, .count = 1, .action = SEQSHIFT_MOCK_CORRUPT,
                           .value = 17});
    arm((SeqshiftMockRule){.symbol = "aclnnInplaceIndexCopy", .rank = -1, .count = 1,
                           .action = SEQSHIFT_MOCK_FAIL_TASK, .value = AICORE});
    arm((SeqshiftMockRule){.symbol = "aclnnInplaceIndexCopyGetWorkspaceSize", .rank = -1, .first = 2,
                           .action = SEQSHIFT_MOCK_RETURN, .value = 561003});
    OK(select_size(s.self, 0, s.index, s.out, &size, &executor));
    void *workspace = workspace_for(size);
    OK(select_rows(workspace, size, executor, s.stream));
    OK(aclrtSynchronizeStream(s.stream));
    OK(aclrtMemcpy(got, 48, s.out_data, 48, D2H));
    CHECK(got[4] != 0 && got[3] == 19 && got[5] == 1);
    OK(write_size(s.self, 0, s.index, s.out, &size, &executor));
    OK(write_rows(workspace, size, executor, s.stream));
    REFUSED(AICORE, "fault rule", aclrtSynchronizeStream(s.stream));
    expect(s.self_data, s.numbers, 24);
    REFUSED(561003, "fault rule", write_size(s.self, 0, s.index, s.out, &size, &executor));
}
