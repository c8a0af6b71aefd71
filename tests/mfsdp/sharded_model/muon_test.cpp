// The bits of training and the traffic of a step with optimizers that orthogonalise.
#include <doctest/doctest.h>

#include "support/placement_equality.hpp"

namespace muon_test {

using namespace mfsdp;

TEST_CASE("every preset of muon trains on owners as on full copies, and its step moves nothing") {
  for (const named_muon& preset : muon_presets) {
    CAPTURE(preset.name);
    toy::check_placements_equal(mixed{preset.rule, adamw{}});
  }
}

TEST_CASE("normuon trains on owners as on full copies, and its step moves nothing") {
  toy::check_placements_equal(mixed{normuon{}, adamw{}});
}

}  // namespace muon_test
