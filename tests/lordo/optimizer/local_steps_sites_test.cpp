// periodic_conformance of local_steps, apart for the sake of compile time.
#include <doctest/doctest.h>

#include "conformance/periodic.hpp"
#include "lordo/optimizer/local_steps.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/muon.hpp"

using namespace mfsdp;
using lordo::exchange_low_rank;
using lordo::local_steps;
using lordo::outer_nesterov;

namespace {

const local_steps pieces{.inner = adamw{}, .periods = {.parameters = 2}, .outer = outer_nesterov{}};

auto matrices(index_t rank, bool feedback) {
  return local_steps{.inner = muon{},
                     .periods = {.parameters = 2, .first_moment = 3},
                     .outer = outer_nesterov{},
                     .exchange = exchange_low_rank{.rank = rank, .feedback = feedback}};
}

}  // namespace

TEST_CASE("sites agree after a sync of local steps, whatever they share") {
  mfsdp_test::periodic_conformance(pieces, 6);
  mfsdp_test::periodic_conformance(matrices(2, true), 6);
  mfsdp_test::periodic_conformance(matrices(2, false), 6);
  mfsdp_test::periodic_conformance(matrices(9, true), 6);
}
