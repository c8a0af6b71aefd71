// optimizer_conformance of local_steps, apart for the sake of compile time.
#include <doctest/doctest.h>

#include "conformance/optimizer.hpp"
#include "lordo/optimizer/local_steps.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "support/one_site.hpp"

using namespace mfsdp;
using lordo::exchange_low_rank;
using lordo::local_steps;
using lordo::outer_nesterov;
using mfsdp_test::on_one_site;

namespace {

const local_steps pieces{.inner = adamw{}, .periods = {.parameters = 2}, .outer = outer_nesterov{}};

auto matrices(index_t rank, bool feedback) {
  return local_steps{.inner = muon{},
                     .periods = {.parameters = 2, .first_moment = 3},
                     .outer = outer_nesterov{},
                     .exchange = exchange_low_rank{.rank = rank, .feedback = feedback}};
}

}  // namespace

TEST_CASE("local steps conform around rules of pieces and of matrices") {
  mfsdp_test::optimizer_conformance(on_one_site{pieces});
  mfsdp_test::optimizer_conformance(on_one_site{matrices(2, true)});
  mfsdp_test::optimizer_conformance(on_one_site{matrices(2, false)});
}
