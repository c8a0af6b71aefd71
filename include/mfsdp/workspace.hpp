// workspace: cuts buffers into aligned parts.
#pragma once

#include <cassert>
#include <span>

#include "mfsdp/layout.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Hands out parts of a buffer, one after the other, each at a multiple of `Multiple` elements.
template <class T, index_t Multiple>
class buffer_cutter {
 public:
  explicit buffer_cutter(std::span<T> all) : rest_(all) {}

  // What a part takes up of the buffer.
  [[nodiscard]] static constexpr index_t size(index_t elements) {
    return round_up(elements, Multiple);
  }
  [[nodiscard]] std::span<T> take(index_t elements) {
    assert(size(elements) <= std::ssize(rest_));
    const std::span<T> part = slice(rest_, 0, elements);
    rest_ = rest_.subspan(static_cast<std::size_t>(size(elements)));
    return part;
  }
  [[nodiscard]] matrix_view<T> take(matrix_shape shape) {
    return {take(shape.elements()).data(), shape};
  }
  [[nodiscard]] std::span<T> rest() const { return rest_; }

 private:
  std::span<T> rest_;
};

// No more than the alignment of T needs.
template <class T>
using aligned_parts = buffer_cutter<T, static_cast<index_t>(storage_alignment / sizeof(T))>;

// The scratch of an optimizer, whose size does not depend on T.
template <class T>
using workspace_cutter = buffer_cutter<T, static_cast<index_t>(storage_alignment)>;

[[nodiscard]] constexpr index_t workspace_part(index_t elements) {
  return workspace_cutter<float>::size(elements);
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
