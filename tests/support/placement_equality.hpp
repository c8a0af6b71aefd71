// Whatever the optimizers: training does not depend on where a matrix lives, and the step of owners
// moves nothing.
#pragma once

#include <doctest/doctest.h>

#include <cmath>

#include "support/toy_training.hpp"

namespace toy {

// Matrices of every form, alone, fused, stacked and folded from a convolution, enough of them for
// seven owners; elementwise tensors in several blocks and in less than one.
inline mfsdp::model_spec many_forms_spec() {
  mfsdp::model_spec spec;
  spec.unit("embedding").elementwise("tokens", {67, 33}).vector("scale", 1);
  spec.unit("attention")
      .vector("norm", 33)
      .matrix("qkv", 3 * 12, 18, {.row_groups = 3})
      .matrix("square", 18, 18);
  spec.unit("mlp").matrix("tall", 41, 18).matrix("wide", 23, 43).vector("empty", 0);
  spec.unit("experts").stack("gated", 3, 14, 9, {.row_groups = 2}).vector("bias", 14);
  spec.unit("lines").matrix("row", 1, 37).matrix("column", 21, 1).matrix("none", 0, 7);
  spec.unit("stem").convolution("kernel", {12, 3, 1, 5}).elementwise("table", {3, 5, 70});
  spec.unit("head").vector("norm", 33).tied("output", "embedding.tokens");
  return spec;
}

// Replicated and owner-shaped training equal the plain loop to the last bit at every rank count.
template <class Optimizers>
void check_placements_equal(const Optimizers& rules) {
  using namespace mfsdp;
  const model_spec spec = many_forms_spec();
  for (const int ranks : {1, 2, 3, 4, 7}) {
    CAPTURE(ranks);
    const settings how{.ranks = ranks, .steps = 4};
    const outcome expected = run_plain(spec, rules, how);
    for (const tensor_spec& tensor : spec.tensors()) {
      CAPTURE(tensor.name);
      const auto& values = expected.parameters.at(tensor.name);
      bool moved = false;
      bool finite = true;
      for (std::size_t i = 0; i < values.size(); ++i) {
        moved = moved || values[i] != initial_value(tensor, static_cast<index_t>(i));
        finite = finite && std::isfinite(values[i]);
      }
      CHECK(moved == !values.empty());
      CHECK(finite);
    }
    CHECK(run_sharded(spec, replicated_placement{}, rules, how) == expected);
    const outcome owned = run_sharded(spec, owner_placement{}, rules, how, [](auto& model) {
      CHECK(model.moved(phase::step) == traffic{});
      CHECK(model.memory_in_use()[memory_kind::optimizer_states] > 0);
    });
    CHECK(owned == expected);
  }
}

}  // namespace toy
