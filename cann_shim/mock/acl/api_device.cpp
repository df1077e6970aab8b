// Exported: start and end, devices, contexts, versions.
#include <cstring>

#include "runtime.hpp"

using namespace mock;

namespace {

// The CANN that the mock stands for.
constexpr int32_t kMajor = 8, kMinor = 5, kPatch = 0;
constexpr char kVersion[] = "8.5.0";

struct PackageVersion {
    char version[128];
    char major[64];
    char minor[64];
    char release[64];
    char patch[64];
    char reserved[128];
};
static_assert(sizeof(PackageVersion) == 512);

constexpr int32_t kPackages = 8;

}  // namespace

CannError aclInit(const char *) {
    CANN_CALL(aclInit);
    if (Runtime::instance().initialized.exchange(true)) {
        return report(failure(CANN_REPEAT_INITIALIZE, "initialised already; harmless"));
    }
    return CANN_OK;
}

CannError aclFinalize(void) {
    CANN_CALL(aclFinalize);
    if (!Runtime::instance().initialized.exchange(false)) {
        return report(failure(CANN_REPEAT_FINALIZE, "not initialised, or finalised already"));
    }
    return CANN_OK;
}

const char *aclGetRecentErrMsg(void) {
    MOCK_ENTER(aclGetRecentErrMsg, false);
    return take_error_text();
}

CannError aclrtSetDevice(int32_t deviceId) {
    CANN_CALL(aclrtSetDevice);
    return report(Runtime::instance().set_device(deviceId));
}

MOCK_API CannError aclrtResetDevice(int32_t deviceId) {
    CANN_CALL(aclrtResetDevice);
    return report(Runtime::instance().reset_device(deviceId, false));
}

MOCK_API CannError aclrtResetDeviceForce(int32_t deviceId) {
    CANN_CALL(aclrtResetDeviceForce);
    return report(Runtime::instance().reset_device(deviceId, true));
}

CannError aclrtGetDevice(int32_t *deviceId) {
    CANN_CALL(aclrtGetDevice);
    if (deviceId == nullptr) return report(failure(CANN_INVALID_PARAM, "deviceId is null"));
    return report(current_device(*deviceId));
}

CannError aclrtGetDeviceCount(uint32_t *count) {
    CANN_CALL(aclrtGetDeviceCount);
    if (count == nullptr) return report(failure(CANN_INVALID_PARAM, "count is null"));
    *count = Runtime::device_count();
    return CANN_OK;
}

MOCK_API CannError aclrtCreateContext(void **context, int32_t deviceId) {
    CANN_CALL(aclrtCreateContext);
    if (context == nullptr) return report(failure(CANN_INVALID_PARAM, "context is null"));
    return report(Runtime::instance().create_context(deviceId, context));
}

MOCK_API CannError aclrtDestroyContext(void *context) {
    CANN_CALL(aclrtDestroyContext);
    return report(Runtime::instance().destroy_context(context));
}

MOCK_API CannError aclrtGetCurrentContext(void **context) {
    CANN_CALL(aclrtGetCurrentContext);
    if (context == nullptr) return report(failure(CANN_INVALID_PARAM, "context is null"));
    Status status;
    if (Runtime::instance().current(status) != nullptr) *context = Runtime::instance().current_handle();
    return report(status);
}

MOCK_API CannError aclrtSetCurrentContext(void *context) {
    CANN_CALL(aclrtSetCurrentContext);
    return report(Runtime::instance().enter_context(context));
}

MOCK_API CannError aclrtGetRunMode(CannRunMode *mode) {
    CANN_CALL(aclrtGetRunMode);
    if (mode == nullptr) return report(failure(CANN_INVALID_PARAM, "mode is null"));
    *mode = CANN_RUN_HOST;
    return CANN_OK;
}

MOCK_API CannError aclrtDeviceCanAccessPeer(int32_t *can, int32_t device, int32_t peer) {
    CANN_CALL(aclrtDeviceCanAccessPeer);
    const auto count = static_cast<int32_t>(Runtime::device_count());
    if (can == nullptr) return report(failure(CANN_INVALID_PARAM, "canAccessPeer is null"));
    if (device < 0 || device >= count || peer < 0 || peer >= count || device == peer) {
        return report(failure(CANN_RT_INVALID_DEVICE, "devices %d and %d of %d", device, peer, count));
    }
    *can = 1;
    return CANN_OK;
}

MOCK_API CannError aclrtDeviceEnablePeerAccess(int32_t peer, uint32_t flags) {
    CANN_CALL(aclrtDeviceEnablePeerAccess);
    int32_t device = 0;
    if (auto status = current_device(device); !status.ok()) return report(status);
    if (flags != 0) return report(failure(CANN_INVALID_PARAM, "flags must be 0"));
    if (peer < 0 || static_cast<uint32_t>(peer) >= Runtime::device_count() || peer == device) {
        return report(failure(CANN_RT_INVALID_DEVICE, "device %d as peer of %d", peer, device));
    }
    Runtime::instance().enable_peer(device, peer);
    return CANN_OK;
}

MOCK_API CannError aclrtGetLastError(int32_t) {
    MOCK_ENTER(aclrtGetLastError, false);
    return last_error(true);
}

MOCK_API CannError aclrtPeekAtLastError(int32_t) {
    MOCK_ENTER(aclrtPeekAtLastError, false);
    return last_error(false);
}

const char *aclrtGetSocName(void) {
    MOCK_ENTER(aclrtGetSocName, false);
    return Runtime::soc_name();
}

CannError aclrtGetVersion(int32_t *major, int32_t *minor, int32_t *patch) {
    CANN_CALL(aclrtGetVersion);
    if (major == nullptr || minor == nullptr || patch == nullptr) {
        return report(failure(CANN_INVALID_PARAM, "a pointer is null"));
    }
    *major = kMajor;
    *minor = kMinor;
    *patch = kPatch;
    return CANN_OK;
}

MOCK_API CannError aclsysGetCANNVersion(int32_t package, PackageVersion *version) {
    CANN_CALL(aclsysGetCANNVersion);
    if (version == nullptr || package < 0 || package >= kPackages) {
        return report(failure(CANN_INVALID_PARAM, "version is null, or package %d is unknown", package));
    }
    std::memset(version, 0, sizeof *version);
    std::strcpy(version->version, kVersion);
    std::strcpy(version->major, "8");
    std::strcpy(version->minor, "5");
    std::strcpy(version->release, "0");
    std::strcpy(version->patch, "0");
    return CANN_OK;
}

int64_t seqshiftMockLive(int32_t what) {
    auto &runtime = Runtime::instance();
    switch (what) {
        case SEQSHIFT_MOCK_LIVE_DEVICE_BLOCKS:
            return tracker().live(Kind::device);
        case SEQSHIFT_MOCK_LIVE_DEVICE_BYTES:
            return tracker().live_bytes();
        case SEQSHIFT_MOCK_LIVE_REGISTERED:
            return tracker().live(Kind::registered);
        case SEQSHIFT_MOCK_LIVE_HOST_BLOCKS:
            return tracker().live(Kind::pinned) + tracker().live(Kind::registered_host);
        case SEQSHIFT_MOCK_LIVE_STREAMS:
            return runtime.streams.size();
        case SEQSHIFT_MOCK_LIVE_EVENTS:
            return runtime.events.size();
        case SEQSHIFT_MOCK_LIVE_COMMUNICATORS:
            return live_communicators().load();
        default:
            return -1;
    }
}
