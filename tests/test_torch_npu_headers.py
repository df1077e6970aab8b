"""Contract: our header declares the functions, constants and structs of CANN as CANN's own headers do.

The acl and hccl headers that the torch-npu wheel carries are fetched, not kept: a generated C++ file includes both
header sets and asserts, at compile time, that each function has the same type (up to the names of enums and structs),
each constant the same value, each struct the same size and offsets.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEADER = ROOT / "cann_shim" / "include" / "seqshift_cann.h"
WHEEL = "torch-npu==2.5.1.post1"
CACHE = ROOT / ".cache" / "torch-npu"
THIRD_PARTY = "torch_npu/include/third_party/"

# Functions of CANN 8.1 and later that this header set leaves out.
NOT_IN_WHEEL = {
    "aclCreateTensor",
    "aclDestroyAclOpExecutor",
    "aclDestroyTensor",
    "aclnnIndexSelect",
    "aclnnIndexSelectGetWorkspaceSize",
    "aclnnInplaceIndexCopy",
    "aclnnInplaceIndexCopyGetWorkspaceSize",
    "HcclBarrier",
    "HcclCommInitRootInfoConfig",
    "HcclGetErrorString",
    "HcclGetRankId",
    "HcclGetRankSize",
    "aclrtMemcpyBatchAsync",
    "aclrtMemcpyBatchAsyncV2",
    "aclrtPointerGetAttributes",
    "aclrtStreamAbort",
    "aclrtSynchronizeEventWithTimeout",
}

# ours: theirs
CONSTANTS = {
    "CANN_OK": "ACL_SUCCESS",
    "CANN_INVALID_PARAM": "ACL_ERROR_INVALID_PARAM",
    "CANN_UNINITIALIZE": "ACL_ERROR_UNINITIALIZE",
    "CANN_REPEAT_INITIALIZE": "ACL_ERROR_REPEAT_INITIALIZE",
    "CANN_REPEAT_FINALIZE": "ACL_ERROR_REPEAT_FINALIZE",
    "CANN_RT_PARAM_INVALID": "ACL_ERROR_RT_PARAM_INVALID",
    "CANN_RT_INVALID_DEVICE": "ACL_ERROR_RT_INVALID_DEVICEID",
    "CANN_RT_CONTEXT_NULL": "ACL_ERROR_RT_CONTEXT_NULL",
    "CANN_RT_STREAM_CONTEXT": "ACL_ERROR_RT_STREAM_CONTEXT",
    "CANN_RT_ADDR_UNALIGNED": "ACL_ERROR_RT_ADDR_UNALIGNED",
    "CANN_RT_INVALID_HANDLE": "ACL_ERROR_RT_INVALID_HANDLE",
    "CANN_BAD_ALLOC": "ACL_ERROR_BAD_ALLOC",
    "CANN_API_NOT_SUPPORT": "ACL_ERROR_API_NOT_SUPPORT",
    "CANN_FEATURE_UNSUPPORTED": "ACL_ERROR_FEATURE_UNSUPPORTED",
    "CANN_RT_FEATURE_NOT_SUPPORT": "ACL_ERROR_RT_FEATURE_NOT_SUPPORT",
    "CANN_RT_MEMORY_ALLOCATION": "ACL_ERROR_RT_MEMORY_ALLOCATION",
    "CANN_RT_NO_DEVICE": "ACL_ERROR_RT_NO_DEVICE",
    "CANN_RT_RESOURCE_ALLOC_FAIL": "ACL_ERROR_RT_RESOURCE_ALLOC_FAIL",
    "CANN_RT_NO_EVENT_RESOURCE": "ACL_ERROR_RT_NO_EVENT_RESOURCE",
    "CANN_RT_NO_STREAM_RESOURCE": "ACL_ERROR_RT_NO_STREAM_RESOURCE",
    "CANN_STORAGE_OVER_LIMIT": "ACL_ERROR_STORAGE_OVER_LIMIT",
    "CANN_INTERNAL": "ACL_ERROR_INTERNAL_ERROR",
    "CANN_FAILURE": "ACL_ERROR_FAILURE",
    "CANN_RT_FAILURE": "ACL_ERROR_RT_FAILURE",
    "CANN_DRV_FAILURE": "ACL_ERROR_DRV_FAILURE",
    "CANN_RT_INTERNAL": "ACL_ERROR_RT_INTERNAL_ERROR",
    "CANN_RT_LOST_HEARTBEAT": "ACL_ERROR_RT_LOST_HEARTBEAT",
    "CANN_RT_AICORE_TIMEOUT": "ACL_ERROR_RT_AICORE_TIMEOUT",
    "CANN_RT_AICORE_EXCEPTION": "ACL_ERROR_RT_AICORE_EXCEPTION",
    "CANN_RT_DRV_INTERNAL": "ACL_ERROR_RT_DRV_INTERNAL_ERROR",
    "CANN_MEM_HUGE_FIRST": "ACL_MEM_MALLOC_HUGE_FIRST",
    "CANN_MEM_HUGE_ONLY": "ACL_MEM_MALLOC_HUGE_ONLY",
    "CANN_MEM_NORMAL_ONLY": "ACL_MEM_MALLOC_NORMAL_ONLY",
    "CANN_COPY_HOST_TO_HOST": "ACL_MEMCPY_HOST_TO_HOST",
    "CANN_COPY_HOST_TO_DEVICE": "ACL_MEMCPY_HOST_TO_DEVICE",
    "CANN_COPY_DEVICE_TO_HOST": "ACL_MEMCPY_DEVICE_TO_HOST",
    "CANN_COPY_DEVICE_TO_DEVICE": "ACL_MEMCPY_DEVICE_TO_DEVICE",
    "CANN_ATTR_DDR": "ACL_DDR_MEM",
    "CANN_ATTR_HBM": "ACL_HBM_MEM",
    "CANN_ATTR_HBM_HUGE": "ACL_HBM_MEM_HUGE",
    "CANN_ATTR_HBM_NORMAL": "ACL_HBM_MEM_NORMAL",
    "CANN_EVENT_COMPLETE": "ACL_EVENT_STATUS_COMPLETE",
    "CANN_EVENT_NOT_READY": "ACL_EVENT_STATUS_NOT_READY",
    "CANN_RECORDED_NOT_READY": "ACL_EVENT_RECORDED_STATUS_NOT_READY",
    "CANN_RECORDED_COMPLETE": "ACL_EVENT_RECORDED_STATUS_COMPLETE",
    "CANN_WAIT_COMPLETE": "ACL_EVENT_WAIT_STATUS_COMPLETE",
    "CANN_WAIT_NOT_READY": "ACL_EVENT_WAIT_STATUS_NOT_READY",
    "CANN_STREAM_COMPLETE": "ACL_STREAM_STATUS_COMPLETE",
    "CANN_STREAM_NOT_READY": "ACL_STREAM_STATUS_NOT_READY",
    "CANN_EVENT_FLAG_SYNC": "ACL_EVENT_SYNC",
    "CANN_EVENT_FLAG_STREAM_PROGRESS": "ACL_EVENT_CAPTURE_STREAM_PROGRESS",
    "CANN_EVENT_FLAG_TIME_LINE": "ACL_EVENT_TIME_LINE",
    "CANN_STREAM_FLAG_FAST_LAUNCH": "ACL_STREAM_FAST_LAUNCH",
    "CANN_STREAM_FLAG_FAST_SYNC": "ACL_STREAM_FAST_SYNC",
    "CANN_CALLBACK_NO_BLOCK": "ACL_CALLBACK_NO_BLOCK",
    "CANN_CALLBACK_BLOCK": "ACL_CALLBACK_BLOCK",
    "CANN_RUN_DEVICE": "ACL_DEVICE",
    "CANN_RUN_HOST": "ACL_HOST",
    "CANN_FORMAT_ND": "ACL_FORMAT_ND",
    "CANN_FORMAT_FRACTAL_NZ": "ACL_FORMAT_FRACTAL_NZ",
    "CANN_TENSOR_FLOAT": "ACL_FLOAT",
    "CANN_TENSOR_FLOAT16": "ACL_FLOAT16",
    "CANN_TENSOR_INT8": "ACL_INT8",
    "CANN_TENSOR_INT32": "ACL_INT32",
    "CANN_TENSOR_UINT8": "ACL_UINT8",
    "CANN_TENSOR_INT16": "ACL_INT16",
    "CANN_TENSOR_UINT16": "ACL_UINT16",
    "CANN_TENSOR_UINT32": "ACL_UINT32",
    "CANN_TENSOR_INT64": "ACL_INT64",
    "CANN_TENSOR_UINT64": "ACL_UINT64",
    "CANN_TENSOR_DOUBLE": "ACL_DOUBLE",
    "CANN_TENSOR_BOOL": "ACL_BOOL",
    "CANN_TENSOR_BF16": "ACL_BF16",
    "CANN_HCCL_OK": "HCCL_SUCCESS",
    "CANN_HCCL_PARA": "HCCL_E_PARA",
    "CANN_HCCL_PTR": "HCCL_E_PTR",
    "CANN_HCCL_MEMORY": "HCCL_E_MEMORY",
    "CANN_HCCL_INTERNAL": "HCCL_E_INTERNAL",
    "CANN_HCCL_NOT_SUPPORT": "HCCL_E_NOT_SUPPORT",
    "CANN_HCCL_NOT_FOUND": "HCCL_E_NOT_FOUND",
    "CANN_HCCL_UNAVAIL": "HCCL_E_UNAVAIL",
    "CANN_HCCL_SYSCALL": "HCCL_E_SYSCALL",
    "CANN_HCCL_TIMEOUT": "HCCL_E_TIMEOUT",
    "CANN_HCCL_TCP_CONNECT": "HCCL_E_TCP_CONNECT",
    "CANN_HCCL_ROCE_CONNECT": "HCCL_E_ROCE_CONNECT",
    "CANN_HCCL_RUNTIME": "HCCL_E_RUNTIME",
    "CANN_HCCL_DRV": "HCCL_E_DRV",
    "CANN_HCCL_NETWORK": "HCCL_E_NETWORK",
    "CANN_HCCL_AGAIN": "HCCL_E_AGAIN",
    "CANN_HCCL_REMOTE": "HCCL_E_REMOTE",
    "CANN_HCCL_TYPE_INT8": "HCCL_DATA_TYPE_INT8",
    "CANN_HCCL_TYPE_INT16": "HCCL_DATA_TYPE_INT16",
    "CANN_HCCL_TYPE_INT32": "HCCL_DATA_TYPE_INT32",
    "CANN_HCCL_TYPE_FP16": "HCCL_DATA_TYPE_FP16",
    "CANN_HCCL_TYPE_FP32": "HCCL_DATA_TYPE_FP32",
    "CANN_HCCL_TYPE_INT64": "HCCL_DATA_TYPE_INT64",
    "CANN_HCCL_TYPE_UINT64": "HCCL_DATA_TYPE_UINT64",
    "CANN_HCCL_TYPE_UINT8": "HCCL_DATA_TYPE_UINT8",
    "CANN_HCCL_TYPE_UINT16": "HCCL_DATA_TYPE_UINT16",
    "CANN_HCCL_TYPE_UINT32": "HCCL_DATA_TYPE_UINT32",
    "CANN_HCCL_TYPE_FP64": "HCCL_DATA_TYPE_FP64",
    "CANN_HCCL_TYPE_BFP16": "HCCL_DATA_TYPE_BFP16",
    "CANN_HCCL_OP_SUM": "HCCL_REDUCE_SUM",
    "CANN_HCCL_OP_PROD": "HCCL_REDUCE_PROD",
    "CANN_HCCL_OP_MAX": "HCCL_REDUCE_MAX",
    "CANN_HCCL_OP_MIN": "HCCL_REDUCE_MIN",
    "CANN_HCCL_SEND": "HCCL_SEND",
    "CANN_HCCL_RECV": "HCCL_RECV",
    "CANN_ATTR_DDR_HUGE": "ACL_DDR_MEM_HUGE",
    "CANN_ATTR_DDR_NORMAL": "ACL_DDR_MEM_NORMAL",
    "CANN_HCCL_OPEN_FILE": "HCCL_E_OPEN_FILE_FAILURE",
    "CANN_HCCL_TCP_TRANSFER": "HCCL_E_TCP_TRANSFER",
    "CANN_HCCL_ROCE_TRANSFER": "HCCL_E_ROCE_TRANSFER",
    "CANN_HCCL_PROFILING": "HCCL_E_PROFILING",
    "CANN_HCCL_CCE": "HCCL_E_CCE",
    "CANN_HCCL_CONFIG_MAGIC": "HCCL_COMM_CONFIG_MAGIC_WORD",
    "CANN_HCCL_CONFIG_INFO_BYTES": "HCCL_COMM_CONFIG_INFO_BYTES",
    "CANN_HCCL_COMM_NAME_BYTES": "COMM_NAME_MAX_LENGTH",
    "CANN_HCCL_UDI_BYTES": "UDI_MAX_LENGTH",
    "CANN_HCCL_CONFIG_VERSION": "HCCL_COMM_CONFIG_VERSION",
    "CANN_HCCL_ROOT_INFO_BYTES": "HCCL_ROOT_INFO_BYTES",
}

# Constants that this header set does not have, or only as a bare number.
CONSTANTS_NOT_IN_WHEEL = {
    "CANN_HCCL_CONFIG_UNSET",
    "CANN_HCCL_SUSPENDING",
    "CANN_LOCATION_DEVICE",
    "CANN_LOCATION_HOST",
    "CANN_LOCATION_UNREGISTERED",
    "CANN_MEMCPY_BATCH_MAX",
    "CANN_NN_PARAM_INVALID",
    "CANN_NN_PARAM_NULLPTR",
    "CANN_NN_RUNTIME_ERROR",
    "CANN_RT_DEVICE_MEM_ERROR",
    "CANN_RT_DEVICE_OOM",
    "CANN_RT_DEVICE_TASK_ABORT",
    "CANN_RT_EVENT_SYNC_TIMEOUT",
    "CANN_RT_LINK_ERROR",
    "CANN_RT_STREAM_ABORT",
    "CANN_RT_STREAM_CAPTURED",
    "CANN_RT_STREAM_SYNC_TIMEOUT",
    "CANN_RT_SYS_DMA",
    "CANN_RT_TASK_TIMEOUT",
    "CANN_RT_WAIT_TIMEOUT",
}

# (ours, theirs): {our member: their member}
STRUCTS = {
    ("CannHcclRoot", "HcclRootInfo"): {"bytes": "internal"},
    ("CannHcclSendRecv", "HcclSendRecvItem"): {
        "direction": "sendRecvType",
        "buffer": "buf",
        "count": "count",
        "type": "dataType",
        "peer": "remoteRank",
    },
    ("CannHcclConfig", "HcclCommConfig"): {
        "bufferMib": "hcclBufferSize",
        "deterministic": "hcclDeterministic",
        "name": "hcclCommName",
        "udi": "hcclUdi",
        "expansionMode": "hcclOpExpansionMode",
        "rdmaTrafficClass": "hcclRdmaTrafficClass",
        "rdmaServiceLevel": "hcclRdmaServiceLevel",
    },
}

PROBE = """
#include <cstddef>
#include <type_traits>
#include "acl/acl.h"
#include "hccl/hccl.h"
#include "hccl/hccl_types.h"
#include "seqshift_cann.h"

// Types up to names: integers by size and sign, enums as ints, structs by size and alignment.
template <std::size_t Size, bool Signed> struct Number {};
template <std::size_t Size, std::size_t Alignment> struct Struct {};
template <class T> struct Type { using type = T; };
template <class T> constexpr auto canon() {
    if constexpr (std::is_pointer_v<T>) {
        return Type<typename decltype(canon<std::remove_pointer_t<T>>())::type *>{};
    } else if constexpr (std::is_const_v<T>) {
        return Type<const typename decltype(canon<std::remove_const_t<T>>())::type>{};
    } else if constexpr (std::is_enum_v<T>) {
        return Type<Number<sizeof(T), true>>{};
    } else if constexpr (std::is_integral_v<T>) {
        return Type<Number<sizeof(T), std::is_signed_v<T>>>{};
    } else if constexpr (std::is_class_v<T>) {
        return Type<Struct<sizeof(T), alignof(T)>>{};
    } else {
        return Type<T>{};
    }
}
template <class T> using Canon = typename decltype(canon<T>())::type;
template <class A, class B> constexpr bool same = false;
template <class R, class... A, class S, class... B>
constexpr bool same<R (*)(A...), S (*)(B...)> =
    std::is_same_v<Type<Canon<R>(Canon<A>...)>, Type<Canon<S>(Canon<B>...)>>;

"""


def our_functions() -> list[str]:
    names = re.findall(r"^    X\([^,]+, (\w+),", HEADER.read_text(), re.MULTILINE)
    return [name for name in names if not name.startswith("seqshiftMock")]


@pytest.fixture(scope="module")
def headers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's acl and hccl headers, unpacked."""
    if not list(CACHE.glob("*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", "--dest", str(CACHE), WHEEL]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        if done.returncode != 0:
            pytest.skip(f"{WHEEL} cannot be had, so our header is not compared: {done.stderr.strip()[-200:]}")
    target = tmp_path_factory.mktemp("headers")
    with zipfile.ZipFile(next(CACHE.glob("*.whl"))) as wheel:
        for name in wheel.namelist():
            if name.startswith((THIRD_PARTY + "acl/inc/", THIRD_PARTY + "hccl/inc/")) and name.endswith(".h"):
                wheel.extract(name, target)
    return target / "torch_npu" / "include"


def compile_probe(headers: Path, assertions: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    source = tmp_path / "probe.cpp"
    source.write_text(PROBE + "\n".join(assertions) + "\n")
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    theirs = [headers, headers / "third_party" / "acl" / "inc", headers / "third_party" / "hccl" / "inc"]
    include = [f"-I{path}" for path in [*theirs, HEADER.parent]]
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wno-invalid-offsetof", *include, str(source)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def function_assertion(name: str, member: str | None = None) -> str:
    ours = f"decltype(SeqshiftSymbols::{member or name})"
    return f'static_assert(same<decltype(&::{name}), {ours}>, "{name}");'


def test_functions(headers: Path, tmp_path: Path) -> None:
    text = "".join(path.read_text(errors="replace") for path in headers.rglob("*.h"))
    functions = our_functions()
    assert len(functions) > 40
    absent = {name for name in functions if not re.search(rf"\b{name}\s*\(", text)}
    assert absent == NOT_IN_WHEEL
    done = compile_probe(headers, [function_assertion(name) for name in functions if name not in absent], tmp_path)
    assert done.returncode == 0, done.stderr


def test_constants(headers: Path, tmp_path: Path) -> None:
    ours = set(re.findall(r"^#define (CANN_\w+) ", HEADER.read_text(), re.MULTILINE))
    assert ours - set(CONSTANTS) == CONSTANTS_NOT_IN_WHEEL
    pairs = CONSTANTS.items()
    assertions = [f'static_assert(int({theirs}) == int({ours}), "{ours}");' for ours, theirs in pairs]
    done = compile_probe(headers, assertions, tmp_path)
    assert done.returncode == 0, done.stderr


def test_structs(headers: Path, tmp_path: Path) -> None:
    assertions = []
    for (ours, theirs), members in STRUCTS.items():
        assertions.append(f'static_assert(sizeof({ours}) == sizeof({theirs}), "{ours}");')
        assertions.append(f'static_assert(alignof({ours}) == alignof({theirs}), "{ours}");')
        for our_member, their_member in members.items():
            offsets = f"offsetof({ours}, {our_member}) == offsetof({theirs}, {their_member})"
            assertions.append(f'static_assert({offsets}, "{ours}.{our_member}");')
    done = compile_probe(headers, assertions, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "assertion",
    [
        function_assertion("aclrtMalloc", "aclrtMallocHost"),
        function_assertion("aclrtSetDevice", "aclrtGetDevice"),
        'static_assert(int(ACL_ERROR_REPEAT_INITIALIZE) == CANN_UNINITIALIZE, "other");',
    ],
)
def test_the_probe_notices_a_difference(headers: Path, tmp_path: Path, assertion: str) -> None:
    done = compile_probe(headers, [assertion], tmp_path)
    assert done.returncode != 0
    assert "static assertion failed" in done.stderr
