#include "executor.hpp"

#include <cstring>

using namespace mock;

namespace mock::nn {
namespace {

// Kernels write this into their workspace, and find out if somebody else writes there while they run.
constexpr unsigned char kMark = 0x5a;

Handles<Executor> &executors() {
    static Handles<Executor> all;
    return all;
}

// What is wrong with memory when the kernel runs is an exception of the AI core.
Status exception(const char *name, const Status &status) {
    return failure(CANN_RT_AICORE_EXCEPTION, "%s: %s", name, status.text.c_str());
}

Status open(const Operand &operand, int32_t device, std::vector<Access> &opened, std::vector<char *> &data) {
    const size_t extent = operand.tensor->extent();
    if (extent == 0) {
        data.push_back(nullptr);
        return {};
    }
    opened.push_back(tracker().access_device(operand.tensor->first(), extent, device));
    data.push_back(opened.back().data());
    return opened.back().status();
}

Status run(const Executor &executor, void *workspace, int32_t device, const Fault &fault) {
    std::vector<Access> opened;
    std::vector<char *> data;
    for (const Operand &operand : executor.operands) {
        if (const auto status = open(operand, device, opened, data); !status.ok()) {
            return exception(operand.name, status);
        }
    }
    if (executor.workspace == 0) return executor.run(data, fault);
    const Access room = tracker().access_device(workspace, executor.workspace, device);
    if (!room.ok()) return exception("workspace", room.status());
    std::memset(room.data(), kMark, executor.workspace);
    Status status = executor.run(data, fault);
    for (uint64_t i = 0; status.ok() && i < executor.workspace; ++i) {
        if (static_cast<unsigned char>(room.data()[i]) != kMark) {
            status = failure(CANN_RT_AICORE_EXCEPTION, "the workspace was written while the kernel ran");
        }
    }
    return status;
}

Status check(const Executor &executor, void *workspace, uint64_t workspace_size, int32_t device) {
    for (const auto &[tensor, name] : executor.operands) {
        if (tensor->destroyed) {
            return failure(CANN_NN_PARAM_INVALID, "tensor %s was destroyed before the second phase", name);
        }
        if (tensor->extent() == 0) continue;
        const Access access = tracker().access_device(tensor->first(), tensor->extent(), device);
        if (!access.ok()) return failure(CANN_NN_PARAM_INVALID, "%s: %s", name, access.status().text.c_str());
    }
    if (executor.workspace == 0) return {};
    if (workspace == nullptr) return failure(CANN_NN_PARAM_NULLPTR, "workspace is null");
    if (workspace_size < executor.workspace) {
        return failure(CANN_NN_PARAM_INVALID, "workspaceSize is %llu, the first phase asked for %llu",
                       static_cast<unsigned long long>(workspace_size),
                       static_cast<unsigned long long>(executor.workspace));
    }
    const Access access = tracker().access_device(workspace, executor.workspace, device);
    if (access.ok()) return {};
    return failure(CANN_NN_PARAM_INVALID, "workspace: %s", access.status().text.c_str());
}

}  // namespace

Status finish_first_phase(Executor executor, uint64_t *workspace_size, void **handle) {
    if (workspace_size == nullptr || handle == nullptr) {
        return failure(CANN_NN_PARAM_NULLPTR, "workspaceSize or executor is null");
    }
    *workspace_size = executor.workspace;
    *handle = executors().add(std::make_shared<Executor>(std::move(executor)));
    return {};
}

Status second_phase(const char *kernel, void *workspace, uint64_t workspace_size, void *handle, void *stream_handle,
                    const Fault &fault) {
    if (handle == nullptr) return failure(CANN_NN_PARAM_NULLPTR, "executor is null");
    const auto executor = executors().find(handle);
    if (executor == nullptr) {
        return failure(CANN_NN_PARAM_INVALID, "%p is no executor, or was used up by an earlier call", handle);
    }
    if (executor->kernel != kernel) {
        return failure(CANN_NN_PARAM_INVALID, "the executor is one of %s", executor->kernel.c_str());
    }
    if (!executor->repeatable) executors().take(handle);
    Status status;
    const auto stream = find_stream(stream_handle, status);
    if (stream == nullptr) return status;
    const int32_t device = stream->device();
    if (status = check(*executor, workspace, workspace_size, device); !status.ok()) return status;
    Task task;
    task.fault = fault;
    task.run = [=](const Cancel &) { return run(*executor, workspace, device, fault); };
    return stream->push(std::move(task));
}

}  // namespace mock::nn

CannError aclDestroyAclOpExecutor(CannExecutor handle) {
    CANN_CALL(aclDestroyAclOpExecutor);
    if (handle == nullptr) return report(failure(CANN_NN_PARAM_NULLPTR, "executor is null"));
    if (nn::executors().take(handle) != nullptr) return CANN_OK;
    return report(failure(CANN_NN_PARAM_INVALID, "%p is no executor, or was used up by an earlier call", handle));
}

MOCK_API CannError aclSetAclOpExecutorRepeatable(CannExecutor handle) {
    CANN_CALL(aclSetAclOpExecutorRepeatable);
    if (handle == nullptr) return report(failure(CANN_NN_PARAM_NULLPTR, "executor is null"));
    const auto executor = nn::executors().find(handle);
    if (executor == nullptr) return report(failure(CANN_NN_PARAM_INVALID, "%p is no live executor", handle));
    executor->repeatable = true;
    return CANN_OK;
}
