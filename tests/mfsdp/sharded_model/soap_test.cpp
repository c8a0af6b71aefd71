// The bits of training and the traffic of a step with SOAP: bases that are renewed every other
// step, on two sides, one and none.
#include <doctest/doctest.h>

#include "support/placement_equality.hpp"

namespace soap_test {

using namespace mfsdp;

TEST_CASE("every form of soap trains on owners as on full copies, and its step moves nothing") {
  for (soap rule : {soap{}, soap::eigenvalue_corrected(), soap::current_gradient()}) {
    rule.frequency = 2;
    rule.max_preconditioner_dimension = 20;
    CAPTURE(rule.options());
    toy::check_placements_equal(mixed{rule, adamw{}});
  }
}

}  // namespace soap_test
