#include "rows.hpp"

#include <cstring>

namespace mock::nn {
namespace {

constexpr uint64_t kWorkspaceStep = 512;

int64_t index_at(const Tensor &tensor, const char *data, int64_t position) {
    const char *at = data;
    if (!tensor.strides.empty()) at += position * tensor.strides[0] * static_cast<int64_t>(tensor.element);
    if (tensor.type == CANN_TENSOR_INT64) {
        int64_t value;
        std::memcpy(&value, at, sizeof value);
        return value;
    }
    int32_t value;
    std::memcpy(&value, at, sizeof value);
    return value;
}

// Visits all places that the dimensions from `axis` on span, except `dim`, as contiguous stretches of both tensors.
struct Walk {
    const Rows &rows;
    const std::function<void(char *, char *, size_t)> &copy;

    void go(size_t axis, char *whole, char *part) const {
        const Tensor &a = *rows.whole, &b = *rows.part;
        if (axis == rows.dim) return go(axis + 1, whole, part);
        size_t contiguous = a.element;
        size_t from = a.dims.size();
        while (from > axis && from - 1 != rows.dim && a.strides[from - 1] * static_cast<int64_t>(a.element) ==
                   static_cast<int64_t>(contiguous) && b.strides[from - 1] == a.strides[from - 1]) {
            --from;
            contiguous *= static_cast<size_t>(a.dims[from]);
        }
        if (from == axis) return copy(whole, part, contiguous);
        for (int64_t i = 0; i < a.dims[axis]; ++i) {
            go(axis + 1, whole + i * a.strides[axis] * static_cast<int64_t>(a.element),
               part + i * b.strides[axis] * static_cast<int64_t>(a.element));
        }
    }
};

}  // namespace

Status find_rows(const void *whole, const char *whole_name, int64_t dim, const void *index, const void *part,
                 const char *part_name, Rows &rows) {
    Status status;
    rows.whole = find_tensor(whole, whole_name, status);
    if (rows.whole != nullptr) rows.index = find_tensor(index, "index", status);
    if (rows.index != nullptr) rows.part = find_tensor(part, part_name, status);
    if (rows.part == nullptr) return status;
    const auto rank = static_cast<int64_t>(rows.whole->dims.size());
    if (dim < -rank || dim >= rank) {
        return failure(CANN_NN_PARAM_INVALID, "dim %lld is not in [-%lld, %lld)", static_cast<long long>(dim),
                       static_cast<long long>(rank), static_cast<long long>(rank));
    }
    rows.dim = static_cast<size_t>(dim < 0 ? dim + rank : dim);
    if (rows.whole->type != rows.part->type) {
        return failure(CANN_NN_PARAM_INVALID, "%s has data type %d, %s has %d", whole_name, rows.whole->type,
                       part_name, rows.part->type);
    }
    if (rows.index->type != CANN_TENSOR_INT32 && rows.index->type != CANN_TENSOR_INT64) {
        return failure(CANN_NN_PARAM_INVALID, "index has data type %d, not INT32 or INT64", rows.index->type);
    }
    if (rows.index->dims.size() > 1) return failure(CANN_NN_PARAM_INVALID, "index has more than one dimension");
    if (rows.part->dims.size() != rows.whole->dims.size()) {
        return failure(CANN_NN_PARAM_INVALID, "%s and %s differ in their number of dimensions", whole_name, part_name);
    }
    for (size_t i = 0; i < rows.whole->dims.size(); ++i) {
        const int64_t wanted = i == rows.dim ? rows.index->elements() : rows.whole->dims[i];
        if (rows.part->dims[i] == wanted) continue;
        return failure(CANN_NN_PARAM_INVALID, "dimension %zu of %s is %lld, not %lld", i, part_name,
                       static_cast<long long>(rows.part->dims[i]), static_cast<long long>(wanted));
    }
    return {};
}

Status for_each_row(const Rows &rows, char *whole, const char *index, char *part,
                    const std::function<void(char *, char *, size_t)> &copy) {
    const int64_t count = rows.index->elements();
    const int64_t limit = rows.whole->dims[rows.dim];
    const auto element = static_cast<int64_t>(rows.whole->element);
    for (int64_t i = 0; i < count; ++i) {
        const int64_t row = index_at(*rows.index, index, i);
        if (row < 0 || row >= limit) {
            return failure(CANN_RT_AICORE_EXCEPTION, "index %lld at %lld is not in [0, %lld)",
                           static_cast<long long>(row), static_cast<long long>(i), static_cast<long long>(limit));
        }
    }
    if (rows.part->elements() == 0) return {};
    const Walk walk{rows, copy};
    for (int64_t i = count; i-- > 0;) {
        const int64_t row = index_at(*rows.index, index, i);
        walk.go(0, whole + row * rows.whole->strides[rows.dim] * element,
                part + i * rows.part->strides[rows.dim] * element);
    }
    return {};
}

uint64_t workspace_of(const Rows &rows) {
    const auto bytes = static_cast<uint64_t>(rows.index->elements()) * sizeof(int64_t);
    return (bytes / kWorkspaceStep + 1) * kWorkspaceStep;
}

}  // namespace mock::nn
