// Exported: allocation, registration, and questions about memory.
#include "runtime.hpp"

using namespace mock;

namespace {

constexpr uint32_t kPage = 4096;

CannError allocate(void **address, size_t size, CannMemMallocPolicy policy, bool pad) {
    // Policies 0 to 5: huge pages first, huge only, normal only; then the same for memory that peers reach.
    constexpr CannMemMallocPolicy kPolicies = 6;
    if (address == nullptr) return report(failure(CANN_INVALID_PARAM, "devPtr is null"));
    if (policy < 0 || policy >= kPolicies) return report(failure(CANN_INVALID_PARAM, "policy %d is unknown", policy));
    int32_t device = 0;
    if (auto status = current_device(device); !status.ok()) return report(status);
    return report(tracker().allocate(device, size, pad, policy % 3 != CANN_MEM_NORMAL_ONLY, address));
}

}  // namespace

CannError aclrtMalloc(void **address, size_t size, CannMemMallocPolicy policy) {
    CANN_CALL(aclrtMalloc);
    return allocate(address, size, policy, true);
}

MOCK_API CannError aclrtMallocAlign32(void **address, size_t size, CannMemMallocPolicy policy) {
    CANN_CALL(aclrtMallocAlign32);
    return allocate(address, size, policy, false);
}

MOCK_API CannError aclrtMallocCached(void **address, size_t size, CannMemMallocPolicy policy) {
    CANN_CALL(aclrtMallocCached);
    return allocate(address, size, policy, true);
}

CannError aclrtFree(void *address) {
    CANN_CALL(aclrtFree);
    int32_t device = 0;
    if (auto status = current_device(device); !status.ok()) return report(status);
    return report(tracker().release(address, false));
}

CannError aclrtMallocHost(void **address, size_t size) {
    CANN_CALL(aclrtMallocHost);
    if (address == nullptr) return report(failure(CANN_INVALID_PARAM, "hostPtr is null"));
    int32_t device = 0;
    if (auto status = current_device(device); !status.ok()) return report(status);
    return report(tracker().allocate_host(size, address));
}

CannError aclrtFreeHost(void *address) {
    CANN_CALL(aclrtFreeHost);
    return report(tracker().release(address, true));
}

MOCK_API CannError aclrtHostRegister(void *address, uint64_t size, int32_t type, void **mapped) {
    CANN_CALL(aclrtHostRegister);
    constexpr int32_t kMapped = 0;
    if (mapped == nullptr || type != kMapped) {
        return report(failure(CANN_INVALID_PARAM, "devPtr is null, or type %d is unknown", type));
    }
    int32_t device = 0;
    Status status = current_device(device);
    if (status.ok()) status = tracker().adopt(address, size, Kind::registered_host, device);
    if (status.ok()) *mapped = address;
    return report(status);
}

MOCK_API CannError aclrtHostUnregister(void *address) {
    CANN_CALL(aclrtHostUnregister);
    return report(tracker().abandon(address, Kind::registered_host));
}

CannError aclrtGetMemInfo(CannMemAttr attr, size_t *free, size_t *total) {
    CANN_CALL(aclrtGetMemInfo);
    constexpr CannMemAttr kAttributes = 10;
    if (free == nullptr || total == nullptr || attr < 0 || attr >= kAttributes) {
        return report(failure(CANN_INVALID_PARAM, "a pointer is null, or attribute %d is unknown", attr));
    }
    int32_t device = 0;
    if (auto status = current_device(device); !status.ok()) return report(status);
    *total = tracker().capacity();
    *free = *total - std::min<size_t>(*total, tracker().used(device));
    return CANN_OK;
}

CannError aclrtPointerGetAttributes(const void *address, CannPtrAttributes *attributes) {
    CANN_CALL(aclrtPointerGetAttributes);
    if (attributes == nullptr) return report(failure(CANN_INVALID_PARAM, "attributes is null"));
    const Access access = tracker().access(address, 1);
    if (!access.ok()) return report(access.status());
    *attributes = {};
    attributes->pageSize = kPage;
    if (access.on_device()) {
        attributes->location = {static_cast<uint32_t>(access.device()), CANN_LOCATION_DEVICE};
    } else {
        attributes->location.type = access.is_pinned() ? CANN_LOCATION_HOST : CANN_LOCATION_UNREGISTERED;
    }
    return CANN_OK;
}

CannError seqshiftMockRegisterDeviceMemory(void *address, size_t size, int32_t deviceId) {
    CANN_CALL(seqshiftMockRegisterDeviceMemory);
    if (deviceId < 0 || static_cast<uint32_t>(deviceId) >= Runtime::device_count()) {
        return report(failure(CANN_RT_INVALID_DEVICE, "device %d of %u", deviceId, Runtime::device_count()));
    }
    return report(tracker().adopt(address, size, Kind::registered, deviceId));
}

CannError seqshiftMockUnregisterDeviceMemory(void *address) {
    CANN_CALL(seqshiftMockUnregisterDeviceMemory);
    return report(tracker().abandon(address, Kind::registered));
}
