// @generated from cann_shim/include/seqshift_cann.h by bindgen; tests/bindings.rs compares.

pub const CANN_OK: i32 = 0;
pub const CANN_INVALID_PARAM: i32 = 100000;
pub const CANN_UNINITIALIZE: i32 = 100001;
pub const CANN_REPEAT_INITIALIZE: i32 = 100002;
pub const CANN_REPEAT_FINALIZE: i32 = 100037;
pub const CANN_RT_PARAM_INVALID: i32 = 107000;
pub const CANN_RT_INVALID_DEVICE: i32 = 107001;
pub const CANN_RT_CONTEXT_NULL: i32 = 107002;
pub const CANN_RT_STREAM_CONTEXT: i32 = 107003;
pub const CANN_RT_ADDR_UNALIGNED: i32 = 107008;
pub const CANN_RT_INVALID_HANDLE: i32 = 107017;
pub const CANN_RT_WAIT_TIMEOUT: i32 = 107019;
pub const CANN_RT_TASK_TIMEOUT: i32 = 107020;
pub const CANN_RT_DEVICE_TASK_ABORT: i32 = 107022;
pub const CANN_RT_STREAM_ABORT: i32 = 107023;
pub const CANN_RT_STREAM_CAPTURED: i32 = 107027;
pub const CANN_BAD_ALLOC: i32 = 200000;
pub const CANN_API_NOT_SUPPORT: i32 = 200001;
pub const CANN_FEATURE_UNSUPPORTED: i32 = 200006;
pub const CANN_RT_FEATURE_NOT_SUPPORT: i32 = 207000;
pub const CANN_RT_MEMORY_ALLOCATION: i32 = 207001;
pub const CANN_RT_NO_DEVICE: i32 = 207004;
pub const CANN_RT_RESOURCE_ALLOC_FAIL: i32 = 207005;
pub const CANN_RT_NO_EVENT_RESOURCE: i32 = 207007;
pub const CANN_RT_NO_STREAM_RESOURCE: i32 = 207008;
pub const CANN_RT_DEVICE_OOM: i32 = 207018;
pub const CANN_STORAGE_OVER_LIMIT: i32 = 300000;
pub const CANN_INTERNAL: i32 = 500000;
pub const CANN_FAILURE: i32 = 500001;
pub const CANN_RT_FAILURE: i32 = 500003;
pub const CANN_DRV_FAILURE: i32 = 500004;
pub const CANN_RT_INTERNAL: i32 = 507000;
pub const CANN_RT_LOST_HEARTBEAT: i32 = 507010;
pub const CANN_RT_SYS_DMA: i32 = 507013;
pub const CANN_RT_AICORE_TIMEOUT: i32 = 507014;
pub const CANN_RT_AICORE_EXCEPTION: i32 = 507015;
pub const CANN_RT_STREAM_SYNC_TIMEOUT: i32 = 507046;
pub const CANN_RT_EVENT_SYNC_TIMEOUT: i32 = 507047;
pub const CANN_RT_DEVICE_MEM_ERROR: i32 = 507053;
pub const CANN_RT_LINK_ERROR: i32 = 507056;
pub const CANN_RT_DRV_INTERNAL: i32 = 507899;
pub const CANN_NN_PARAM_NULLPTR: i32 = 161001;
pub const CANN_NN_PARAM_INVALID: i32 = 161002;
pub const CANN_NN_RUNTIME_ERROR: i32 = 361001;
pub const CANN_MEM_HUGE_FIRST: i32 = 0;
pub const CANN_MEM_HUGE_ONLY: i32 = 1;
pub const CANN_MEM_NORMAL_ONLY: i32 = 2;
pub const CANN_COPY_HOST_TO_HOST: i32 = 0;
pub const CANN_COPY_HOST_TO_DEVICE: i32 = 1;
pub const CANN_COPY_DEVICE_TO_HOST: i32 = 2;
pub const CANN_COPY_DEVICE_TO_DEVICE: i32 = 3;
pub const CANN_ATTR_DDR: i32 = 0;
pub const CANN_ATTR_HBM: i32 = 1;
pub const CANN_ATTR_DDR_HUGE: i32 = 2;
pub const CANN_ATTR_DDR_NORMAL: i32 = 3;
pub const CANN_ATTR_HBM_HUGE: i32 = 4;
pub const CANN_ATTR_HBM_NORMAL: i32 = 5;
pub const CANN_EVENT_COMPLETE: i32 = 0;
pub const CANN_EVENT_NOT_READY: i32 = 1;
pub const CANN_RECORDED_NOT_READY: i32 = 0;
pub const CANN_RECORDED_COMPLETE: i32 = 1;
pub const CANN_WAIT_COMPLETE: i32 = 0;
pub const CANN_WAIT_NOT_READY: i32 = 1;
pub const CANN_STREAM_COMPLETE: i32 = 0;
pub const CANN_STREAM_NOT_READY: i32 = 1;
pub const CANN_EVENT_FLAG_SYNC: i32 = 1;
pub const CANN_EVENT_FLAG_STREAM_PROGRESS: i32 = 2;
pub const CANN_EVENT_FLAG_TIME_LINE: i32 = 8;
pub const CANN_STREAM_FLAG_FAST_LAUNCH: i32 = 1;
pub const CANN_STREAM_FLAG_FAST_SYNC: i32 = 2;
pub const CANN_CALLBACK_NO_BLOCK: i32 = 0;
pub const CANN_CALLBACK_BLOCK: i32 = 1;
pub const CANN_RUN_DEVICE: i32 = 0;
pub const CANN_RUN_HOST: i32 = 1;
pub const CANN_LOCATION_HOST: i32 = 0;
pub const CANN_LOCATION_DEVICE: i32 = 1;
pub const CANN_LOCATION_UNREGISTERED: i32 = 2;
pub const CANN_FORMAT_ND: i32 = 2;
pub const CANN_FORMAT_FRACTAL_NZ: i32 = 29;
pub const CANN_TENSOR_FLOAT: i32 = 0;
pub const CANN_TENSOR_FLOAT16: i32 = 1;
pub const CANN_TENSOR_INT8: i32 = 2;
pub const CANN_TENSOR_INT32: i32 = 3;
pub const CANN_TENSOR_UINT8: i32 = 4;
pub const CANN_TENSOR_INT16: i32 = 6;
pub const CANN_TENSOR_UINT16: i32 = 7;
pub const CANN_TENSOR_UINT32: i32 = 8;
pub const CANN_TENSOR_INT64: i32 = 9;
pub const CANN_TENSOR_UINT64: i32 = 10;
pub const CANN_TENSOR_DOUBLE: i32 = 11;
pub const CANN_TENSOR_BOOL: i32 = 12;
pub const CANN_TENSOR_BF16: i32 = 27;
pub const CANN_MEMCPY_BATCH_MAX: i32 = 4096;
pub const CANN_HCCL_OK: i32 = 0;
pub const CANN_HCCL_PARA: i32 = 1;
pub const CANN_HCCL_PTR: i32 = 2;
pub const CANN_HCCL_MEMORY: i32 = 3;
pub const CANN_HCCL_INTERNAL: i32 = 4;
pub const CANN_HCCL_NOT_SUPPORT: i32 = 5;
pub const CANN_HCCL_NOT_FOUND: i32 = 6;
pub const CANN_HCCL_UNAVAIL: i32 = 7;
pub const CANN_HCCL_SYSCALL: i32 = 8;
pub const CANN_HCCL_TIMEOUT: i32 = 9;
pub const CANN_HCCL_OPEN_FILE: i32 = 10;
pub const CANN_HCCL_TCP_CONNECT: i32 = 11;
pub const CANN_HCCL_ROCE_CONNECT: i32 = 12;
pub const CANN_HCCL_TCP_TRANSFER: i32 = 13;
pub const CANN_HCCL_ROCE_TRANSFER: i32 = 14;
pub const CANN_HCCL_RUNTIME: i32 = 15;
pub const CANN_HCCL_DRV: i32 = 16;
pub const CANN_HCCL_PROFILING: i32 = 17;
pub const CANN_HCCL_CCE: i32 = 18;
pub const CANN_HCCL_NETWORK: i32 = 19;
pub const CANN_HCCL_AGAIN: i32 = 20;
pub const CANN_HCCL_REMOTE: i32 = 21;
pub const CANN_HCCL_SUSPENDING: i32 = 22;
pub const CANN_HCCL_TYPE_INT8: i32 = 0;
pub const CANN_HCCL_TYPE_INT16: i32 = 1;
pub const CANN_HCCL_TYPE_INT32: i32 = 2;
pub const CANN_HCCL_TYPE_FP16: i32 = 3;
pub const CANN_HCCL_TYPE_FP32: i32 = 4;
pub const CANN_HCCL_TYPE_INT64: i32 = 5;
pub const CANN_HCCL_TYPE_UINT64: i32 = 6;
pub const CANN_HCCL_TYPE_UINT8: i32 = 7;
pub const CANN_HCCL_TYPE_UINT16: i32 = 8;
pub const CANN_HCCL_TYPE_UINT32: i32 = 9;
pub const CANN_HCCL_TYPE_FP64: i32 = 10;
pub const CANN_HCCL_TYPE_BFP16: i32 = 11;
pub const CANN_HCCL_OP_SUM: i32 = 0;
pub const CANN_HCCL_OP_PROD: i32 = 1;
pub const CANN_HCCL_OP_MAX: i32 = 2;
pub const CANN_HCCL_OP_MIN: i32 = 3;
pub const CANN_HCCL_SEND: i32 = 0;
pub const CANN_HCCL_RECV: i32 = 1;
pub const CANN_HCCL_ROOT_INFO_BYTES: i32 = 4108;
pub const CANN_HCCL_COMM_NAME_BYTES: i32 = 128;
pub const CANN_HCCL_UDI_BYTES: i32 = 128;
pub const CANN_HCCL_CONFIG_INFO_BYTES: i32 = 24;
pub const CANN_HCCL_CONFIG_MAGIC: i64 = 4042322160;
pub const CANN_HCCL_CONFIG_VERSION: i32 = 5;
pub const CANN_HCCL_CONFIG_UNSET: i64 = 4294967295;
pub const SEQSHIFT_LIBRARY_ACL: i32 = 0;
pub const SEQSHIFT_LIBRARY_HCCL: i32 = 1;
pub const SEQSHIFT_LIBRARY_NNOPBASE: i32 = 2;
pub const SEQSHIFT_LIBRARY_OPAPI: i32 = 3;
pub const SEQSHIFT_GATHER: i32 = 0;
pub const SEQSHIFT_SCATTER: i32 = 1;
pub type CannError = i32;
pub type CannMemMallocPolicy = i32;
pub type CannMemcpyKind = i32;
pub type CannMemAttr = i32;
pub type CannEventStatus = i32;
pub type CannRecordedStatus = i32;
pub type CannWaitStatus = i32;
pub type CannStreamStatus = i32;
pub type CannCallbackBlock = i32;
pub type CannRunMode = i32;
pub type CannMemLocationType = i32;
pub type CannTensorType = i32;
pub type CannFormat = i32;
pub type CannHcclStatus = i32;
pub type CannHcclType = i32;
pub type CannHcclOp = i32;
pub type CannHcclDirection = i32;
pub type CannStream = *mut ::std::os::raw::c_void;
pub type CannEvent = *mut ::std::os::raw::c_void;
pub type CannContext = *mut ::std::os::raw::c_void;
pub type CannHcclHandle = *mut ::std::os::raw::c_void;
pub type CannTensor = *mut ::std::os::raw::c_void;
pub type CannExecutor = *mut ::std::os::raw::c_void;
pub type CannCallback = ::std::option::Option<
    unsafe extern "C" fn(userData: *mut ::std::os::raw::c_void),
>;
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct CannMemLocation {
    pub id: u32,
    pub type_: CannMemLocationType,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CannMemLocation"][::std::mem::size_of::<CannMemLocation>() - 8usize];
    ["Alignment of CannMemLocation"][::std::mem::align_of::<CannMemLocation>() - 4usize];
    [
        "Offset of field: CannMemLocation::id",
    ][::std::mem::offset_of!(CannMemLocation, id) - 0usize];
    [
        "Offset of field: CannMemLocation::type_",
    ][::std::mem::offset_of!(CannMemLocation, type_) - 4usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct CannPtrAttributes {
    pub location: CannMemLocation,
    pub pageSize: u32,
    pub reserved: [u32; 4usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CannPtrAttributes"][::std::mem::size_of::<CannPtrAttributes>() - 28usize];
    [
        "Alignment of CannPtrAttributes",
    ][::std::mem::align_of::<CannPtrAttributes>() - 4usize];
    [
        "Offset of field: CannPtrAttributes::location",
    ][::std::mem::offset_of!(CannPtrAttributes, location) - 0usize];
    [
        "Offset of field: CannPtrAttributes::pageSize",
    ][::std::mem::offset_of!(CannPtrAttributes, pageSize) - 8usize];
    [
        "Offset of field: CannPtrAttributes::reserved",
    ][::std::mem::offset_of!(CannPtrAttributes, reserved) - 12usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct CannMemcpyBatchAttr {
    pub dstLocation: CannMemLocation,
    pub srcLocation: CannMemLocation,
    pub reserved: [u8; 16usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of CannMemcpyBatchAttr",
    ][::std::mem::size_of::<CannMemcpyBatchAttr>() - 32usize];
    [
        "Alignment of CannMemcpyBatchAttr",
    ][::std::mem::align_of::<CannMemcpyBatchAttr>() - 4usize];
    [
        "Offset of field: CannMemcpyBatchAttr::dstLocation",
    ][::std::mem::offset_of!(CannMemcpyBatchAttr, dstLocation) - 0usize];
    [
        "Offset of field: CannMemcpyBatchAttr::srcLocation",
    ][::std::mem::offset_of!(CannMemcpyBatchAttr, srcLocation) - 8usize];
    [
        "Offset of field: CannMemcpyBatchAttr::reserved",
    ][::std::mem::offset_of!(CannMemcpyBatchAttr, reserved) - 16usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CannHcclRoot {
    pub bytes: [::std::os::raw::c_char; 4108usize],
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CannHcclRoot"][::std::mem::size_of::<CannHcclRoot>() - 4108usize];
    ["Alignment of CannHcclRoot"][::std::mem::align_of::<CannHcclRoot>() - 1usize];
    [
        "Offset of field: CannHcclRoot::bytes",
    ][::std::mem::offset_of!(CannHcclRoot, bytes) - 0usize];
};
impl Default for CannHcclRoot {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CannHcclSendRecv {
    pub direction: CannHcclDirection,
    pub buffer: *mut ::std::os::raw::c_void,
    pub count: u64,
    pub type_: CannHcclType,
    pub peer: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CannHcclSendRecv"][::std::mem::size_of::<CannHcclSendRecv>() - 32usize];
    [
        "Alignment of CannHcclSendRecv",
    ][::std::mem::align_of::<CannHcclSendRecv>() - 8usize];
    [
        "Offset of field: CannHcclSendRecv::direction",
    ][::std::mem::offset_of!(CannHcclSendRecv, direction) - 0usize];
    [
        "Offset of field: CannHcclSendRecv::buffer",
    ][::std::mem::offset_of!(CannHcclSendRecv, buffer) - 8usize];
    [
        "Offset of field: CannHcclSendRecv::count",
    ][::std::mem::offset_of!(CannHcclSendRecv, count) - 16usize];
    [
        "Offset of field: CannHcclSendRecv::type_",
    ][::std::mem::offset_of!(CannHcclSendRecv, type_) - 24usize];
    [
        "Offset of field: CannHcclSendRecv::peer",
    ][::std::mem::offset_of!(CannHcclSendRecv, peer) - 28usize];
};
impl Default for CannHcclSendRecv {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct CannHcclConfig {
    pub info: [::std::os::raw::c_char; 24usize],
    pub bufferMib: u32,
    pub deterministic: u32,
    pub name: [::std::os::raw::c_char; 128usize],
    pub udi: [::std::os::raw::c_char; 128usize],
    pub expansionMode: u32,
    pub rdmaTrafficClass: u32,
    pub rdmaServiceLevel: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of CannHcclConfig"][::std::mem::size_of::<CannHcclConfig>() - 300usize];
    ["Alignment of CannHcclConfig"][::std::mem::align_of::<CannHcclConfig>() - 4usize];
    [
        "Offset of field: CannHcclConfig::info",
    ][::std::mem::offset_of!(CannHcclConfig, info) - 0usize];
    [
        "Offset of field: CannHcclConfig::bufferMib",
    ][::std::mem::offset_of!(CannHcclConfig, bufferMib) - 24usize];
    [
        "Offset of field: CannHcclConfig::deterministic",
    ][::std::mem::offset_of!(CannHcclConfig, deterministic) - 28usize];
    [
        "Offset of field: CannHcclConfig::name",
    ][::std::mem::offset_of!(CannHcclConfig, name) - 32usize];
    [
        "Offset of field: CannHcclConfig::udi",
    ][::std::mem::offset_of!(CannHcclConfig, udi) - 160usize];
    [
        "Offset of field: CannHcclConfig::expansionMode",
    ][::std::mem::offset_of!(CannHcclConfig, expansionMode) - 288usize];
    [
        "Offset of field: CannHcclConfig::rdmaTrafficClass",
    ][::std::mem::offset_of!(CannHcclConfig, rdmaTrafficClass) - 292usize];
    [
        "Offset of field: CannHcclConfig::rdmaServiceLevel",
    ][::std::mem::offset_of!(CannHcclConfig, rdmaServiceLevel) - 296usize];
};
impl Default for CannHcclConfig {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct SeqshiftSymbols {
    pub aclInit: ::std::option::Option<
        unsafe extern "C" fn(configPath: *const ::std::os::raw::c_char) -> CannError,
    >,
    pub aclFinalize: ::std::option::Option<unsafe extern "C" fn() -> CannError>,
    pub aclGetRecentErrMsg: ::std::option::Option<
        unsafe extern "C" fn() -> *const ::std::os::raw::c_char,
    >,
    pub aclrtSetDevice: ::std::option::Option<
        unsafe extern "C" fn(deviceId: i32) -> CannError,
    >,
    pub aclrtGetDevice: ::std::option::Option<
        unsafe extern "C" fn(deviceId: *mut i32) -> CannError,
    >,
    pub aclrtGetDeviceCount: ::std::option::Option<
        unsafe extern "C" fn(count: *mut u32) -> CannError,
    >,
    pub aclrtCreateStreamWithConfig: ::std::option::Option<
        unsafe extern "C" fn(
            stream: *mut CannStream,
            priority: u32,
            flags: u32,
        ) -> CannError,
    >,
    pub aclrtDestroyStream: ::std::option::Option<
        unsafe extern "C" fn(stream: CannStream) -> CannError,
    >,
    pub aclrtDestroyStreamForce: ::std::option::Option<
        unsafe extern "C" fn(stream: CannStream) -> CannError,
    >,
    pub aclrtSynchronizeStreamWithTimeout: ::std::option::Option<
        unsafe extern "C" fn(stream: CannStream, timeoutMs: i32) -> CannError,
    >,
    pub aclrtStreamQuery: ::std::option::Option<
        unsafe extern "C" fn(
            stream: CannStream,
            status: *mut CannStreamStatus,
        ) -> CannError,
    >,
    pub aclrtStreamAbort: ::std::option::Option<
        unsafe extern "C" fn(stream: CannStream) -> CannError,
    >,
    pub aclrtCreateEventExWithFlag: ::std::option::Option<
        unsafe extern "C" fn(event: *mut CannEvent, flags: u32) -> CannError,
    >,
    pub aclrtDestroyEvent: ::std::option::Option<
        unsafe extern "C" fn(event: CannEvent) -> CannError,
    >,
    pub aclrtRecordEvent: ::std::option::Option<
        unsafe extern "C" fn(event: CannEvent, stream: CannStream) -> CannError,
    >,
    pub aclrtStreamWaitEvent: ::std::option::Option<
        unsafe extern "C" fn(stream: CannStream, event: CannEvent) -> CannError,
    >,
    pub aclrtQueryEventStatus: ::std::option::Option<
        unsafe extern "C" fn(
            event: CannEvent,
            status: *mut CannRecordedStatus,
        ) -> CannError,
    >,
    pub aclrtSynchronizeEventWithTimeout: ::std::option::Option<
        unsafe extern "C" fn(event: CannEvent, timeoutMs: i32) -> CannError,
    >,
    pub aclrtEventElapsedTime: ::std::option::Option<
        unsafe extern "C" fn(
            milliseconds: *mut f32,
            start: CannEvent,
            end: CannEvent,
        ) -> CannError,
    >,
    pub aclrtMalloc: ::std::option::Option<
        unsafe extern "C" fn(
            devicePtr: *mut *mut ::std::os::raw::c_void,
            size: usize,
            policy: CannMemMallocPolicy,
        ) -> CannError,
    >,
    pub aclrtFree: ::std::option::Option<
        unsafe extern "C" fn(devicePtr: *mut ::std::os::raw::c_void) -> CannError,
    >,
    pub aclrtMallocHost: ::std::option::Option<
        unsafe extern "C" fn(
            hostPtr: *mut *mut ::std::os::raw::c_void,
            size: usize,
        ) -> CannError,
    >,
    pub aclrtFreeHost: ::std::option::Option<
        unsafe extern "C" fn(hostPtr: *mut ::std::os::raw::c_void) -> CannError,
    >,
    pub aclrtMemcpy: ::std::option::Option<
        unsafe extern "C" fn(
            dst: *mut ::std::os::raw::c_void,
            dstMax: usize,
            src: *const ::std::os::raw::c_void,
            count: usize,
            kind: CannMemcpyKind,
        ) -> CannError,
    >,
    pub aclrtMemcpyAsync: ::std::option::Option<
        unsafe extern "C" fn(
            dst: *mut ::std::os::raw::c_void,
            dstMax: usize,
            src: *const ::std::os::raw::c_void,
            count: usize,
            kind: CannMemcpyKind,
            stream: CannStream,
        ) -> CannError,
    >,
    pub aclrtMemcpy2dAsync: ::std::option::Option<
        unsafe extern "C" fn(
            dst: *mut ::std::os::raw::c_void,
            dstPitch: usize,
            src: *const ::std::os::raw::c_void,
            srcPitch: usize,
            width: usize,
            height: usize,
            kind: CannMemcpyKind,
            stream: CannStream,
        ) -> CannError,
    >,
    pub aclrtMemsetAsync: ::std::option::Option<
        unsafe extern "C" fn(
            devicePtr: *mut ::std::os::raw::c_void,
            maxCount: usize,
            value: i32,
            count: usize,
            stream: CannStream,
        ) -> CannError,
    >,
    pub aclrtGetMemInfo: ::std::option::Option<
        unsafe extern "C" fn(
            attr: CannMemAttr,
            free: *mut usize,
            total: *mut usize,
        ) -> CannError,
    >,
    pub HcclGetRootInfo: ::std::option::Option<
        unsafe extern "C" fn(root: *mut CannHcclRoot) -> CannHcclStatus,
    >,
    pub HcclCommInitRootInfoConfig: ::std::option::Option<
        unsafe extern "C" fn(
            ranks: u32,
            root: *const CannHcclRoot,
            rank: u32,
            config: *const CannHcclConfig,
            comm: *mut CannHcclHandle,
        ) -> CannHcclStatus,
    >,
    pub HcclCommDestroy: ::std::option::Option<
        unsafe extern "C" fn(comm: CannHcclHandle) -> CannHcclStatus,
    >,
    pub HcclGetRankSize: ::std::option::Option<
        unsafe extern "C" fn(comm: CannHcclHandle, ranks: *mut u32) -> CannHcclStatus,
    >,
    pub HcclGetRankId: ::std::option::Option<
        unsafe extern "C" fn(comm: CannHcclHandle, rank: *mut u32) -> CannHcclStatus,
    >,
    pub HcclAllGather: ::std::option::Option<
        unsafe extern "C" fn(
            send: *mut ::std::os::raw::c_void,
            recv: *mut ::std::os::raw::c_void,
            sendCount: u64,
            type_: CannHcclType,
            comm: CannHcclHandle,
            stream: CannStream,
        ) -> CannHcclStatus,
    >,
    pub HcclAlltoAllV: ::std::option::Option<
        unsafe extern "C" fn(
            send: *const ::std::os::raw::c_void,
            sendCounts: *const ::std::os::raw::c_void,
            sendOffsets: *const ::std::os::raw::c_void,
            sendType: CannHcclType,
            recv: *const ::std::os::raw::c_void,
            recvCounts: *const ::std::os::raw::c_void,
            recvOffsets: *const ::std::os::raw::c_void,
            recvType: CannHcclType,
            comm: CannHcclHandle,
            stream: CannStream,
        ) -> CannHcclStatus,
    >,
    pub HcclBatchSendRecv: ::std::option::Option<
        unsafe extern "C" fn(
            items: *mut CannHcclSendRecv,
            itemCount: u32,
            comm: CannHcclHandle,
            stream: CannStream,
        ) -> CannHcclStatus,
    >,
    pub HcclBarrier: ::std::option::Option<
        unsafe extern "C" fn(comm: CannHcclHandle, stream: CannStream) -> CannHcclStatus,
    >,
    pub HcclGetCommAsyncError: ::std::option::Option<
        unsafe extern "C" fn(
            comm: CannHcclHandle,
            error: *mut CannHcclStatus,
        ) -> CannHcclStatus,
    >,
    pub HcclGetErrorString: ::std::option::Option<
        unsafe extern "C" fn(status: CannHcclStatus) -> *const ::std::os::raw::c_char,
    >,
    pub aclrtGetSocName: ::std::option::Option<
        unsafe extern "C" fn() -> *const ::std::os::raw::c_char,
    >,
    pub aclrtGetVersion: ::std::option::Option<
        unsafe extern "C" fn(
            major: *mut i32,
            minor: *mut i32,
            patch: *mut i32,
        ) -> CannError,
    >,
    pub aclrtPointerGetAttributes: ::std::option::Option<
        unsafe extern "C" fn(
            ptr: *const ::std::os::raw::c_void,
            attributes: *mut CannPtrAttributes,
        ) -> CannError,
    >,
    pub aclrtMemcpyBatchAsync: ::std::option::Option<
        unsafe extern "C" fn(
            dsts: *mut *mut ::std::os::raw::c_void,
            dstMaxs: *mut usize,
            srcs: *mut *mut ::std::os::raw::c_void,
            sizes: *mut usize,
            count: usize,
            attrs: *mut CannMemcpyBatchAttr,
            attrsIndexes: *mut usize,
            attrsCount: usize,
            failIndex: *mut usize,
            stream: CannStream,
        ) -> CannError,
    >,
    pub aclrtMemcpyBatchAsyncV2: ::std::option::Option<
        unsafe extern "C" fn(
            dsts: *mut *mut ::std::os::raw::c_void,
            dstMaxs: *mut usize,
            srcs: *mut *mut ::std::os::raw::c_void,
            sizes: *mut usize,
            count: usize,
            attrs: *mut CannMemcpyBatchAttr,
            attrsIndexes: *mut usize,
            attrsCount: usize,
            stream: CannStream,
        ) -> CannError,
    >,
    pub aclCreateTensor: ::std::option::Option<
        unsafe extern "C" fn(
            dims: *const i64,
            dimCount: u64,
            type_: CannTensorType,
            strides: *const i64,
            offset: i64,
            format: CannFormat,
            storageDims: *const i64,
            storageDimCount: u64,
            data: *mut ::std::os::raw::c_void,
        ) -> CannTensor,
    >,
    pub aclDestroyTensor: ::std::option::Option<
        unsafe extern "C" fn(tensor: *const ::std::os::raw::c_void) -> CannError,
    >,
    pub aclDestroyAclOpExecutor: ::std::option::Option<
        unsafe extern "C" fn(executor: CannExecutor) -> CannError,
    >,
    pub aclnnIndexSelectGetWorkspaceSize: ::std::option::Option<
        unsafe extern "C" fn(
            self_: *const ::std::os::raw::c_void,
            dim: i64,
            index: *const ::std::os::raw::c_void,
            out: CannTensor,
            workspaceSize: *mut u64,
            executor: *mut CannExecutor,
        ) -> CannError,
    >,
    pub aclnnIndexSelect: ::std::option::Option<
        unsafe extern "C" fn(
            workspace: *mut ::std::os::raw::c_void,
            workspaceSize: u64,
            executor: CannExecutor,
            stream: CannStream,
        ) -> CannError,
    >,
    pub aclnnInplaceIndexCopyGetWorkspaceSize: ::std::option::Option<
        unsafe extern "C" fn(
            self_: CannTensor,
            dim: i64,
            index: *const ::std::os::raw::c_void,
            source: *const ::std::os::raw::c_void,
            workspaceSize: *mut u64,
            executor: *mut CannExecutor,
        ) -> CannError,
    >,
    pub aclnnInplaceIndexCopy: ::std::option::Option<
        unsafe extern "C" fn(
            workspace: *mut ::std::os::raw::c_void,
            workspaceSize: u64,
            executor: CannExecutor,
            stream: CannStream,
        ) -> CannError,
    >,
    pub seqshiftMockRegisterDeviceMemory: ::std::option::Option<
        unsafe extern "C" fn(
            ptr: *mut ::std::os::raw::c_void,
            size: usize,
            deviceId: i32,
        ) -> CannError,
    >,
    pub seqshiftMockUnregisterDeviceMemory: ::std::option::Option<
        unsafe extern "C" fn(ptr: *mut ::std::os::raw::c_void) -> CannError,
    >,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of SeqshiftSymbols"][::std::mem::size_of::<SeqshiftSymbols>() - 424usize];
    ["Alignment of SeqshiftSymbols"][::std::mem::align_of::<SeqshiftSymbols>() - 8usize];
    [
        "Offset of field: SeqshiftSymbols::aclInit",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclInit) - 0usize];
    [
        "Offset of field: SeqshiftSymbols::aclFinalize",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclFinalize) - 8usize];
    [
        "Offset of field: SeqshiftSymbols::aclGetRecentErrMsg",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclGetRecentErrMsg) - 16usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtSetDevice",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtSetDevice) - 24usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtGetDevice",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtGetDevice) - 32usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtGetDeviceCount",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtGetDeviceCount) - 40usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtCreateStreamWithConfig",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtCreateStreamWithConfig) - 48usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtDestroyStream",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtDestroyStream) - 56usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtDestroyStreamForce",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtDestroyStreamForce) - 64usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtSynchronizeStreamWithTimeout",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtSynchronizeStreamWithTimeout)
        - 72usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtStreamQuery",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtStreamQuery) - 80usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtStreamAbort",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtStreamAbort) - 88usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtCreateEventExWithFlag",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtCreateEventExWithFlag) - 96usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtDestroyEvent",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtDestroyEvent) - 104usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtRecordEvent",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtRecordEvent) - 112usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtStreamWaitEvent",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtStreamWaitEvent) - 120usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtQueryEventStatus",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtQueryEventStatus) - 128usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtSynchronizeEventWithTimeout",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtSynchronizeEventWithTimeout)
        - 136usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtEventElapsedTime",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtEventElapsedTime) - 144usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtMalloc",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtMalloc) - 152usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtFree",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtFree) - 160usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtMallocHost",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtMallocHost) - 168usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtFreeHost",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtFreeHost) - 176usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtMemcpy",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtMemcpy) - 184usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtMemcpyAsync",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtMemcpyAsync) - 192usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtMemcpy2dAsync",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtMemcpy2dAsync) - 200usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtMemsetAsync",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtMemsetAsync) - 208usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtGetMemInfo",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtGetMemInfo) - 216usize];
    [
        "Offset of field: SeqshiftSymbols::HcclGetRootInfo",
    ][::std::mem::offset_of!(SeqshiftSymbols, HcclGetRootInfo) - 224usize];
    [
        "Offset of field: SeqshiftSymbols::HcclCommInitRootInfoConfig",
    ][::std::mem::offset_of!(SeqshiftSymbols, HcclCommInitRootInfoConfig) - 232usize];
    [
        "Offset of field: SeqshiftSymbols::HcclCommDestroy",
    ][::std::mem::offset_of!(SeqshiftSymbols, HcclCommDestroy) - 240usize];
    [
        "Offset of field: SeqshiftSymbols::HcclGetRankSize",
    ][::std::mem::offset_of!(SeqshiftSymbols, HcclGetRankSize) - 248usize];
    [
        "Offset of field: SeqshiftSymbols::HcclGetRankId",
    ][::std::mem::offset_of!(SeqshiftSymbols, HcclGetRankId) - 256usize];
    [
        "Offset of field: SeqshiftSymbols::HcclAllGather",
    ][::std::mem::offset_of!(SeqshiftSymbols, HcclAllGather) - 264usize];
    [
        "Offset of field: SeqshiftSymbols::HcclAlltoAllV",
    ][::std::mem::offset_of!(SeqshiftSymbols, HcclAlltoAllV) - 272usize];
    [
        "Offset of field: SeqshiftSymbols::HcclBatchSendRecv",
    ][::std::mem::offset_of!(SeqshiftSymbols, HcclBatchSendRecv) - 280usize];
    [
        "Offset of field: SeqshiftSymbols::HcclBarrier",
    ][::std::mem::offset_of!(SeqshiftSymbols, HcclBarrier) - 288usize];
    [
        "Offset of field: SeqshiftSymbols::HcclGetCommAsyncError",
    ][::std::mem::offset_of!(SeqshiftSymbols, HcclGetCommAsyncError) - 296usize];
    [
        "Offset of field: SeqshiftSymbols::HcclGetErrorString",
    ][::std::mem::offset_of!(SeqshiftSymbols, HcclGetErrorString) - 304usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtGetSocName",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtGetSocName) - 312usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtGetVersion",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtGetVersion) - 320usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtPointerGetAttributes",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtPointerGetAttributes) - 328usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtMemcpyBatchAsync",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtMemcpyBatchAsync) - 336usize];
    [
        "Offset of field: SeqshiftSymbols::aclrtMemcpyBatchAsyncV2",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclrtMemcpyBatchAsyncV2) - 344usize];
    [
        "Offset of field: SeqshiftSymbols::aclCreateTensor",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclCreateTensor) - 352usize];
    [
        "Offset of field: SeqshiftSymbols::aclDestroyTensor",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclDestroyTensor) - 360usize];
    [
        "Offset of field: SeqshiftSymbols::aclDestroyAclOpExecutor",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclDestroyAclOpExecutor) - 368usize];
    [
        "Offset of field: SeqshiftSymbols::aclnnIndexSelectGetWorkspaceSize",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclnnIndexSelectGetWorkspaceSize)
        - 376usize];
    [
        "Offset of field: SeqshiftSymbols::aclnnIndexSelect",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclnnIndexSelect) - 384usize];
    [
        "Offset of field: SeqshiftSymbols::aclnnInplaceIndexCopyGetWorkspaceSize",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclnnInplaceIndexCopyGetWorkspaceSize)
        - 392usize];
    [
        "Offset of field: SeqshiftSymbols::aclnnInplaceIndexCopy",
    ][::std::mem::offset_of!(SeqshiftSymbols, aclnnInplaceIndexCopy) - 400usize];
    [
        "Offset of field: SeqshiftSymbols::seqshiftMockRegisterDeviceMemory",
    ][::std::mem::offset_of!(SeqshiftSymbols, seqshiftMockRegisterDeviceMemory)
        - 408usize];
    [
        "Offset of field: SeqshiftSymbols::seqshiftMockUnregisterDeviceMemory",
    ][::std::mem::offset_of!(SeqshiftSymbols, seqshiftMockUnregisterDeviceMemory)
        - 416usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct SeqshiftSymbol {
    pub name: *const ::std::os::raw::c_char,
    pub offset: u32,
    pub library: u16,
    pub mandatory: u16,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of SeqshiftSymbol"][::std::mem::size_of::<SeqshiftSymbol>() - 16usize];
    ["Alignment of SeqshiftSymbol"][::std::mem::align_of::<SeqshiftSymbol>() - 8usize];
    [
        "Offset of field: SeqshiftSymbol::name",
    ][::std::mem::offset_of!(SeqshiftSymbol, name) - 0usize];
    [
        "Offset of field: SeqshiftSymbol::offset",
    ][::std::mem::offset_of!(SeqshiftSymbol, offset) - 8usize];
    [
        "Offset of field: SeqshiftSymbol::library",
    ][::std::mem::offset_of!(SeqshiftSymbol, library) - 12usize];
    [
        "Offset of field: SeqshiftSymbol::mandatory",
    ][::std::mem::offset_of!(SeqshiftSymbol, mandatory) - 14usize];
};
impl Default for SeqshiftSymbol {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct SeqshiftBlocks {
    pub base: *mut ::std::os::raw::c_void,
    pub blocks: u64,
    pub stride: u64,
    pub length: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of SeqshiftBlocks"][::std::mem::size_of::<SeqshiftBlocks>() - 32usize];
    ["Alignment of SeqshiftBlocks"][::std::mem::align_of::<SeqshiftBlocks>() - 8usize];
    [
        "Offset of field: SeqshiftBlocks::base",
    ][::std::mem::offset_of!(SeqshiftBlocks, base) - 0usize];
    [
        "Offset of field: SeqshiftBlocks::blocks",
    ][::std::mem::offset_of!(SeqshiftBlocks, blocks) - 8usize];
    [
        "Offset of field: SeqshiftBlocks::stride",
    ][::std::mem::offset_of!(SeqshiftBlocks, stride) - 16usize];
    [
        "Offset of field: SeqshiftBlocks::length",
    ][::std::mem::offset_of!(SeqshiftBlocks, length) - 24usize];
};
impl Default for SeqshiftBlocks {
    fn default() -> Self {
        let mut s = ::std::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::std::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct SeqshiftCopyState {
    pub copies: u64,
    pub copies2d: u64,
    pub bytes: u64,
    pub refused2d: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of SeqshiftCopyState"][::std::mem::size_of::<SeqshiftCopyState>() - 32usize];
    [
        "Alignment of SeqshiftCopyState",
    ][::std::mem::align_of::<SeqshiftCopyState>() - 8usize];
    [
        "Offset of field: SeqshiftCopyState::copies",
    ][::std::mem::offset_of!(SeqshiftCopyState, copies) - 0usize];
    [
        "Offset of field: SeqshiftCopyState::copies2d",
    ][::std::mem::offset_of!(SeqshiftCopyState, copies2d) - 8usize];
    [
        "Offset of field: SeqshiftCopyState::bytes",
    ][::std::mem::offset_of!(SeqshiftCopyState, bytes) - 16usize];
    [
        "Offset of field: SeqshiftCopyState::refused2d",
    ][::std::mem::offset_of!(SeqshiftCopyState, refused2d) - 24usize];
};
unsafe extern "C" {
    pub fn seqshiftSymbolList(count: *mut usize) -> *const SeqshiftSymbol;
    pub fn seqshiftInit(symbols: *const SeqshiftSymbols, owner: *mut i32) -> CannError;
    pub fn seqshiftConfigInit(
        config: *mut CannHcclConfig,
        bufferMib: u32,
        name: *const ::std::os::raw::c_char,
    );
    pub fn seqshiftCopyBlocks(
        symbols: *const SeqshiftSymbols,
        cache: *const SeqshiftBlocks,
        begin: u64,
        length: u64,
        ids: *const u32,
        count: usize,
        staging: *mut ::std::os::raw::c_void,
        stagingBytes: usize,
        direction: i32,
        stream: CannStream,
        state: *mut SeqshiftCopyState,
    ) -> CannError;
}
