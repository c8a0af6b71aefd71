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

TEST_CASE("local steps conform around rules of pieces and of matrices, in every form") {
  const exchange_low_rank by_two{.rank = 2};
  mfsdp_test::optimizer_conformance(on_one_site{
      local_steps{.inner = adamw{}, .periods = {.parameters = 2}, .outer = outer_nesterov{}}});
  mfsdp_test::optimizer_conformance(on_one_site{local_steps{.inner = muon{},
                                                            .periods = {.parameters = 2},
                                                            .outer = outer_nesterov{},
                                                            .exchange = by_two}});
  mfsdp_test::optimizer_conformance(
      on_one_site{local_steps{.inner = muon{},
                              .periods = {.parameters = 2},
                              .exchange = exchange_low_rank{.rank = 2, .feedback = false}}});
}
