// low_rank with Muon's momentum in the subspace.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "conformance/optimizer.hpp"
#include "lordo/optimizer/low_rank.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "support/one_matrix.hpp"
#include "support/quadratic_sites.hpp"

namespace low_rank_muon_test {

using namespace lordo;
using namespace mfsdp_test;

namespace {

using rule_type = low_rank_muon<>;

rule_type basic(double omega) {
  return {.rank = 2, .learning_rate = 0.02, .omega = omega, .periods = {.parameters = 4}};
}

}  // namespace

TEST_CASE("the rule conforms") {
  optimizer_conformance(rule_type{.rank = 2});
}

TEST_CASE("with omega 1 a step is orthogonal, of rank r, in the span of the basis") {
  const rule_type rule = basic(1);
  quadratic problem = started_quadratic();
  problem.sites = 1;
  auto one = problem.make(rule);
  problem.train(one, 1, 2);
  const std::vector<double> x = one.parameter(), b = one.state(rule_type::basis);
  problem.train(one, 3, 1);
  std::vector<double> step = one.parameter();
  for (std::size_t i = 0; i < step.size(); ++i) step[i] = (x[i] - step[i]) / 0.02;
  const auto values = left_singular(step, problem.shape).values;
  CHECK(values[0] < 1.2);
  CHECK(values[1] > 0.6);
  CHECK(values[2] < 1e-12);
  const auto exact = left_singular(step, problem.shape);
  CHECK(sine({exact.vectors.begin(), exact.vectors.begin() + 16}, b, 8) < 1e-12);
}

TEST_CASE("the span stays with omega 1 and moves with less") {
  for (const double omega : {1.0, 0.5}) {
    const quadratic problem = started_quadratic();
    rule_type rule = basic(omega);
    rule.learning_rate = 0.1;
    auto sites = problem.make(rule);
    problem.train(sites, 1, 1);
    const std::vector<double> first = sites.state(rule_type::basis);
    problem.train(sites, 2, 239);
    const double drift = sine(sites.state(rule_type::basis), first, 8);
    CAPTURE(omega);
    if (omega == 1) {
      CHECK(drift < 1e-12);
      CHECK(problem.loss(sites.parameter()) > problem.floor(first));
    } else {
      CHECK(drift > 0.5);
      CHECK(problem.loss(sites.parameter()) < 0.5 * problem.floor(first));
    }
  }
}

TEST_CASE("the full-rank term has the size of an orthogonal step where the basis holds it") {
  // Of a gradient in the span of the basis both terms have norm sqrt(r), but for Newton-Schulz.
  rule_type rule = basic(0.5);
  rule.periods.parameters = 1;
  quadratic problem;
  problem.sites = 1;
  auto sites = problem.make(rule);
  const std::vector<double> x = gaussian(8, 1), y = gaussian(8, 2), z = gaussian(8, 3),
                            w = gaussian(8, 4);
  std::vector<double> g(64);
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t j = 0; j < 8; ++j) g[i * 8 + j] = x[i] * y[j] + z[i] * w[j];
  }
  sites.step({g});
  const auto figures = sites.state(rule_type::figures);
  CHECK(figures[figure::captured] == doctest::Approx(1).epsilon(1e-9));
  CHECK(figures[figure::ratio] == doctest::Approx(1).epsilon(0.35));
}

TEST_CASE("a basis that sees next to nothing of a gradient gives a bounded step, and a step") {
  const rule_type rule = basic(0.5);
  std::vector<double> first(64), second(64);
  for (std::size_t j = 0; j < 8; ++j) {
    first[j] = 1;
    first[8 + j] = j % 2 == 0 ? 1 : -1;
    second[3 * 8 + j] = 0.25 * static_cast<double>(j);
  }
  for (const double share : {1e-6, 1e-12, 0.0}) {
    CAPTURE(share);
    second[0] = share * norm(second);
    plain_sites<double, rule_type> sites(rule, {8, 8}, 1, std::vector<double>(64));
    sites.step({first});
    std::vector<double> moved = sites.parameter();
    sites.step({second});
    for (std::size_t i = 0; i < 64; ++i) moved[i] -= sites.parameter()[i];
    // Ten times what an orthogonal step has, and the direction of the gradient.
    const double along = norm(std::vector<double>(moved.begin() + 24, moved.begin() + 32));
    CHECK(along == doctest::Approx(0.02 * 0.5 * 10 * std::sqrt(8.0)).epsilon(1e-6));
    CHECK(moved[24 + 7] / moved[24 + 1] == doctest::Approx(7));
    second[0] = 0;
  }
  // A gradient of zeros gives none.
  plain_sites<double, rule_type> still(rule, {8, 8}, 1, std::vector<double>(64));
  still.step({std::vector<double>(64)});
  CHECK(norm(still.parameter()) == 0);
}

TEST_CASE("at full size the rule is Muon without look-ahead") {
  quadratic problem = started_quadratic();
  problem.sites = 1;
  rule_type rule = basic(0.5);
  rule.rank = 8;
  auto sites = problem.make(rule);
  one_matrix<double, mfsdp::muon> muon(
      {.learning_rate = 0.02, .momentum = 0.95, .form = {.nesterov = false}}, problem.shape,
      problem.start);
  for (int step = 1; step <= 5; ++step) {
    muon.update(problem.gradient(sites.parameter(), 0, step));
    problem.train(sites, step, 1);
    CHECK(largest_difference(sites.parameter(), muon.parameter) < 1e-12);
  }
}

}  // namespace low_rank_muon_test
