// The call of a kernel between its two phases, and its second phase, which is the same for all kernels.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "tensor.hpp"

namespace mock::nn {

// Device memory that a kernel reads or writes, opened for the time that it runs.
struct Operand {
    TensorPtr tensor;
    const char *name;
};

struct Executor {
    std::string kernel;
    std::vector<Operand> operands;
    uint64_t workspace = 0;
    bool repeatable = false;
    // `data` has the first byte of each operand. With what a fault rule asks for.
    std::function<Status(const std::vector<char *> &data, const Fault &fault)> run;
};

// The end of a first phase.
MOCK_SHARED Status finish_first_phase(Executor executor, uint64_t *workspace_size, void **handle);

// The second phase: the executor is used up, and the kernel runs when the stream comes to it.
MOCK_SHARED Status second_phase(const char *kernel, void *workspace, uint64_t workspace_size, void *executor,
                                void *stream, const Fault &fault);

}  // namespace mock::nn
