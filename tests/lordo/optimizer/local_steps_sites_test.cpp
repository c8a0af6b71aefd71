// periodic_conformance of local_steps, apart for the sake of compile time.
#include <doctest/doctest.h>

#include "conformance/periodic.hpp"
#include "support/local_steps_rules.hpp"

namespace local_steps_sites_test {

using mfsdp_test::local_matrices, mfsdp_test::local_pieces;

TEST_CASE("sites agree after a sync of local steps, whatever they share") {
  mfsdp_test::periodic_conformance(local_pieces, 6);
  mfsdp_test::periodic_conformance(local_matrices(2, true), 6);
  mfsdp_test::periodic_conformance(local_matrices(2, false), 6);
  mfsdp_test::periodic_conformance(local_matrices(9, true), 6);
}

}  // namespace local_steps_sites_test
