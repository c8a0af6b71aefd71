// The bits of training and the traffic of a step with Shampoo: matrices in blocks, roots of steps 2
// and 4.
#include <doctest/doctest.h>

#include "support/placement_equality.hpp"

namespace shampoo_test {

using namespace mfsdp;

TEST_CASE("shampoo in blocks trains on owners as on full copies, and its step moves nothing") {
  toy::check_placements_equal(
      mixed{shampoo{.frequency = 2, .max_preconditioner_dimension = 16}, adamw{}});
}

TEST_CASE("grafted shampoo trains on owners as on full copies, and its step moves nothing") {
  toy::check_placements_equal(mixed{
      shampoo{
          .beta2 = 0.99, .frequency = 2, .max_preconditioner_dimension = 16, .graft = adam_graft{}},
      adamw{}});
}

}  // namespace shampoo_test
