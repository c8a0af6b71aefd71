#include "lordo/optimizer/low_rank.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "conformance/optimizer.hpp"
#include "conformance/periodic.hpp"
#include "support/quadratic_sites.hpp"

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

TEST_CASE("in float the rule does what it does in double, stagnation included") {
  using rule_type = low_rank_adam<>;
  using namespace mfsdp_test;
  quadratic problem;
  problem.start = gaussian(64, 8, 0.5);
  for (const double omega : {1.0, 0.5}) {
    CAPTURE(omega);
    const rule_type rule{
        .rank = 2, .learning_rate = 0.05, .omega = omega, .periods = {.parameters = 4}};
    auto narrow = problem.make<float>(rule);
    auto wide = problem.make<double>(rule);
    problem.train(narrow, 1, 12);
    problem.train(wide, 1, 12);
    const std::vector<float> x = narrow.parameter();
    CHECK(largest_difference(std::vector<double>(x.begin(), x.end()), wide.parameter()) < 1e-3);

    const std::vector<float> first = narrow.state(rule_type::basis);
    problem.train(narrow, 13, 100);
    const std::vector<float> last = narrow.state(rule_type::basis);
    const double drift = sine({last.begin(), last.end()}, {first.begin(), first.end()}, 8);
    CHECK((omega == 1 ? drift < 1e-3 : drift > 0.3));
  }
}
