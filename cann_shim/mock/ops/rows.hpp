// What selecting and writing rows have in common: two tensors that differ in one dimension, and an index along it.
#pragma once

#include "executor.hpp"

namespace mock::nn {

// The tensors of a kernel, and the dimension from 0 on.
struct Rows {
    TensorPtr whole, index, part;
    size_t dim = 0;
};

// Finds and checks the tensors: one type, shapes that differ in `dim` only, an index of INT32 or INT64 that is as long
// as `part` in `dim`.
Status find_rows(const void *whole, const char *whole_name, int64_t dim, const void *index, const void *part,
                 const char *part_name, Rows &rows);

// Calls `copy(in whole, in part, bytes)` for every contiguous stretch, last row first since no order is promised.
// An index out of range is an error.
Status for_each_row(const Rows &rows, char *whole, const char *index, char *part,
                    const std::function<void(char *, char *, size_t)> &copy);

// Device memory that the mock's kernels ask for.
uint64_t workspace_of(const Rows &rows);

}  // namespace mock::nn
