#include "lordo/optimizer/low_rank.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <string>
#include <vector>

#include "conformance/optimizer.hpp"
#include "conformance/periodic.hpp"

using namespace lordo;

TEST_CASE("the rule conforms") {
  mfsdp_test::optimizer_conformance(low_rank_adam<>{.rank = 2});
}

TEST_CASE("sites agree after a sync, whatever they share") {
  low_rank_adam<> rule{.rank = 2, .periods = {.parameters = 3}};
  mfsdp_test::periodic_conformance(rule, 6);
  rule.weight_decay = 0.1;
  rule.feedback = error_feedback::full;
  rule.periods.second_moment = 2;
  mfsdp_test::periodic_conformance(rule, 6);
  rule.variant = basis_source::local;
  mfsdp_test::periodic_conformance(rule, 6);
}
