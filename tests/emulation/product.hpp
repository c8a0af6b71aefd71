// Products of matrices as cuBLASLt defines them, on memory that the host can touch.
#pragma once

#include <library_types.h>

#include <cstdint>

namespace emulation {

struct matrix_layout {
  cudaDataType type{};
  std::uint64_t rows = 0, cols = 0;
  std::int64_t leading = 0;
  bool row_major = false;
  std::int32_t batch = 1;
  std::int64_t stride = 0;  // elements from one matrix of the batch to the next
  bool operator==(const matrix_layout&) const = default;

  // Elements that lie next to each other, and how often they do.
  [[nodiscard]] std::uint64_t run() const { return row_major ? cols : rows; }
  [[nodiscard]] std::uint64_t runs() const { return row_major ? rows : cols; }
};

struct product {
  matrix_layout a, b, c, d;
  bool transpose_a = false, transpose_b = false;
  bool double_arithmetic = false;
  bool tf32 = false;  // rounds the factors to 10 bits of fraction
  int parts = 1;      // of the inner dimension, summed one after the other

  [[nodiscard]] std::uint64_t inner() const { return transpose_a ? a.rows : a.cols; }
};

[[nodiscard]] std::size_t bytes_of(cudaDataType);

// d = alpha op(a) op(b) + beta c, with sums in float or double. c may be d, and is not read if beta
// is zero; neither a nor b if alpha is.
void multiply(const product&, double alpha, const void* a, const void* b, double beta,
              const void* c, void* d);

}  // namespace emulation
