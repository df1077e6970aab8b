// Exported: communicators.
#include <cstring>

#include "communicator.hpp"

using namespace mock::hccl;

namespace {

constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr uint64_t kDefaultBufferMib = 200;

uint64_t default_buffer() {
    const uint64_t unset = 0;
    return mock::setting(unset, "HCCL_BUFFSIZE", kMib, kDefaultBufferMib * kMib);
}

// Reads as much of the structure as its size says it has; the tail belongs to newer versions.
Result read_config(const CannHcclConfig *config, Config &out) {
    struct Info {
        size_t size;
        uint32_t magic;
        uint32_t version;
        uint64_t reserved;
    } info;
    static_assert(sizeof info == CANN_HCCL_CONFIG_INFO_BYTES);
    if (config == nullptr) return error(CANN_HCCL_PTR, "config is null");
    std::memcpy(&info, config->info, sizeof info);
    if (info.magic != CANN_HCCL_CONFIG_MAGIC) {
        return error(CANN_HCCL_PARA, "config: magic %#x, expected %#x: was HcclCommConfigInit called?", info.magic,
                     CANN_HCCL_CONFIG_MAGIC);
    }
    if (info.size < offsetof(CannHcclConfig, deterministic) || info.version == 0) {
        return error(CANN_HCCL_PARA, "config: size %zu, version %u", info.size, info.version);
    }
    if (config->bufferMib == 0) return error(CANN_HCCL_PARA, "config: the buffer size is 0");
    if (config->bufferMib != CANN_HCCL_CONFIG_UNSET) out.buffer_bytes = config->bufferMib * kMib;
    if (info.size >= offsetof(CannHcclConfig, udi)) {
        const size_t length = strnlen(config->name, sizeof config->name);
        if (length == sizeof config->name) return error(CANN_HCCL_PARA, "config: the name does not end");
        out.name.assign(config->name, length);
    }
    return {};
}

CannHcclStatus create(uint32_t ranks, const CannHcclRoot *root, uint32_t rank, const Config &config,
                      CannHcclHandle *handle) {
    if (root == nullptr || handle == nullptr) return report(error(CANN_HCCL_PTR, "a pointer is null"));
    std::shared_ptr<Communicator> communicator;
    Result result = Communicator::create(ranks, *root, rank, config, communicator);
    if (result.ok()) *handle = add_communicator(std::move(communicator));
    return report(result);
}

template <typename T, typename F>
CannHcclStatus ask(CannHcclHandle handle, T *out, F value) {
    if (out == nullptr) return report(error(CANN_HCCL_PTR, "a pointer is null"));
    const auto communicator = find_communicator(handle);
    if (communicator == nullptr) return report(error(CANN_HCCL_PARA, "%p is not a live communicator", handle));
    *out = value(*communicator);
    return CANN_HCCL_OK;
}

}  // namespace

CannHcclStatus HcclGetRootInfo(CannHcclRoot *root) {
    CANN_CALL(HcclGetRootInfo);
    if (root == nullptr) return report(error(CANN_HCCL_PTR, "rootInfo is null"));
    return report(Segment::make_root(*root));
}

MOCK_API CannHcclStatus HcclCommInitRootInfo(uint32_t ranks, const CannHcclRoot *root, uint32_t rank,
                                             CannHcclHandle *comm) {
    CANN_CALL(HcclCommInitRootInfo);
    return create(ranks, root, rank, {.buffer_bytes = default_buffer(), .name = {}}, comm);
}

CannHcclStatus HcclCommInitRootInfoConfig(uint32_t ranks, const CannHcclRoot *root, uint32_t rank,
                                          const CannHcclConfig *config, CannHcclHandle *comm) {
    CANN_CALL(HcclCommInitRootInfoConfig);
    Config read{.buffer_bytes = default_buffer(), .name = {}};
    if (auto result = read_config(config, read); !result.ok()) return report(result);
    return create(ranks, root, rank, read, comm);
}

CannHcclStatus HcclCommDestroy(CannHcclHandle comm) {
    CANN_CALL(HcclCommDestroy);
    const auto communicator = take_communicator(comm);
    if (communicator == nullptr) return report(error(CANN_HCCL_PARA, "%p is not a live communicator", comm));
    communicator->shut_down();
    return CANN_HCCL_OK;
}

CannHcclStatus HcclGetRankSize(CannHcclHandle comm, uint32_t *ranks) {
    CANN_CALL(HcclGetRankSize);
    return ask(comm, ranks, [](const Communicator &c) { return c.ranks(); });
}

CannHcclStatus HcclGetRankId(CannHcclHandle comm, uint32_t *rank) {
    CANN_CALL(HcclGetRankId);
    return ask(comm, rank, [](const Communicator &c) { return c.rank(); });
}

MOCK_API CannHcclStatus HcclGetCommName(CannHcclHandle comm, char *name) {
    CANN_CALL(HcclGetCommName);
    struct Name {
        char text[CANN_HCCL_COMM_NAME_BYTES];
    };
    return ask(comm, reinterpret_cast<Name *>(name), [](const Communicator &c) {
        Name out{};
        c.name().copy(out.text, sizeof out.text - 1);
        return out;
    });
}

CannHcclStatus HcclGetCommAsyncError(CannHcclHandle comm, CannHcclStatus *status) {
    CANN_CALL(HcclGetCommAsyncError);
    return ask(comm, status, [](const Communicator &c) { return c.async_error(); });
}

const char *HcclGetErrorString(CannHcclStatus status) {
    MOCK_ENTER(HcclGetErrorString, false);
    return describe(status);
}

// Buffer size, determinism, name: what the version-5 form of the configuration holds and the mock reads.
MOCK_API uint32_t HcclGetCommConfigCapability(void) {
    MOCK_ENTER(HcclGetCommConfigCapability, false);
    return 3;
}
