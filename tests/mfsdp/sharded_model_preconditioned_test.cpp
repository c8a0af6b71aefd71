// The bits of training and the traffic of a step, with optimizers that keep a factor for each side.
#include <doctest/doctest.h>

#include "support/placement_equality.hpp"

using namespace mfsdp;

// The largest sides are above the limit, and roots and bases are renewed within the four steps.

TEST_CASE("shampoo in blocks trains on owners as on full copies, and its step moves nothing") {
  toy::check_placements_equal(
      mixed{shampoo{.frequency = 2, .max_preconditioner_dimension = 16}, adamw{}});
}

TEST_CASE("grafted shampoo trains on owners as on full copies, and its step moves nothing") {
  toy::check_placements_equal(mixed{shampoo{.beta2 = 0.99,
                                            .frequency = 2,
                                            .max_preconditioner_dimension = 16,
                                            .graft = adam_graft{}},
                                    adamw{}});
}

TEST_CASE("every form of soap trains on owners as on full copies, and its step moves nothing") {
  for (soap rule : {soap{}, soap::eigenvalue_corrected(), soap::current_gradient()}) {
    CAPTURE(rule.options());
    rule.frequency = 2;
    rule.max_preconditioner_dimension = 20;
    toy::check_placements_equal(mixed{rule, adamw{}});
  }
}
