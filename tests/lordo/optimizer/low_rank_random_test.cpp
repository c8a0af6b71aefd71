// low_rank with bases that nobody has to send.
#include <doctest/doctest.h>

#include <cstddef>
#include <vector>

#include "lordo/optimizer/low_rank.hpp"
#include "lordo/projector/random.hpp"
#include "support/quadratic_sites.hpp"

namespace low_rank_random_test {

using namespace lordo;
using namespace mfsdp_test;

namespace {

using rule_type = low_rank_adam<random_projection>;

rule_type basic() {
  return {.rank = 2, .learning_rate = 0.05, .omega = 1, .periods = {.parameters = 4}};
}

}  // namespace

TEST_CASE("sites agree on random bases, which leave no direction out") {
  const quadratic problem;
  auto sites = problem.make(basic());
  const std::vector<double> first = sites.state(rule_type::basis);
  std::vector<double> before = first;
  problem.train(sites, 1, 400, [&](int step) {
    const std::vector<double> now = sites.state(rule_type::basis);
    CHECK((now != before) == (step % 4 == 0));
    before = now;
    for (std::size_t i = 1; i < problem.sites; ++i) {
      CHECK(sites.state(rule_type::basis, i) == now);
      CHECK((sites.parameter(i) == sites.parameter()) == (step % 4 == 0));
    }
  });
  CHECK(problem.loss(sites.parameter()) < 0.5 * problem.floor(first));
}

TEST_CASE("only parameters and moments are sent, from the first step on") {
  const quadratic problem;
  auto sites = problem.make(basic());
  problem.train(sites, 1, 8);
  CHECK(sites.exchanged() == 2 * (64 + 2 * 16));
}

TEST_CASE("seed and item give other bases") {
  rule_type rule = basic();
  const std::vector<double> start(64);
  const plain_sites<double, rule_type> first(rule, {8, 8}, 1, start, 0);
  const plain_sites<double, rule_type> second(rule, {8, 8}, 1, start, 1);
  rule.projector.seed = 5;
  const plain_sites<double, rule_type> seeded(rule, {8, 8}, 1, start, 0);
  CHECK(first.state(rule_type::basis) != second.state(rule_type::basis));
  CHECK(first.state(rule_type::basis) != seeded.state(rule_type::basis));
}

TEST_CASE("a local form with random bases is the same on all sites, too") {
  rule_type rule = basic();
  rule.variant = basis_source::local;
  rule.feedback = error_feedback::none;
  const quadratic problem;
  auto sites = problem.make(rule);
  problem.train(sites, 1, 10, [&](int) {
    for (std::size_t i = 1; i < problem.sites; ++i) {
      CHECK(sites.state(rule_type::basis, i) == sites.state(rule_type::basis));
    }
  });
  CHECK(sites.exchanged() == 2 * 64);
}

}  // namespace low_rank_random_test
