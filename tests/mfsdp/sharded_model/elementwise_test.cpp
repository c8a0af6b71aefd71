// The bits of training and the traffic of a step with one elementwise optimizer for all tensors.
#include <doctest/doctest.h>

#include "support/placement_equality.hpp"

namespace elementwise_test {

using namespace mfsdp;

TEST_CASE("adamw alone trains on owners as on full copies, and its step moves nothing") {
  toy::check_placements_equal(adamw{});
}

TEST_CASE("sgd alone trains on owners as on full copies, and its step moves nothing") {
  toy::check_placements_equal(sgd{.momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
}

}  // namespace elementwise_test
