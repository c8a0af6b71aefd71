// The smallest Projector, one member at a time, so that a test can leave one out. For tests that
// compile and never run.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "lordo/concepts.hpp"
#include "support/archetypes.hpp"

namespace archetype {

struct with_needs_signal {
  static constexpr bool needs_signal = true;
};
struct with_projector_options {
  std::string options() const;
};
struct with_projector_flops {
  index_t flops(matrix_shape, index_t) const;
};
struct with_projector_workspace_size {
  index_t workspace_size(matrix_shape, index_t) const;
};
struct with_basis {
  template <class B>
  void basis(B&, matrix_view<const float>, lordo::basis_draw, matrix_view<const float>,
             matrix_view<float>, std::span<float>) const;
};

using projector = composed<with_name, with_needs_signal, with_projector_options,
                           with_projector_flops, with_projector_workspace_size, with_basis>;

}  // namespace archetype
