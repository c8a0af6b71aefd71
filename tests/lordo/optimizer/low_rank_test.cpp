#include "lordo/optimizer/low_rank.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "conformance/optimizer.hpp"
#include "conformance/periodic.hpp"
#include "support/quadratic_sites.hpp"

namespace low_rank_test {

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

TEST_CASE("columns that the basis sees nothing of take a bounded step") {
  using rule_type = low_rank_adam<>;
  // The first basis is that of two rows, the moments that of six columns.
  std::vector<float> seen(64), unseen(64);
  for (std::size_t i = 0; i < 2; ++i) {
    for (std::size_t j = 0; j < 6; ++j) {
      seen[i * 8 + j] = static_cast<float>(std::sin(1.0 + 3.0 * static_cast<double>(i * 6 + j)));
    }
  }
  unseen[4 * 8 + 7] = 1e-3f;
  const auto moved = [&](const rule_type& rule) {
    mfsdp_test::plain_sites<float, rule_type> sites(rule, {8, 8}, 1, std::vector<float>(64));
    sites.step({seen});
    const std::vector<float> before = sites.parameter();
    sites.step({unseen});
    return mfsdp_test::largest_difference(sites.parameter(), before);
  };
  rule_type rule{.rank = 2, .learning_rate = 0.002, .omega = 0.5};
  // At a floor of 0.01: 100 times what the mean over the matrix would make of it, or less.
  CHECK(moved(rule) < 0.002);
  rule.moments.denominator_floor = 1;
  const double at_mean = moved(rule);
  rule.moments.denominator = denominator_mean::full;
  CHECK(moved(rule) == doctest::Approx(at_mean).epsilon(1e-4));
  rule.moments.denominator = denominator_mean::axis;
  rule.moments.denominator_floor = 0;
  CHECK(moved(rule) > 50);  // the formula as it stands
}

TEST_CASE("a floor counts where a mean is below it, by hand") {
  using rule_type = low_rank_adam<>;
  // With one direction D is the size of the coordinates at the first step: 1, 1, 1e-4, 1e-4.
  std::vector<double> g(16);
  for (std::size_t j = 0; j < 4; ++j) g[j] = j < 2 ? 1 : 1e-4;
  rule_type rule{.rank = 1, .learning_rate = 1, .omega = 0, .moments = {.epsilon = 1e-300}};
  const auto step = [&](double least) {
    rule.moments.denominator_floor = least;
    mfsdp_test::plain_sites<double, rule_type> sites(rule, {4, 4}, 1, std::vector<double>(16));
    sites.step({g});
    return sites.parameter();
  };
  const double mean = (1 + 1e-4) / 2;
  CHECK(step(0.01)[0] == doctest::Approx(-1));
  CHECK(step(0.01)[2] == doctest::Approx(-1e-4 / (0.01 * mean)));
  CHECK(step(0.5)[2] == doctest::Approx(-1e-4 / (0.5 * mean)));
  CHECK(step(1e-5)[2] == doctest::Approx(-1));
  CHECK(step(0)[2] == doctest::Approx(-1));
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

}  // namespace low_rank_test
