// The bodies of the backend's kernels (launch.hpp says what a body is). Host code can call them
// too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "mfsdp/cuda/launch.hpp"
#include "mfsdp/precision.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI::cuda {

// kernel(x[0][i], x[1][i], ...), Backend::transform. Bit j of `written` is set if x[j] may be
// written: one body serves all ways to pass constant spans.
template <class Kernel, class T, std::size_t N>
struct elementwise {
  Kernel apply;
  T* x[N];
  std::uint32_t written;
  index_t count;

  [[nodiscard]] MFSDP_HOST_DEVICE index_t size() const { return count; }
  MFSDP_HOST_DEVICE void operator()(index_t i) const { at(i, std::make_index_sequence<N>{}); }
  template <class Visit>
  void operands(const Visit& visit) const {
    if constexpr (requires { apply.operands(visit); }) apply.operands(visit);
    for (std::size_t j = 0; j < N; ++j)
      visit(x[j], count, written >> j & 1 ? touch::write : touch::read);
  }

 private:
  template <std::size_t... J>
  MFSDP_HOST_DEVICE void at(index_t i, std::index_sequence<J...>) const {
    apply(x[J][i]...);
  }
};

// A kernel of transform_by_sum as one of transform: its first argument is a number in device
// memory.
template <class Kernel>
struct with_sum {
  Kernel apply;
  const double* sum;

  template <class... X>
  MFSDP_HOST_DEVICE void operator()(X&... x) const {
    apply(*sum, x...);
  }
  template <class Visit>
  void operands(const Visit& visit) const {
    visit(sum, 1, touch::read);
  }
};

// x[i] = value, as bits.
template <class Bits>
struct fill_bits {
  Bits value;
  Bits* x;
  index_t count;

  [[nodiscard]] MFSDP_HOST_DEVICE index_t size() const { return count; }
  MFSDP_HOST_DEVICE void operator()(index_t i) const { x[i] = value; }
  template <class Visit>
  void operands(const Visit& visit) const {
    visit(x, count, touch::write);
  }
};

// to[i] = factor from[i], in float for 16-bit types: a product of inner size zero.
template <class T>
struct scaled_copy {
  using scale = std::conditional_t<std::is_same_v<T, double>, double, float>;
  scale factor;
  const T* from;
  T* to;
  index_t count;

  [[nodiscard]] MFSDP_HOST_DEVICE index_t size() const { return count; }
  MFSDP_HOST_DEVICE void operator()(index_t i) const {
    to[i] = static_cast<T>(factor * static_cast<scale>(from[i]));
  }
  template <class Visit>
  void operands(const Visit& visit) const {
    visit(from, count, touch::read);
    visit(to, count, touch::write);
  }
};

// to[i] = from[i], to nearest where To is the narrower type.
template <class From, class To>
struct convert_each {
  const From* from;
  To* to;
  index_t count;

  [[nodiscard]] MFSDP_HOST_DEVICE index_t size() const { return count; }
  MFSDP_HOST_DEVICE void operator()(index_t i) const { to[i] = static_cast<To>(from[i]); }
  template <class Visit>
  void operands(const Visit& visit) const {
    visit(from, count, touch::read);
    visit(to, count, touch::write);
  }
};

// Backend::round_stochastically.
template <class T>
struct round_each {
  const float* from;
  T* to;
  std::uint64_t key;
  index_t first;
  index_t count;

  [[nodiscard]] MFSDP_HOST_DEVICE index_t size() const { return count; }
  MFSDP_HOST_DEVICE void operator()(index_t i) const {
    to[i] = T::stochastic(from[i], rounding_bits(key, first + i));
  }
  template <class Visit>
  void operands(const Visit& visit) const {
    visit(from, count, touch::read);
    visit(to, count, touch::write);
  }
};

// sums[i] of squares, in double, of block i: each of `rows` rows of `cols` elements has its own
// blocks of block_elements from its start.
template <class T>
struct block_sums {
  const T* x;
  index_t rows;
  index_t cols;
  double* out;

  [[nodiscard]] static MFSDP_HOST_DEVICE constexpr index_t blocks(index_t cols) {
    return (cols + static_cast<index_t>(block_elements) - 1) / static_cast<index_t>(block_elements);
  }
  [[nodiscard]] MFSDP_HOST_DEVICE index_t sums() const { return rows * blocks(cols); }
  [[nodiscard]] MFSDP_HOST_DEVICE double lane(index_t i, int l) const {
    const index_t first = i % blocks(cols) * static_cast<index_t>(block_elements);
    const index_t end = first + static_cast<index_t>(block_elements);
    const T* const row = x + i / blocks(cols) * cols;
    double sum = 0;
    for (index_t j = first + l; j < end && j < cols; j += lanes) {
      const double value = static_cast<double>(row[j]);
      sum += value * value;
    }
    return sum;
  }
  MFSDP_HOST_DEVICE void store(index_t i, double sum) const { out[i] = sum; }
  template <class Visit>
  void operands(const Visit& visit) const {
    visit(x, rows * cols, touch::read);
    visit(out, sums(), touch::write);
  }
};

// out[i] = the i-th `each` numbers, added in order.
template <class To>
struct ordered_sums {
  const double* from;
  index_t each;
  To* out;
  index_t count;

  [[nodiscard]] MFSDP_HOST_DEVICE index_t size() const { return count; }
  MFSDP_HOST_DEVICE void operator()(index_t i) const {
    double sum = 0;
    for (index_t j = 0; j < each; ++j) sum += from[i * each + j];
    out[i] = static_cast<To>(sum);
  }
  template <class Visit>
  void operands(const Visit& visit) const {
    visit(from, count * each, touch::read);
    visit(out, count, touch::write);
  }
};

// Row i of a times factors[i].
template <class T>
struct scale_each_row {
  const T* factors;
  T* a;
  index_t rows;
  index_t cols;

  [[nodiscard]] MFSDP_HOST_DEVICE index_t size() const { return rows * cols; }
  MFSDP_HOST_DEVICE void operator()(index_t i) const { a[i] = factors[i / cols] * a[i]; }
  template <class Visit>
  void operands(const Visit& visit) const {
    visit(factors, rows, touch::read);
    visit(a, rows * cols, touch::write);
  }
};

// b(i, j) = a(row_order[i], col_order[j]); null is all in order.
template <class T>
struct permute_each {
  const T* a;
  const index_t* row_order;
  const index_t* col_order;
  T* b;
  matrix_shape from;
  matrix_shape to;

  [[nodiscard]] MFSDP_HOST_DEVICE index_t size() const { return to.rows * to.cols; }
  MFSDP_HOST_DEVICE void operator()(index_t i) const {
    const index_t row = i / to.cols;
    const index_t col = i % to.cols;
    b[i] = a[(row_order ? row_order[row] : row) * from.cols + (col_order ? col_order[col] : col)];
  }
  template <class Visit>
  void operands(const Visit& visit) const {
    visit(a, from.rows * from.cols, touch::read);
    if (row_order) visit(row_order, to.rows, touch::read);
    if (col_order) visit(col_order, to.cols, touch::read);
    visit(b, to.rows * to.cols, touch::write);
  }
};

}  // namespace mfsdp::inline MFSDP_ABI::cuda
