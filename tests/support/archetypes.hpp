// The smallest parts that a sharded_model takes: they have every member of their contract, and most
// members do nothing. For tests that compile and never run.
#pragma once

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "mfsdp/collective/mesh.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/sharded_model.hpp"

namespace archetype {

using mfsdp::index_t, mfsdp::matrix_shape, mfsdp::matrix_view;

struct optimizer {
  static constexpr std::string_view name = "archetype";
  static constexpr bool whole_matrix = false;
  index_t flops(matrix_shape) const { return 0; }
  std::array<index_t, 1> state_sizes(matrix_shape shape) const { return {shape.elements()}; }
  index_t workspace_size(matrix_shape) const { return 0; }
  template <class B>
  void update(B&, const std::array<std::span<float>, 1>&, matrix_view<float>,
              matrix_view<const float>, const mfsdp::update_context<float>&) const {}
};
