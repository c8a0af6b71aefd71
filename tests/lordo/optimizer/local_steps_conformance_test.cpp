// optimizer_conformance of local_steps, apart for the sake of compile time.
#include <doctest/doctest.h>

#include "conformance/optimizer.hpp"
#include "support/local_steps_rules.hpp"
#include "support/one_site.hpp"

namespace local_steps_conformance_test {

using mfsdp_test::local_matrices, mfsdp_test::local_pieces, mfsdp_test::on_one_site;

TEST_CASE("local steps conform around rules of pieces and of matrices") {
  mfsdp_test::optimizer_conformance(on_one_site{local_pieces});
  mfsdp_test::optimizer_conformance(on_one_site{local_matrices(2, true)});
  mfsdp_test::optimizer_conformance(on_one_site{local_matrices(2, false)});
}

}  // namespace local_steps_conformance_test
