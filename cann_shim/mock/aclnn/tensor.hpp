// Tensors of aclnn: shapes over device memory, as kernels take them.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime.hpp"

namespace mock::nn {

struct MOCK_SHARED Tensor {
    std::vector<int64_t> dims, strides;  // strides and offset in elements
    int64_t offset = 0;
    CannTensorType type = CANN_TENSOR_INT8;
    size_t element = 1;  // bytes
    void *data = nullptr;
    std::atomic<bool> destroyed{false};

    int64_t elements() const;
    // Bytes from the first element on that the view spans.
    size_t extent() const;
    char *first() const { return static_cast<char *>(data) + offset * static_cast<int64_t>(element); }
};

using TensorPtr = std::shared_ptr<Tensor>;

// Bytes of an element, 0 for an unknown type.
MOCK_SHARED size_t size_of(CannTensorType type);

// The live tensor behind a handle; null and `status` set if there is none. `name` is the argument's.
MOCK_SHARED TensorPtr find_tensor(const void *handle, const char *name, Status &status);

}  // namespace mock::nn
