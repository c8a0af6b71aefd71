// Views: the currency between layers. Nothing here owns memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "mfsdp/config.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Counts and offsets, in elements unless a name says bytes. Signed and 64 bits wide everywhere.
using index_t = std::int64_t;

// Rows and columns. A tensor of another rank is seen as (first extent, product of the others); a
// piece of an elementwise tensor as (1, elements).
struct matrix_shape {
  index_t rows = 0;
  index_t cols = 0;

  [[nodiscard]] constexpr index_t elements() const { return rows * cols; }
  friend constexpr bool operator==(matrix_shape, matrix_shape) = default;
};

// A dense row-major matrix somewhere in memory.
template <class T>
class matrix_view {
 public:
  constexpr matrix_view() = default;
  constexpr matrix_view(T* data, index_t rows, index_t cols) : data_(data), shape_{rows, cols} {}
  constexpr matrix_view(T* data, matrix_shape shape) : data_(data), shape_(shape) {}

  // A view of mutable elements is a view of constant ones.
  constexpr operator matrix_view<const T>() const
    requires(!std::is_const_v<T>)
  {
    return {data_, shape_};
  }

  [[nodiscard]] constexpr T* data() const { return data_; }
  [[nodiscard]] constexpr index_t rows() const { return shape_.rows; }
  [[nodiscard]] constexpr index_t cols() const { return shape_.cols; }
  [[nodiscard]] constexpr index_t size() const { return shape_.elements(); }
  [[nodiscard]] constexpr matrix_shape shape() const { return shape_; }
  [[nodiscard]] constexpr std::span<T> flat() const {
    return {data_, static_cast<std::size_t>(size())};
  }

 private:
  T* data_ = nullptr;
  matrix_shape shape_{};
};

// A part of a span, with signed offsets.
template <class T>
[[nodiscard]] constexpr std::span<T> slice(std::span<T> all, index_t offset, index_t count) {
  return all.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
}

}  // namespace mfsdp::inline MFSDP_ABI
