// workspace: cuts the scratch memory of an update into aligned parts.
#pragma once

#include <cassert>
#include <span>

#include "mfsdp/layout.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Elements that a part takes, so that the next one starts at storage_alignment for any type.
[[nodiscard]] constexpr index_t workspace_part(index_t elements) {
  return round_up(elements, static_cast<index_t>(storage_alignment));
}

// Hands out one part after the other. What an update takes, its workspace_size() adds up.
template <class T>
class workspace_cutter {
 public:
  explicit workspace_cutter(std::span<T> all) : rest_(all) {}

  [[nodiscard]] std::span<T> take(index_t elements) {
    const index_t part = workspace_part(elements);
    assert(part <= std::ssize(rest_));
    const std::span<T> taken = slice(rest_, 0, elements);
    rest_ = rest_.subspan(static_cast<std::size_t>(part));
    return taken;
  }
  [[nodiscard]] matrix_view<T> take(matrix_shape shape) {
    return {take(shape.elements()).data(), shape};
  }

 private:
  std::span<T> rest_;
};

}  // namespace mfsdp::inline MFSDP_ABI::detail
