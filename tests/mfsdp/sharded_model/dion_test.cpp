// The bits of training and the traffic of a step with updates of low rank.
#include <doctest/doctest.h>

#include "support/placement_equality.hpp"

namespace dion_test {

using namespace mfsdp;

TEST_CASE("dion trains on owners as on full copies, and its step moves nothing") {
  toy::check_placements_equal(mixed{dion{.rank = 8}, adamw{}});
}

}  // namespace dion_test
