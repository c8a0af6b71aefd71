// What is known of LoRDO from theory, on a problem whose answer is known.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "lordo/optimizer/low_rank.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "support/chosen_projector.hpp"
#include "support/one_matrix.hpp"
#include "support/quadratic_sites.hpp"

namespace low_rank_properties_test {

using namespace lordo;
using namespace mfsdp_test;

namespace {

using rule_type = low_rank_adam<chosen_projector>;
constexpr int period = 4;
constexpr int steps = 160;

rule_type basic(double omega) {
  return {.rank = 2, .learning_rate = 0.05, .omega = omega, .periods = {.parameters = period}};
}

struct outcome {
  double drift = 0;     // sine of the largest angle of any basis to the first one
  double rank_gap = 0;  // largest sigma_3 / sigma_1 of a pseudo-gradient
  double least_gap = 1e300;
  double floor = 0;
  double loss = 0;
  double error = 0;  // largest norm of an error feedback
  double leak = 0;   // largest entry of B E
  std::vector<double> parameter;
};

outcome run(const rule_type& rule, const quadratic& problem = {}, int count = steps) {
  outcome result;
  auto sites = problem.make(rule);
  std::vector<double> first, anchor = problem.start;
  const auto n = static_cast<std::size_t>(problem.shape.rows);
  problem.train(sites, 1, count, [&](int step) {
    if (step == 1) {
      first = sites.state(rule_type::basis);
      result.floor = problem.floor(first);
    }
    const std::vector<double> error = sites.state(rule_type::error);
    result.error = std::max(result.error, norm(error));
    if (!error.empty() && step % period != 0) {
      const std::vector<double> basis = sites.state(rule_type::basis);
      for (std::size_t k = 0; k < basis.size() / n; ++k) {
        for (std::size_t j = 0; j < error.size() / n; ++j) {
          double sum = 0;
          for (std::size_t i = 0; i < n; ++i) {
            sum += basis[k * n + i] * error[i * (error.size() / n) + j];
          }
          result.leak = std::max(result.leak, std::abs(sum));
        }
      }
    }
    if (step % period != 0) return;
    result.drift = std::max(result.drift, sine(sites.state(rule_type::basis), first, n));
    std::vector<double> delta = sites.parameter();
    for (std::size_t i = 0; i < delta.size(); ++i) delta[i] -= anchor[i];
    anchor = sites.parameter();
    const auto values = left_singular(delta, problem.shape).values;
    result.rank_gap = std::max(result.rank_gap, values[2] / values[0]);
    result.least_gap = std::min(result.least_gap, values[2] / values[0]);
  });
  result.parameter = sites.parameter();
  result.loss = problem.loss(result.parameter);
  return result;
}

}  // namespace

// --------------------------------------------------------------------------------- stagnation

TEST_CASE("without a full-rank term no step leaves the span of the first basis") {
  for (const bool power : {false, true}) {
    CAPTURE(power);
    rule_type rule = basic(1);
    rule.projector.power = power;
    for (const quadratic& problem : {quadratic{}, started_quadratic()}) {
      const outcome end = run(rule, problem);
      CHECK(end.drift < 1e-12);
      CHECK(end.rank_gap < 1e-12);
      CHECK(end.loss > end.floor);
      CHECK(end.loss < 1.01 * end.floor);  // it does reach it
      CHECK(end.floor > 1);
    }
  }
}

TEST_CASE("error feedback cannot help then: nothing of it is ever in the span") {
  rule_type rule = basic(1);
  const outcome without = run(rule);
  rule.feedback = error_feedback::full;
  const outcome with = run(rule);
  CHECK(with.error > 10);
  CHECK(largest_difference(with.parameter, without.parameter) < 1e-8);
}

TEST_CASE("decay of the parameter pulls the basis towards the parameter, decay of the anchor not") {
  rule_type rule = basic(1);
  const outcome none = run(rule, started_quadratic());
  rule.weight_decay = 0.1;
  const outcome anchored = run(rule, started_quadratic());
  CHECK(anchored.drift < 1e-9);
  CHECK(largest_difference(anchored.parameter, none.parameter) > 0.01);
  rule.decay_from = decay_source::parameter;
  const outcome plain = run(rule, started_quadratic());
  CHECK(plain.drift > 0.5);
  CHECK(plain.rank_gap > 1e-3);
}

TEST_CASE("decay of the anchor is taken out exactly even if sites leave out updates") {
  rule_type rule = basic(1);
  rule.weight_decay = 0.1;
  const quadratic problem = started_quadratic();
  auto sites = problem.make(rule);
  problem.train(sites, 1, 1);
  const std::vector<double> first = sites.state(rule_type::basis);
  for (int step = 2; step <= 40; ++step) {
    std::vector<std::vector<double>> gradients;
    for (std::size_t i = 0; i < problem.sites; ++i) {
      const bool unusable = (static_cast<std::size_t>(step) + i) % 5 == 0;
      gradients.push_back(unusable ? std::vector<double>{}
                                   : problem.gradient(sites.parameter(i), i, step));
    }
    sites.step(gradients);
    for (std::size_t i = 1; i < problem.sites; ++i) {
      CHECK(sites.state(rule_type::basis, i) == sites.state(rule_type::basis));
    }
  }
  CHECK(sine(sites.state(rule_type::basis), first, 8) < 1e-10);
}

TEST_CASE("the full-rank term restores exploration") {
  for (const double omega : {0.9, 0.5}) {
    for (const bool power : {false, true}) {
      CAPTURE(omega);
      CAPTURE(power);
      rule_type rule = basic(omega);
      rule.projector.power = power;
      const outcome end = run(rule);
      CHECK(end.drift > 0.5);
      CHECK(end.least_gap > 1e-4);
      CHECK(end.loss < 0.1 * end.floor);
    }
  }
  // Inside the subspace it does not.
  rule_type rule = basic(0.5);
  rule.full_term = full_rank_term::projected;
  const outcome inside = run(rule);
  CHECK(inside.drift < 1e-12);
  CHECK(inside.loss > inside.floor);
}

// ----------------------------------------------------------------------------- error feedback

TEST_CASE("feedback is inert within a round and grows over rounds, in a window it does not") {
  rule_type rule = basic(0.9);
  const outcome none = run(rule);
  rule.feedback = error_feedback::full;
  const outcome full = run(rule);
  CHECK(full.leak < 1e-12);
  CHECK(full.error > 100);
  CHECK(full.loss > 10 * none.loss);
  rule.feedback = error_feedback::window;
  const outcome window = run(rule);
  CHECK(window.leak < 1e-12);
  CHECK(window.error < 0.25 * full.error);
  CHECK(window.loss < full.loss);
}

TEST_CASE("feedback that decays at once is none, that never decays is full") {
  rule_type rule = basic(0.7);
  const outcome none = run(rule, {}, 20);
  rule.feedback = error_feedback::decayed;
  rule.feedback_decay = 0;
  CHECK(largest_difference(run(rule, {}, 20).parameter, none.parameter) < 1e-13);
  rule.feedback_decay = 1;
  const outcome decayed = run(rule, {}, 20);
  rule.feedback = error_feedback::full;
  rule.feedback_decay = rule_type::usual_feedback_decay;
  CHECK(largest_difference(decayed.parameter, run(rule, {}, 20).parameter) == 0);
  CHECK(largest_difference(decayed.parameter, none.parameter) > 1e-3);
}

// -------------------------------------------------------------------------------- algebra

TEST_CASE("one site, a basis that stays and omega 1: Adam on the coordinates") {
  rule_type rule = basic(1);
  rule.periods.parameters = 1000;
  quadratic problem = started_quadratic();
  problem.sites = 1;
  auto sites = problem.make(rule);
  const mfsdp::adamw adam{
      .learning_rate = 0.05, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0};
  one_matrix<double, mfsdp::adamw> coordinates(adam, {2, 8});
  mfsdp::eigen_backend backend;
  for (int step = 1; step <= 30; ++step) {
    const std::vector<double> g = problem.gradient(sites.parameter(), 0, step);
    sites.step({g});
    const std::vector<double> basis = sites.state(rule_type::basis);
    std::vector<double> low(16), expected = problem.start;
    project<mfsdp::eigen_backend, double>(backend, 1, {basis.data(), 2, 8}, {g.data(), 8, 8}, 0,
                                          matrix_view<double>(low.data(), 2, 8));
    coordinates.update(low);
    lift<mfsdp::eigen_backend, double>(backend, 1, {basis.data(), 2, 8},
                                       {coordinates.parameter.data(), 2, 8}, 1,
                                       matrix_view<double>(expected.data(), 8, 8));
    CHECK(largest_difference(sites.parameter(), expected) < 1e-12);
  }
}

TEST_CASE("with equal data several sites are as good as one, for every period") {
  for (const int every : {1, 3, 32}) {
    for (const basis_source variant : {basis_source::global, basis_source::local}) {
      CAPTURE(every);
      rule_type rule = basic(0.6);
      rule.periods.parameters = every;
      rule.variant = variant;
      quadratic problem = started_quadratic();
      problem.same_data = true;
      auto four = problem.make(rule);
      problem.sites = 1;
      auto one = problem.make(rule);
      problem.train(one, 1, 40);
      problem.sites = 4;
      problem.train(four, 1, 40);
      CHECK(four.parameter(3) == one.parameter());  // sums of four equal numbers are exact
    }
  }
}

TEST_CASE("sites that share a basis have equal bits of it, and of the parameter after a sync") {
  rule_type rule = basic(0.6);
  rule.weight_decay = 0.1;
  rule.periods.first_moment = 3;
  rule.periods.second_moment = 7;
  const quadratic problem = started_quadratic();
  auto sites = problem.make(rule);
  problem.train(sites, 1, 40, [&](int step) {
    for (std::size_t i = 1; i < problem.sites; ++i) {
      CHECK(sites.state(rule_type::basis, i) == sites.state(rule_type::basis));
      CHECK((sites.parameter(i) == sites.parameter()) == (step % period == 0));
    }
  });
}

TEST_CASE("the sign of a basis vector does not matter") {
  rule_type rule = basic(0.6);
  rule.feedback = error_feedback::full;
  const quadratic problem = started_quadratic();
  auto plain = problem.make(rule);
  rule.projector.flipped = true;
  auto flipped = problem.make(rule);
  problem.train(plain, 1, period);
  problem.train(flipped, 1, period);
  const auto u = plain.state(rule_type::first_moment);
  const auto v = flipped.state(rule_type::first_moment);
  for (std::size_t i = 0; i < 16; ++i) {
    CHECK(u[i] == doctest::Approx(i < 8 ? -v[i] : v[i]).epsilon(1e-10));
  }
  CHECK(largest_difference(plain.state(rule_type::second_moment),
                           flipped.state(rule_type::second_moment)) < 1e-13);
  problem.train(plain, period + 1, 5);
  problem.train(flipped, period + 1, 5);
  CHECK(largest_difference(plain.parameter(), flipped.parameter()) < 1e-12);
  CHECK(largest_difference(plain.state(rule_type::error), flipped.state(rule_type::error)) < 1e-11);
}

TEST_CASE("mu is omega and the rate in disguise") {
  rule_type a = basic(0.9);
  a.learning_rate = 0.012;
  rule_type b = basic(0.8);
  b.mu = 2.25;
  b.learning_rate = 0.0135;
  CHECK(largest_difference(run(a, started_quadratic(), 60).parameter,
                           run(b, started_quadratic(), 60).parameter) < 1e-11);
}

TEST_CASE("clipped moments drift no further than they can between two syncs") {
  const double rho = 0.3;
  rule_type rule = basic(0.6);
  rule.clip = {.rule = clip_rule::element, .threshold = rho};
  const quadratic problem = started_quadratic();
  auto sites = problem.make(rule);
  const double p = 8;
  const double first_bound = 2 * std::sqrt(p) * rho * (1 - std::pow(0.9, period));
  const double second_bound = p * rho * rho * (1 - std::pow(0.99, period));
  std::vector<double> u, v;
  double used = 0;
  for (int round = 0; round < 10; ++round) {
    problem.train(sites, 1 + round * period, 1);
    u = sites.state(rule_type::first_moment);
    v = sites.state(rule_type::second_moment);
    problem.train(sites, 2 + round * period, period - 2);  // the last one changes the basis
    const double first = largest_difference(u, sites.state(rule_type::first_moment));
    CHECK(first <= first_bound);
    CHECK(largest_difference(v, sites.state(rule_type::second_moment)) <= second_bound);
    used = std::max(used, first / first_bound);
    problem.train(sites, (1 + round) * period, 1);
  }
  CHECK(used > 0.02);
}

// --------------------------------------------------------------------------- skipped updates

TEST_CASE("a round opens with its first update, if that is not its first step") {
  const quadratic problem = started_quadratic();
  const auto skipping = [&](auto& sites, int step) {
    std::vector<std::vector<double>> gradients;
    for (std::size_t i = 0; i < problem.sites; ++i) {
      gradients.push_back(problem.gradient(sites.parameter(i), i, step));
    }
    if (step == period + 1) gradients[1].clear();
    sites.step(gradients);
    return gradients;
  };
  SUBCASE("in the local form it takes a basis") {
    rule_type rule = basic(0.6);
    rule.variant = basis_source::local;
    rule.feedback = error_feedback::none;
    auto sites = problem.make(rule);
    problem.train(sites, 1, period);
    const std::vector<double> old = sites.state(rule_type::basis, 1);
    skipping(sites, period + 1);
    CHECK(sites.state(rule_type::basis, 1) == old);
    const auto gradients = skipping(sites, period + 2);
    const auto exact = left_singular(gradients[1], problem.shape);
    const std::vector<double> now = sites.state(rule_type::basis, 1);
    CHECK(sine({exact.vectors.begin(), exact.vectors.begin() + 16}, now, 8) < 1e-9);
    for (int step = period + 3; step <= 2 * period; ++step) {
      skipping(sites, step);
      CHECK(sites.state(rule_type::basis, 1) == now);
    }
    skipping(sites, 2 * period + 1);
    CHECK(sites.state(rule_type::basis, 1) != now);
  }
  SUBCASE("in a window it drops what is left of the last round") {
    rule_type rule = basic(0.9);
    rule.feedback = error_feedback::window;
    auto sites = problem.make(rule);
    problem.train(sites, 1, period);
    skipping(sites, period + 1);
    for (int step = period + 2; step <= 2 * period; ++step) {
      const std::vector<double> before = sites.state(rule_type::error, 1);
      std::vector<double> rest = skipping(sites, step)[1];
      const std::vector<double> error = sites.state(rule_type::error, 1);
      if (step == 2 * period) break;  // the basis is another one already
      // What the basis leaves out of the gradient, and of the error but in the first update.
      const std::vector<double> basis = sites.state(rule_type::basis, 1);
      for (std::size_t i = 0; i < 64 && step > period + 2; ++i) rest[i] += before[i];
      std::vector<double> low(16);
      mfsdp::eigen_backend backend;
      project<mfsdp::eigen_backend, double>(backend, 1, {basis.data(), 2, 8}, {rest.data(), 8, 8},
                                            0, matrix_view<double>(low.data(), 2, 8));
      lift<mfsdp::eigen_backend, double>(backend, -1, {basis.data(), 2, 8}, {low.data(), 2, 8}, 1,
                                         matrix_view<double>(rest.data(), 8, 8));
      CAPTURE(step);
      CHECK(norm(before) > 0.1);
      CHECK(largest_difference(error, rest) < 1e-12);
    }
  }
}

// -------------------------------------------------------------------------------- options

TEST_CASE("the residual term leaves the subspace to the momentum") {
  // In the basis it moves as with omega 1 at a rate scaled by omega, outside as the gradient.
  rule_type residual = basic(0.5);
  residual.full_term = full_rank_term::residual;
  rule_type low = basic(1);
  low.learning_rate = 0.5 * residual.learning_rate;
  const quadratic problem = started_quadratic();
  auto a = problem.make(residual);
  auto b = problem.make(low);
  problem.train(a, 1, 1);
  problem.train(b, 1, 1);
  const std::vector<double> basis = a.state(rule_type::basis);
  const auto moved = [&](const auto& sites) {
    std::vector<double> x = sites.parameter(), y(16);
    for (std::size_t i = 0; i < 64; ++i) x[i] -= problem.start[i];
    mfsdp::eigen_backend backend;
    project<mfsdp::eigen_backend, double>(backend, 1, {basis.data(), 2, 8}, {x.data(), 8, 8}, 0,
                                          matrix_view<double>(y.data(), 2, 8));
    return y;
  };
  CHECK(largest_difference(moved(a), moved(b)) < 1e-14);
  CHECK(largest_difference(a.parameter(), b.parameter()) > 0.01);
  residual.periods.parameters = period;
  CHECK(run(residual).drift > 0.5);
}

TEST_CASE("a first gradient that nobody can use leaves the random basis") {
  const rule_type rule = basic(0.6);
  const quadratic problem = started_quadratic();
  auto sites = problem.make(rule);
  const std::vector<double> drawn = sites.state(rule_type::basis);
  sites.step(std::vector<std::vector<double>>(problem.sites));
  CHECK(sites.state(rule_type::basis) == drawn);
  CHECK(sites.parameter() == problem.start);
  problem.train(sites, 2, 40);
  CHECK(problem.loss(sites.parameter()) < 0.9 * problem.loss(problem.start));
  // One that some can use is theirs.
  auto others = problem.make(rule);
  std::vector<std::vector<double>> gradients(problem.sites);
  gradients[2] = problem.gradient(problem.start, 2, 1);
  others.step(gradients);
  const auto exact = left_singular(gradients[2], problem.shape);
  CHECK(sine(others.state(rule_type::basis), {exact.vectors.begin(), exact.vectors.begin() + 16},
             8) < 1e-9);
  CHECK(others.state(rule_type::basis, 3) == others.state(rule_type::basis));
}

TEST_CASE("figures say how the basis moves and what the terms weigh") {
  rule_type rule = basic(1);
  quadratic problem = started_quadratic();
  problem.sites = 1;
  auto still = problem.make(rule);
  problem.train(still, 1, 5 * period);
  auto figures = still.state(rule_type::figures);
  CHECK(figures[figure::movement] < 1e-12);
  CHECK(figures[figure::still] == 5);
  CHECK(figures[figure::ratio] == 0);

  rule.omega = 0.5;
  auto sites = problem.make(rule);
  problem.train(sites, 1, period - 1);
  const std::vector<double> before = sites.parameter(), basis = sites.state(rule_type::basis);
  const std::vector<double> g = problem.gradient(before, 0, period);
  sites.step({g});
  figures = sites.state(rule_type::figures);
  mfsdp::eigen_backend backend;
  std::vector<double> low(16), r(4);
  project<mfsdp::eigen_backend, double>(backend, 1, {basis.data(), 2, 8}, {g.data(), 8, 8}, 0,
                                        matrix_view<double>(low.data(), 2, 8));
  CHECK(figures[figure::captured] ==
        doctest::Approx(std::pow(norm(low) / norm(g), 2)).epsilon(1e-12));
  const std::vector<double> now = sites.state(rule_type::basis);
  rotation<mfsdp::eigen_backend, double>(backend, {now.data(), 2, 8}, {basis.data(), 2, 8},
                                         matrix_view<double>(r.data(), 2, 2));
  CHECK(figures[figure::movement] == doctest::Approx(1 - norm(r) * norm(r) / 2).epsilon(1e-9));
  CHECK(figures[figure::movement] > 0.01);
  CHECK(figures[figure::still] == 0);

  // A residual term is orthogonal to the low-rank one, so that the step shows both.
  rule.full_term = full_rank_term::residual;
  auto apart = problem.make(rule);
  problem.train(apart, 1, period - 1);
  const std::vector<double> old = apart.state(rule_type::basis);
  std::vector<double> step = apart.parameter();
  problem.train(apart, period, 1);
  for (std::size_t i = 0; i < step.size(); ++i) step[i] -= apart.parameter()[i];
  project<mfsdp::eigen_backend, double>(backend, 1, {old.data(), 2, 8}, {step.data(), 8, 8}, 0,
                                        matrix_view<double>(low.data(), 2, 8));
  const double outside = std::sqrt(norm(step) * norm(step) - norm(low) * norm(low));
  CHECK(apart.state(rule_type::figures)[figure::ratio] ==
        doctest::Approx(outside / norm(low)).epsilon(1e-9));
}

TEST_CASE("at full size the rule is Adam") {
  quadratic problem;
  problem.sites = 1;
  problem.start = gaussian(64, 8, 0.5);
  rule_type rule = basic(0.5);
  rule.rank = 8;
  rule.weight_decay = 0.1;
  auto sites = problem.make(rule);
  one_matrix<double, mfsdp::adamw> adam(
      {.learning_rate = 0.05, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.1},
      problem.shape, problem.start);
  for (int step = 1; step <= 10; ++step) {
    adam.update(problem.gradient(sites.parameter(), 0, step));
    problem.train(sites, step, 1);
    CHECK(largest_difference(sites.parameter(), adam.parameter) < 1e-13);
  }
}

TEST_CASE("a clipped norm is the threshold") {
  rule_type rule = basic(1);
  rule.clip = {.rule = clip_rule::norm, .threshold = 0.5};
  rule.moments = {.beta1 = 0, .beta2 = 0, .bias_correction = false};
  quadratic problem = started_quadratic();
  problem.sites = 1;
  auto sites = problem.make(rule);
  std::vector<double> g = problem.gradient(problem.start, 0, 1);
  sites.step({g});
  for (double& e : g) e *= 0.5 / norm(problem.gradient(problem.start, 0, 1));
  const std::vector<double> basis = sites.state(rule_type::basis);
  std::vector<double> low(16);
  mfsdp::eigen_backend backend;
  project<mfsdp::eigen_backend, double>(backend, 1, {basis.data(), 2, 8}, {g.data(), 8, 8}, 0,
                                        matrix_view<double>(low.data(), 2, 8));
  CHECK(largest_difference(low, sites.state(rule_type::first_moment)) < 1e-14);
}

TEST_CASE("a site sends r (q + q) + p q numbers a period, and p q at the first step") {
  const rule_type rule = basic(0.5);
  const quadratic problem;
  auto sites = problem.make(rule);
  problem.train(sites, 1, 1);
  CHECK(sites.exchanged() == 64);
  problem.train(sites, 2, 3 * period - 1);
  CHECK(sites.exchanged() == 64 + 3 * (64 + 2 * 16));
}

}  // namespace low_rank_properties_test
