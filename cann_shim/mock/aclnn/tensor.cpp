#include "tensor.hpp"

using namespace mock;

namespace mock::nn {
namespace {

constexpr uint64_t kMaxDims = 8;

Handles<Tensor> &tensors() {
    static Handles<Tensor> all;
    return all;
}

Status make(Tensor &tensor, const int64_t *dims, uint64_t count, const int64_t *strides, int64_t offset,
            const int64_t *storage, uint64_t storage_count) {
    if (tensor.element == 0) return failure(CANN_NN_PARAM_INVALID, "data type %d is unknown", tensor.type);
    if (count > kMaxDims || storage_count > kMaxDims) {
        return failure(CANN_NN_PARAM_INVALID, "a tensor has at most %d dimensions", static_cast<int>(kMaxDims));
    }
    if ((dims == nullptr && count > 0) || (storage == nullptr && storage_count > 0)) {
        return failure(CANN_NN_PARAM_NULLPTR, "the dimensions are null");
    }
    tensor.dims.assign(dims, dims + count);
    tensor.offset = offset;
    tensor.strides.assign(count, 1);
    for (uint64_t i = count; i-- > 0;) {
        if (tensor.dims[i] < 0) return failure(CANN_NN_PARAM_INVALID, "dimension %d is negative", static_cast<int>(i));
        if (strides != nullptr) {
            tensor.strides[i] = strides[i];
        } else if (i + 1 < count) {
            tensor.strides[i] = tensor.strides[i + 1] * tensor.dims[i + 1];
        }
        if (tensor.strides[i] < 0) return failure(CANN_NN_PARAM_INVALID, "stride %d is negative", static_cast<int>(i));
    }
    int64_t room = 1;
    for (uint64_t i = 0; i < storage_count; ++i) room *= storage[i];
    const int64_t last = offset + static_cast<int64_t>(tensor.extent() / tensor.element);
    if (offset < 0 || last > room) {
        return failure(CANN_NN_PARAM_INVALID, "the view ends at element %lld of %lld", static_cast<long long>(last),
                       static_cast<long long>(room));
    }
    return {};
}

}  // namespace

int64_t Tensor::elements() const {
    int64_t product = 1;
    for (const int64_t dim : dims) product *= dim;
    return product;
}

size_t Tensor::extent() const {
    if (elements() == 0) return 0;
    int64_t last = 0;
    for (size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
    return static_cast<size_t>(last + 1) * element;
}

size_t size_of(CannTensorType type) {
    switch (type) {
        case CANN_TENSOR_INT8:
        case CANN_TENSOR_UINT8:
        case CANN_TENSOR_BOOL:
            return 1;
        case CANN_TENSOR_FLOAT16:
        case CANN_TENSOR_BF16:
        case CANN_TENSOR_INT16:
        case CANN_TENSOR_UINT16:
            return 2;
        case CANN_TENSOR_FLOAT:
        case CANN_TENSOR_INT32:
        case CANN_TENSOR_UINT32:
            return 4;
        case CANN_TENSOR_INT64:
        case CANN_TENSOR_UINT64:
        case CANN_TENSOR_DOUBLE:
            return 8;
        default:
            return 0;
    }
}

TensorPtr find_tensor(const void *handle, const char *name, Status &status) {
    if (handle == nullptr) {
        status = failure(CANN_NN_PARAM_NULLPTR, "%s is null", name);
        return nullptr;
    }
    auto tensor = tensors().find(const_cast<void *>(handle));
    if (tensor == nullptr) status = failure(CANN_NN_PARAM_INVALID, "%s: %p is not a live tensor", name, handle);
    return tensor;
}

}  // namespace mock::nn

CannTensor aclCreateTensor(const int64_t *dims, uint64_t dimCount, CannTensorType type, const int64_t *strides,
                           int64_t offset, CannFormat, const int64_t *storageDims, uint64_t storageDimCount,
                           void *data) {
    MOCK_ENTER(aclCreateTensor, false);
    if (call.replaced()) return nullptr;
    auto tensor = std::make_shared<nn::Tensor>();
    tensor->type = type;
    tensor->element = nn::size_of(type);
    tensor->data = data;
    const Status status = nn::make(*tensor, dims, dimCount, strides, offset, storageDims, storageDimCount);
    if (report(status) != CANN_OK) return nullptr;
    return nn::tensors().add(std::move(tensor));
}

CannError aclDestroyTensor(const void *handle) {
    CANN_CALL(aclDestroyTensor);
    if (handle == nullptr) return CANN_OK;
    const auto tensor = nn::tensors().take(const_cast<void *>(handle));
    if (tensor == nullptr) return report(failure(CANN_NN_PARAM_INVALID, "%p is not a live tensor", handle));
    tensor->destroyed = true;
    return CANN_OK;
}
