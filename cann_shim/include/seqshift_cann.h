/*
 * The contract between the C shim, the CPU mock and the Rust core.
 *
 * It declares, under names of our own, the part of the CANN C ABI that seqshift uses: AscendCL ("acl", libascendcl.so),
 * HCCL (libhccl.so) and, where they are there, two kernels of aclnn (libnnopbase.so, libopapi_nn.so or libopapi.so). Values, layouts and prototypes are those of CANN 8.1 to 9.1, where this ABI only grew;
 * tests/test_torch_npu_headers.py proves it against a published header set. Only the function names are CANN's own,
 * because they are looked up at run time; everything else here can be included beside CANN's headers.
 *
 * Valid as C11 and as C++20.
 */
#ifndef SEQSHIFT_CANN_H
#define SEQSHIFT_CANN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define SEQSHIFT_ASSERT(condition, text) static_assert(condition, text)
extern "C" {
#else
#define SEQSHIFT_ASSERT(condition, text) _Static_assert(condition, text)
#endif

/* ---- Scalars ------------------------------------------------------------------------------------------------- */

/* CANN's enums are C ints; they are plain integers here, so that a value a newer CANN adds is never undefined. */
typedef int32_t CannError;           /* CANN_*: AscendCL results */
typedef int32_t CannMemMallocPolicy; /* CANN_MEM_* */
typedef int32_t CannMemcpyKind;      /* CANN_COPY_* */
typedef int32_t CannMemAttr;         /* CANN_ATTR_* */
typedef int32_t CannEventStatus;     /* CANN_EVENT_* of aclrtQueryEvent */
typedef int32_t CannRecordedStatus;  /* CANN_RECORDED_* of aclrtQueryEventStatus */
typedef int32_t CannWaitStatus;      /* CANN_WAIT_* of aclrtQueryEventWaitStatus */
typedef int32_t CannStreamStatus;    /* CANN_STREAM_* of aclrtStreamQuery */
typedef int32_t CannCallbackBlock;   /* CANN_CALLBACK_* */
typedef int32_t CannRunMode;         /* CANN_RUN_* */
typedef int32_t CannMemLocationType; /* CANN_LOCATION_* */
typedef int32_t CannTensorType;      /* CANN_TENSOR_* */
typedef int32_t CannFormat;          /* CANN_FORMAT_* */
typedef int32_t CannHcclStatus;          /* CANN_HCCL_*: HCCL results */
typedef int32_t CannHcclType;            /* CANN_HCCL_TYPE_* */
typedef int32_t CannHcclOp;              /* CANN_HCCL_OP_* */
typedef int32_t CannHcclDirection;       /* CANN_HCCL_SEND, CANN_HCCL_RECV */

typedef void *CannStream;
typedef void *CannEvent;
typedef void *CannContext;
typedef void *CannHcclHandle; /* a communicator */
typedef void *CannTensor;     /* shape and place of memory that a kernel works on */
typedef void *CannExecutor;   /* a kernel's call between its two phases */

typedef void (*CannCallback)(void *userData);

/* ---- AscendCL results ---------------------------------------------------------------------------------------- */

#define CANN_OK 0
#define CANN_INVALID_PARAM 100000
#define CANN_UNINITIALIZE 100001
/* The second aclInit of a process; harmless, and whoever gets it must not call aclFinalize. */
#define CANN_REPEAT_INITIALIZE 100002
#define CANN_REPEAT_FINALIZE 100037
#define CANN_RT_PARAM_INVALID 107000
#define CANN_RT_INVALID_DEVICE 107001
#define CANN_RT_CONTEXT_NULL 107002
#define CANN_RT_STREAM_CONTEXT 107003
#define CANN_RT_ADDR_UNALIGNED 107008
#define CANN_RT_INVALID_HANDLE 107017
#define CANN_RT_WAIT_TIMEOUT 107019
#define CANN_RT_TASK_TIMEOUT 107020
#define CANN_RT_DEVICE_TASK_ABORT 107022
#define CANN_RT_STREAM_ABORT 107023
#define CANN_RT_STREAM_CAPTURED 107027
#define CANN_BAD_ALLOC 200000
#define CANN_API_NOT_SUPPORT 200001
#define CANN_FEATURE_UNSUPPORTED 200006
#define CANN_RT_FEATURE_NOT_SUPPORT 207000
#define CANN_RT_MEMORY_ALLOCATION 207001
#define CANN_RT_NO_DEVICE 207004
#define CANN_RT_RESOURCE_ALLOC_FAIL 207005
#define CANN_RT_NO_EVENT_RESOURCE 207007
#define CANN_RT_NO_STREAM_RESOURCE 207008
#define CANN_RT_DEVICE_OOM 207018
#define CANN_STORAGE_OVER_LIMIT 300000
#define CANN_INTERNAL 500000
#define CANN_FAILURE 500001
#define CANN_RT_FAILURE 500003
#define CANN_DRV_FAILURE 500004
#define CANN_RT_INTERNAL 507000
#define CANN_RT_LOST_HEARTBEAT 507010
#define CANN_RT_SYS_DMA 507013
#define CANN_RT_AICORE_TIMEOUT 507014
#define CANN_RT_AICORE_EXCEPTION 507015
#define CANN_RT_STREAM_SYNC_TIMEOUT 507046
#define CANN_RT_EVENT_SYNC_TIMEOUT 507047
#define CANN_RT_DEVICE_MEM_ERROR 507053
#define CANN_RT_LINK_ERROR 507056
#define CANN_RT_DRV_INTERNAL 507899

/* Results of aclnn; other codes of it are inner ones. */
#define CANN_NN_PARAM_NULLPTR 161001
#define CANN_NN_PARAM_INVALID 161002
#define CANN_NN_RUNTIME_ERROR 361001

/* ---- AscendCL values ----------------------------------------------------------------------------------------- */

#define CANN_MEM_HUGE_FIRST 0
#define CANN_MEM_HUGE_ONLY 1
#define CANN_MEM_NORMAL_ONLY 2

#define CANN_COPY_HOST_TO_HOST 0
#define CANN_COPY_HOST_TO_DEVICE 1
#define CANN_COPY_DEVICE_TO_HOST 2
#define CANN_COPY_DEVICE_TO_DEVICE 3

#define CANN_ATTR_DDR 0
#define CANN_ATTR_HBM 1
#define CANN_ATTR_DDR_HUGE 2
#define CANN_ATTR_DDR_NORMAL 3
#define CANN_ATTR_HBM_HUGE 4
#define CANN_ATTR_HBM_NORMAL 5

/* The two event queries have opposite polarity. */
#define CANN_EVENT_COMPLETE 0
#define CANN_EVENT_NOT_READY 1
#define CANN_RECORDED_NOT_READY 0
#define CANN_RECORDED_COMPLETE 1
#define CANN_WAIT_COMPLETE 0
#define CANN_WAIT_NOT_READY 1
#define CANN_STREAM_COMPLETE 0
#define CANN_STREAM_NOT_READY 1

/* Waits of other streams need SYNC, tracking by the host STREAM_PROGRESS, elapsed time TIME_LINE. */
#define CANN_EVENT_FLAG_SYNC 0x1
#define CANN_EVENT_FLAG_STREAM_PROGRESS 0x2
#define CANN_EVENT_FLAG_TIME_LINE 0x8
#define CANN_STREAM_FLAG_FAST_LAUNCH 0x1
#define CANN_STREAM_FLAG_FAST_SYNC 0x2

#define CANN_CALLBACK_NO_BLOCK 0
#define CANN_CALLBACK_BLOCK 1
#define CANN_RUN_DEVICE 0
#define CANN_RUN_HOST 1

#define CANN_LOCATION_HOST 0
#define CANN_LOCATION_DEVICE 1
#define CANN_LOCATION_UNREGISTERED 2

/* Formats of a tensor in device memory; FRACTAL_NZ permutes the elements inside a block. */
#define CANN_FORMAT_ND 2
#define CANN_FORMAT_FRACTAL_NZ 29

/* Element types of a tensor. */
#define CANN_TENSOR_FLOAT 0
#define CANN_TENSOR_FLOAT16 1
#define CANN_TENSOR_INT8 2
#define CANN_TENSOR_INT32 3
#define CANN_TENSOR_UINT8 4
#define CANN_TENSOR_INT16 6
#define CANN_TENSOR_UINT16 7
#define CANN_TENSOR_UINT32 8
#define CANN_TENSOR_INT64 9
#define CANN_TENSOR_UINT64 10
#define CANN_TENSOR_DOUBLE 11
#define CANN_TENSOR_BOOL 12
#define CANN_TENSOR_BF16 27

/* The most items of one aclrtMemcpyBatch call. */
#define CANN_MEMCPY_BATCH_MAX 4096

/* ---- HCCL values --------------------------------------------------------------------------------------------- */

#define CANN_HCCL_OK 0
#define CANN_HCCL_PARA 1
#define CANN_HCCL_PTR 2
#define CANN_HCCL_MEMORY 3
#define CANN_HCCL_INTERNAL 4
#define CANN_HCCL_NOT_SUPPORT 5
#define CANN_HCCL_NOT_FOUND 6
#define CANN_HCCL_UNAVAIL 7
#define CANN_HCCL_SYSCALL 8
#define CANN_HCCL_TIMEOUT 9
#define CANN_HCCL_OPEN_FILE 10
#define CANN_HCCL_TCP_CONNECT 11
#define CANN_HCCL_ROCE_CONNECT 12
#define CANN_HCCL_TCP_TRANSFER 13
#define CANN_HCCL_ROCE_TRANSFER 14
#define CANN_HCCL_RUNTIME 15
#define CANN_HCCL_DRV 16
#define CANN_HCCL_PROFILING 17
#define CANN_HCCL_CCE 18
#define CANN_HCCL_NETWORK 19
#define CANN_HCCL_AGAIN 20
#define CANN_HCCL_REMOTE 21
#define CANN_HCCL_SUSPENDING 22

#define CANN_HCCL_TYPE_INT8 0
#define CANN_HCCL_TYPE_INT16 1
#define CANN_HCCL_TYPE_INT32 2
#define CANN_HCCL_TYPE_FP16 3
#define CANN_HCCL_TYPE_FP32 4
#define CANN_HCCL_TYPE_INT64 5
#define CANN_HCCL_TYPE_UINT64 6
#define CANN_HCCL_TYPE_UINT8 7
#define CANN_HCCL_TYPE_UINT16 8
#define CANN_HCCL_TYPE_UINT32 9
#define CANN_HCCL_TYPE_FP64 10
#define CANN_HCCL_TYPE_BFP16 11

#define CANN_HCCL_OP_SUM 0
#define CANN_HCCL_OP_PROD 1
#define CANN_HCCL_OP_MAX 2
#define CANN_HCCL_OP_MIN 3

#define CANN_HCCL_SEND 0
#define CANN_HCCL_RECV 1

#define CANN_HCCL_ROOT_INFO_BYTES 4108
#define CANN_HCCL_COMM_NAME_BYTES 128
#define CANN_HCCL_UDI_BYTES 128
#define CANN_HCCL_CONFIG_INFO_BYTES 24
#define CANN_HCCL_CONFIG_MAGIC 0xf0f0f0f0
/* The oldest form that every CANN from 8.1 on takes: newer ones read it and keep their own defaults for the rest. */
#define CANN_HCCL_CONFIG_VERSION 5
#define CANN_HCCL_CONFIG_UNSET 0xffffffff

/* ---- Structs ------------------------------------------------------------------------------------------------- */

typedef struct CannMemLocation {
    uint32_t id;
    CannMemLocationType type;
} CannMemLocation;
SEQSHIFT_ASSERT(sizeof(CannMemLocation) == 8, "CannMemLocation is 8 bytes");
SEQSHIFT_ASSERT(offsetof(CannMemLocation, type) == 4, "CannMemLocation.type is at 4");

typedef struct CannPtrAttributes {
    CannMemLocation location;
    uint32_t pageSize;
    uint32_t reserved[4];
} CannPtrAttributes;
SEQSHIFT_ASSERT(sizeof(CannPtrAttributes) == 28, "CannPtrAttributes is 28 bytes");
SEQSHIFT_ASSERT(offsetof(CannPtrAttributes, pageSize) == 8, "CannPtrAttributes.pageSize is at 8");

/* `reserved` must be zero. */
typedef struct CannMemcpyBatchAttr {
    CannMemLocation dstLocation;
    CannMemLocation srcLocation;
    uint8_t reserved[16];
} CannMemcpyBatchAttr;
SEQSHIFT_ASSERT(sizeof(CannMemcpyBatchAttr) == 32, "CannMemcpyBatchAttr is 32 bytes");
SEQSHIFT_ASSERT(offsetof(CannMemcpyBatchAttr, srcLocation) == 8, "CannMemcpyBatchAttr.srcLocation is at 8");
SEQSHIFT_ASSERT(offsetof(CannMemcpyBatchAttr, reserved) == 16, "CannMemcpyBatchAttr.reserved is at 16");

/* Made by one rank, carried to the others as bytes. */
typedef struct CannHcclRoot {
    char bytes[CANN_HCCL_ROOT_INFO_BYTES];
} CannHcclRoot;
SEQSHIFT_ASSERT(sizeof(CannHcclRoot) == 4108, "CannHcclRoot is 4108 bytes");

typedef struct CannHcclSendRecv {
    CannHcclDirection direction;
    void *buffer;
    uint64_t count;
    CannHcclType type;
    uint32_t peer;
} CannHcclSendRecv;
SEQSHIFT_ASSERT(sizeof(CannHcclSendRecv) == 32, "CannHcclSendRecv is 32 bytes");
SEQSHIFT_ASSERT(offsetof(CannHcclSendRecv, buffer) == 8, "CannHcclSendRecv.buffer is at 8");
SEQSHIFT_ASSERT(offsetof(CannHcclSendRecv, count) == 16, "CannHcclSendRecv.count is at 16");
SEQSHIFT_ASSERT(offsetof(CannHcclSendRecv, type) == 24, "CannHcclSendRecv.type is at 24");
SEQSHIFT_ASSERT(offsetof(CannHcclSendRecv, peer) == 28, "CannHcclSendRecv.peer is at 28");

/*
 * A communicator's configuration in its version-5 form. `info` holds { size_t size; uint32_t magic; uint32_t version;
 * uint64_t zero; } as raw bytes, so that the struct is aligned to 4; seqshiftConfigInit fills it.
 */
typedef struct CannHcclConfig {
    char info[CANN_HCCL_CONFIG_INFO_BYTES];
    uint32_t bufferMib;     /* the library takes twice this much device memory per communicator */
    uint32_t deterministic;
    char name[CANN_HCCL_COMM_NAME_BYTES];
    char udi[CANN_HCCL_UDI_BYTES];
    uint32_t expansionMode; /* 0: the library's choice */
    uint32_t rdmaTrafficClass;
    uint32_t rdmaServiceLevel;
} CannHcclConfig;
SEQSHIFT_ASSERT(sizeof(CannHcclConfig) == 300, "CannHcclConfig is 300 bytes");
SEQSHIFT_ASSERT(offsetof(CannHcclConfig, bufferMib) == 24, "CannHcclConfig.bufferMib is at 24");
SEQSHIFT_ASSERT(offsetof(CannHcclConfig, deterministic) == 28, "CannHcclConfig.deterministic is at 28");
SEQSHIFT_ASSERT(offsetof(CannHcclConfig, name) == 32, "CannHcclConfig.name is at 32");
SEQSHIFT_ASSERT(offsetof(CannHcclConfig, udi) == 160, "CannHcclConfig.udi is at 160");
SEQSHIFT_ASSERT(offsetof(CannHcclConfig, expansionMode) == 288, "CannHcclConfig.expansionMode is at 288");
SEQSHIFT_ASSERT(offsetof(CannHcclConfig, rdmaTrafficClass) == 292, "CannHcclConfig.rdmaTrafficClass is at 292");
SEQSHIFT_ASSERT(offsetof(CannHcclConfig, rdmaServiceLevel) == 296, "CannHcclConfig.rdmaServiceLevel is at 296");

/* ---- The symbols --------------------------------------------------------------------------------------------- */

/*
 * Each list has entries X(result, name, (parameters)). Mandatory ones exist since CANN 8.1 and are found all or none;
 * optional ones are found one by one and may stay null.
 *
 * Traps:
 * - aclGetRecentErrMsg is thread-local and describes the last call: read it at once.
 * - timeouts are in milliseconds, -1 waits for ever.
 * - aclrtMemcpyAsync with host memory that is not pinned returns only when the copy is done; host to host is refused.
 * - aclrtMemcpy2dAsync takes rows of at most 5000000 bytes, at most 5242880 of them, no longer than either pitch; older
 *   releases refuse it between device and device.
 * - aclrtMemcpyBatch* copies between host and device only, one direction per call, unordered; device to device is
 *   refused. `attrsIndexes` starts at 0 and strictly increases; `failIndex` is SIZE_MAX when no single item failed.
 * - counts of HcclAlltoAllV are arrays of uint64_t, one entry per rank, in elements.
 * - the items of HcclBatchSendRecv must be matched one to one by the peers' items.
 */
#define SEQSHIFT_ACL_MANDATORY(X) \
    X(CannError, aclInit, (const char *configPath)) \
    X(CannError, aclFinalize, (void)) \
    X(const char *, aclGetRecentErrMsg, (void)) \
    X(CannError, aclrtSetDevice, (int32_t deviceId)) \
    X(CannError, aclrtGetDevice, (int32_t *deviceId)) \
    X(CannError, aclrtGetDeviceCount, (uint32_t *count)) \
    X(CannError, aclrtCreateStreamWithConfig, (CannStream *stream, uint32_t priority, uint32_t flags)) \
    X(CannError, aclrtDestroyStream, (CannStream stream)) \
    X(CannError, aclrtDestroyStreamForce, (CannStream stream)) \
    X(CannError, aclrtSynchronizeStreamWithTimeout, (CannStream stream, int32_t timeoutMs)) \
    X(CannError, aclrtStreamQuery, (CannStream stream, CannStreamStatus *status)) \
    X(CannError, aclrtStreamAbort, (CannStream stream)) \
    X(CannError, aclrtCreateEventExWithFlag, (CannEvent *event, uint32_t flags)) \
    X(CannError, aclrtDestroyEvent, (CannEvent event)) \
    X(CannError, aclrtRecordEvent, (CannEvent event, CannStream stream)) \
    X(CannError, aclrtStreamWaitEvent, (CannStream stream, CannEvent event)) \
    X(CannError, aclrtQueryEventStatus, (CannEvent event, CannRecordedStatus *status)) \
    X(CannError, aclrtSynchronizeEventWithTimeout, (CannEvent event, int32_t timeoutMs)) \
    X(CannError, aclrtEventElapsedTime, (float *milliseconds, CannEvent start, CannEvent end)) \
    X(CannError, aclrtMalloc, (void **devicePtr, size_t size, CannMemMallocPolicy policy)) \
    X(CannError, aclrtFree, (void *devicePtr)) \
    X(CannError, aclrtMallocHost, (void **hostPtr, size_t size)) \
    X(CannError, aclrtFreeHost, (void *hostPtr)) \
    X(CannError, aclrtMemcpy, (void *dst, size_t dstMax, const void *src, size_t count, CannMemcpyKind kind)) \
    X(CannError, aclrtMemcpyAsync, \
      (void *dst, size_t dstMax, const void *src, size_t count, CannMemcpyKind kind, CannStream stream)) \
    X(CannError, aclrtMemcpy2dAsync, \
      (void *dst, size_t dstPitch, const void *src, size_t srcPitch, size_t width, size_t height, \
       CannMemcpyKind kind, CannStream stream)) \
    X(CannError, aclrtMemsetAsync, (void *devicePtr, size_t maxCount, int32_t value, size_t count, CannStream stream)) \
    X(CannError, aclrtGetMemInfo, (CannMemAttr attr, size_t *free, size_t *total))

#define SEQSHIFT_HCCL_MANDATORY(X) \
    X(CannHcclStatus, HcclGetRootInfo, (CannHcclRoot * root)) \
    X(CannHcclStatus, HcclCommInitRootInfoConfig, \
      (uint32_t ranks, const CannHcclRoot *root, uint32_t rank, const CannHcclConfig *config, CannHcclHandle *comm)) \
    X(CannHcclStatus, HcclCommDestroy, (CannHcclHandle comm)) \
    X(CannHcclStatus, HcclGetRankSize, (CannHcclHandle comm, uint32_t *ranks)) \
    X(CannHcclStatus, HcclGetRankId, (CannHcclHandle comm, uint32_t *rank)) \
    X(CannHcclStatus, HcclAllGather, \
      (void *send, void *recv, uint64_t sendCount, CannHcclType type, CannHcclHandle comm, CannStream stream)) \
    X(CannHcclStatus, HcclAlltoAllV, \
      (const void *send, const void *sendCounts, const void *sendOffsets, CannHcclType sendType, const void *recv, \
       const void *recvCounts, const void *recvOffsets, CannHcclType recvType, CannHcclHandle comm, \
       CannStream stream)) \
    X(CannHcclStatus, HcclBatchSendRecv, \
      (CannHcclSendRecv * items, uint32_t itemCount, CannHcclHandle comm, CannStream stream)) \
    X(CannHcclStatus, HcclBarrier, (CannHcclHandle comm, CannStream stream)) \
    X(CannHcclStatus, HcclGetCommAsyncError, (CannHcclHandle comm, CannHcclStatus *error)) \
    X(const char *, HcclGetErrorString, (CannHcclStatus status))

/* The batched copies came with CANN 8.3 and 9.1; the rest is as old as the mandatory group, but not needed to run. */
#define SEQSHIFT_ACL_OPTIONAL(X) \
    X(const char *, aclrtGetSocName, (void)) \
    X(CannError, aclrtGetVersion, (int32_t * major, int32_t *minor, int32_t *patch)) \
    X(CannError, aclrtPointerGetAttributes, (const void *ptr, CannPtrAttributes *attributes)) \
    X(CannError, aclrtMemcpyBatchAsync, \
      (void **dsts, size_t *dstMaxs, void **srcs, size_t *sizes, size_t count, CannMemcpyBatchAttr *attrs, \
       size_t *attrsIndexes, size_t attrsCount, size_t *failIndex, CannStream stream)) \
    X(CannError, aclrtMemcpyBatchAsyncV2, \
      (void **dsts, size_t *dstMaxs, void **srcs, size_t *sizes, size_t count, CannMemcpyBatchAttr *attrs, \
       size_t *attrsIndexes, size_t attrsCount, CannStream stream))

/*
 * Kernels that select and write rows, as old as CANN 8.1: either both libraries serve, or no kernels are used.
 * libnnopbase.so has the tensors and must be loaded, globally, before the library of the kernels, which is
 * libopapi_nn.so from CANN 8.5 on and libopapi.so before.
 *
 * A kernel is called in two phases. The first checks the arguments and tells how many bytes of device memory the
 * second needs; it makes an executor, which the second uses up. The tensors must live until the second has returned,
 * all memory until the stream has passed the kernel. An executor that is not used is destroyed.
 *
 * Traps:
 * - a tensor that is not contiguous is made so first: for a strided view that is a copy of the whole cache, and for
 *   aclnnInplaceIndexCopy another one back.
 * - aclnnInplaceIndexCopy runs on AI cores for FLOAT, FLOAT16, BF16, INT32 and INT64; other types are much slower.
 * - an index out of range is not checked by the call; what the kernel then does is undefined.
 */
#define SEQSHIFT_NNOPBASE_OPTIONAL(X) \
    X(CannTensor, aclCreateTensor, \
      (const int64_t *dims, uint64_t dimCount, CannTensorType type, const int64_t *strides, int64_t offset, \
       CannFormat format, const int64_t *storageDims, uint64_t storageDimCount, void *data)) \
    X(CannError, aclDestroyTensor, (const void *tensor)) \
    X(CannError, aclDestroyAclOpExecutor, (CannExecutor executor))

#define SEQSHIFT_OPAPI_OPTIONAL(X) \
    X(CannError, aclnnIndexSelectGetWorkspaceSize, \
      (const void *self, int64_t dim, const void *index, CannTensor out, uint64_t *workspaceSize, \
       CannExecutor *executor)) \
    X(CannError, aclnnIndexSelect, \
      (void *workspace, uint64_t workspaceSize, CannExecutor executor, CannStream stream)) \
    X(CannError, aclnnInplaceIndexCopyGetWorkspaceSize, \
      (CannTensor self, int64_t dim, const void *index, const void *source, uint64_t *workspaceSize, \
       CannExecutor *executor)) \
    X(CannError, aclnnInplaceIndexCopy, \
      (void *workspace, uint64_t workspaceSize, CannExecutor executor, CannStream stream))

/*
 * Exported by the CPU mock's libascendcl.so only. Register makes [ptr, ptr + size) of ordinary host memory device
 * memory of `deviceId`, as if aclrtMalloc had returned it; the caller keeps it allocated until it is unregistered.
 * The same range may be registered several times and goes with its last registration; a range that overlaps another
 * one in part is CANN_INVALID_PARAM, and so is unregistering an unknown pointer.
 */
#define SEQSHIFT_MOCK_OPTIONAL(X) \
    X(CannError, seqshiftMockRegisterDeviceMemory, (void *ptr, size_t size, int32_t deviceId)) \
    X(CannError, seqshiftMockUnregisterDeviceMemory, (void *ptr))

#define SEQSHIFT_MEMBER(result, name, parameters) result(*name) parameters;

/* The symbol table, filled at run time by the Rust core. C code only receives a pointer to it. */
typedef struct SeqshiftSymbols {
    SEQSHIFT_ACL_MANDATORY(SEQSHIFT_MEMBER)
    SEQSHIFT_HCCL_MANDATORY(SEQSHIFT_MEMBER)
    SEQSHIFT_ACL_OPTIONAL(SEQSHIFT_MEMBER)
    SEQSHIFT_NNOPBASE_OPTIONAL(SEQSHIFT_MEMBER)
    SEQSHIFT_OPAPI_OPTIONAL(SEQSHIFT_MEMBER)
    SEQSHIFT_MOCK_OPTIONAL(SEQSHIFT_MEMBER)
} SeqshiftSymbols;

/* With SEQSHIFT_DECLARE_CANN the functions are declared too, so that a compiler checks whoever implements them. */
#ifdef SEQSHIFT_DECLARE_CANN
#define SEQSHIFT_PROTOTYPE(result, name, parameters) \
    __attribute__((visibility("default"))) result name parameters;
SEQSHIFT_ACL_MANDATORY(SEQSHIFT_PROTOTYPE)
SEQSHIFT_HCCL_MANDATORY(SEQSHIFT_PROTOTYPE)
SEQSHIFT_ACL_OPTIONAL(SEQSHIFT_PROTOTYPE)
SEQSHIFT_NNOPBASE_OPTIONAL(SEQSHIFT_PROTOTYPE)
SEQSHIFT_OPAPI_OPTIONAL(SEQSHIFT_PROTOTYPE)
SEQSHIFT_MOCK_OPTIONAL(SEQSHIFT_PROTOTYPE)
#endif

/* ---- The shim ------------------------------------------------------------------------------------------------ */

#define SEQSHIFT_LIBRARY_ACL 0
#define SEQSHIFT_LIBRARY_HCCL 1
#define SEQSHIFT_LIBRARY_NNOPBASE 2
#define SEQSHIFT_LIBRARY_OPAPI 3

/* One member of SeqshiftSymbols. */
typedef struct SeqshiftSymbol {
    const char *name;   /* the exported name, NUL-terminated */
    uint32_t offset;    /* of the member, in bytes */
    uint16_t library;   /* SEQSHIFT_LIBRARY_* */
    uint16_t mandatory; /* 0 or 1 */
} SeqshiftSymbol;
SEQSHIFT_ASSERT(sizeof(SeqshiftSymbol) == 16, "SeqshiftSymbol is 16 bytes");

/* All members of SeqshiftSymbols in order; `count` receives their number. */
const SeqshiftSymbol *seqshiftSymbolList(size_t *count);

/* aclInit that takes CANN_REPEAT_INITIALIZE for success; *owner is 1 if this call initialised the process, else 0. */
CannError seqshiftInit(const SeqshiftSymbols *symbols, int32_t *owner);

/* Fills a communicator configuration: library defaults but for the buffer size and the name (NULL: unnamed). */
void seqshiftConfigInit(CannHcclConfig *config, uint32_t bufferMib, const char *name);

/* One sub-cache of a KV cache: block b is [base + b * stride, base + b * stride + length). */
typedef struct SeqshiftBlocks {
    void *base;
    uint64_t blocks;
    uint64_t stride;
    uint64_t length;
} SeqshiftBlocks;
SEQSHIFT_ASSERT(sizeof(SeqshiftBlocks) == 32, "SeqshiftBlocks is 32 bytes");

/* Kept by the caller from one copy of blocks to the next; zeroed at first. The counters are added to, never reset. */
typedef struct SeqshiftCopyState {
    uint64_t copies;    /* one-dimensional copies enqueued */
    uint64_t copies2d;  /* two-dimensional copies enqueued */
    uint64_t bytes;     /* bytes enqueued */
    uint64_t refused2d; /* not 0: no two-dimensional copies; set when this CANN refuses them on the device */
} SeqshiftCopyState;
SEQSHIFT_ASSERT(sizeof(SeqshiftCopyState) == 32, "SeqshiftCopyState is 32 bytes");

#define SEQSHIFT_GATHER 0
#define SEQSHIFT_SCATTER 1

/*
 * Enqueues the copies between part of each listed block and contiguous staging memory, in the order of `ids`.
 * [begin, begin + length) is the part of a block, in bytes. SEQSHIFT_GATHER reads the cache, SEQSHIFT_SCATTER writes
 * it. Consecutive ids become one copy where the blocks adjoin, else, from four evenly spaced ids on, one
 * two-dimensional copy. Staging takes count * length bytes, at most `stagingBytes`.
 * CANN_INVALID_PARAM, and nothing enqueued, if an id, the part or the staging memory is out of range.
 */
CannError seqshiftCopyBlocks(const SeqshiftSymbols *symbols, const SeqshiftBlocks *cache, uint64_t begin,
                             uint64_t length, const uint32_t *ids, size_t count, void *staging, size_t stagingBytes,
                             int32_t direction, CannStream stream, SeqshiftCopyState *state);

#ifdef __cplusplus
}
#endif

#endif /* SEQSHIFT_CANN_H */
