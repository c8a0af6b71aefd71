#include "lordo/optimizer/local_steps.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "mfsdp/optimizer/sgd.hpp"
#include "mfsdp/optimizer/shampoo.hpp"
#include "mfsdp/optimizer/soap.hpp"
#include "support/golden.hpp"
#include "support/one_matrix.hpp"
#include "support/refused.hpp"
#include "support/site_gradients.hpp"
#include "support/trial.hpp"

namespace local_steps_test {

using namespace mfsdp;
using lordo::exchange_low_rank;
using lordo::local_steps;
using lordo::outer_average;
using lordo::outer_nesterov;
using mfsdp_test::parameters_equal;
using mfsdp_test::relative_distance;
using mfsdp_test::site_gradient;
using mfsdp_test::site_gradients;
using mfsdp_test::sites_of;
using mfsdp_test::wavy_matrix;

namespace {

constexpr matrix_shape shape{6, 10};

// Every two steps, moments as the parameter.
constexpr lordo::sync_periods every_two{.parameters = 2, .first_moment = 2, .second_moment = 2};

}  // namespace

static_assert(local_steps<muon>::name == "local muon");
static_assert(!local_steps<adamw>::whole_matrix && local_steps<muon>::whole_matrix);
static_assert(local_steps<adamw>::rounds_after_update == 1);
static_assert(local_steps<muon, outer_average, exchange_low_rank>::rounds_after_update == 2);
static_assert(local_steps<adamw, outer_average, exchange_low_rank>::rounds_after_update == 1);
// A plain average keeps nothing; an outer momentum two matrices.
static_assert(local_steps<muon>{}.states(shape).size() == 1);
static_assert(local_steps<muon, outer_nesterov>{}.states(shape)[1] ==
              state_spec{"anchor", 60, true});
static_assert(local_steps<muon, outer_nesterov>{}.states(shape)[2] ==
              state_spec{"outer_momentum", 60, true});
// A rule of pieces is sent whole.
static_assert(local_steps<adamw, outer_average, exchange_low_rank>{.exchange = {.rank = 2}}
                  .states(shape)
                  .size() == 2);
static_assert(local_steps<adamw, outer_average, exchange_low_rank>{.exchange = {.rank = 2}}
                  .exchanges(shape, {32, 0, 0})[0]);
static_assert(PeriodicOptimizer<local_steps<adamw>>);
static_assert(ExchangesOn<local_steps<soap, outer_nesterov, exchange_low_rank>, eigen_backend>);

TEST_CASE("sites meet at every sync, bit for bit, and nowhere else") {
  const auto meets = [](const auto& rule) {
    auto sites = sites_of<float>(rule, shape, 3);
    for (int t = 1; t <= 9; ++t) {
      CAPTURE(t);
      sites.step(site_gradients<float>(shape, 3, t));
      CHECK(parameters_equal(sites) == (t % 3 == 0));
    }
  };
  const lordo::sync_periods three{.parameters = 3, .first_moment = 0, .second_moment = 0};
  meets(local_steps{.inner = adamw{}, .periods = three});
  meets(local_steps{.inner = adamw{}, .periods = three, .outer = outer_nesterov{}});
  meets(local_steps{.inner = muon{}, .periods = three});
  meets(local_steps{.inner = muon{}, .periods = three, .outer = outer_nesterov{}});
}

TEST_CASE("sites with equal gradients are one site") {
  const auto same = [](const auto& rule) {
    auto many = sites_of<float>(rule, shape, 4);
    auto single = sites_of<float>(rule, shape, 1);
    for (int t = 1; t <= 6; ++t) {
      const auto gradient = site_gradient<float>(shape, 0, t);
      many.step({gradient, gradient, gradient, gradient});
      single.step({gradient});
      CHECK(parameters_equal(many));
      CHECK(many.parameter(0) == single.parameter(0));
    }
  };
  same(local_steps{.inner = adamw{}, .periods = every_two});
  same(local_steps{.inner = muon{}, .periods = every_two, .outer = outer_nesterov{}});
}

TEST_CASE("a plain average on one site is the inner rule, bit for bit") {
  auto local = sites_of<float>(local_steps{.inner = muon{}, .periods = every_two}, shape, 1);
  mfsdp_test::trial<float, muon> plain(muon{}, shape, wavy_matrix<float>(shape));
  for (int t = 1; t <= 5; ++t) {
    const auto gradient = site_gradient<float>(shape, 0, t);
    local.step({gradient});
    plain.step(gradient);
    CHECK(local.parameter() == plain.parameter);
    CHECK(local.state(0) == plain.state("momentum"));
  }
}

TEST_CASE("steps of SGD averaged at once are one site on the mean gradient") {
  // Without momentum a step is linear in the gradient.
  const sgd rule{.learning_rate = 0.1, .momentum = 0, .weight_decay = 0};
  auto sites = sites_of<double>(
      local_steps{.inner = rule, .periods = {.parameters = 1, .first_moment = 0}}, shape, 3);
  mfsdp_test::one_matrix<double, sgd> one(rule, shape, wavy_matrix<double>(shape));
  for (int t = 1; t <= 4; ++t) {
    const auto gradients = site_gradients<double>(shape, 3, t);
    sites.step(gradients);
    one.update(mfsdp_test::mean_of(gradients));
    CHECK(relative_distance(sites.parameter(), one.parameter) < 1e-14);
  }
}

TEST_CASE("moments are averaged at their own periods") {
  const local_steps rule{.inner = adamw{},
                         .periods = {.parameters = 6, .first_moment = 2, .second_moment = 3}};
  auto sites = sites_of<float>(rule, shape, 2);
  for (int t = 1; t <= 6; ++t) {
    CAPTURE(t);
    const std::int64_t before = sites.exchanged();
    sites.step(site_gradients<float>(shape, 2, t));
    CHECK((sites.state(0, 0) == sites.state(0, 1)) == (t % 2 == 0));
    CHECK((sites.state(1, 0) == sites.state(1, 1)) == (t % 3 == 0));
    CHECK(sites.exchanged() - before == 60 * ((t % 6 == 0) + (t % 2 == 0) + (t % 3 == 0)));
  }
}

TEST_CASE("moments in natural coordinates are averaged, bases and what stands in them are not") {
  const auto averaged_states = [](const auto& rule) {
    std::set<std::string> names;
    const auto flags = rule.exchanges(shape, {2, 0, 0});
    CHECK(flags[0]);
    for (std::size_t i = 1; i < flags.size(); ++i) {
      if (flags[i]) names.emplace(rule.states(shape)[i - 1].name);
    }
    return names;
  };
  using names = std::set<std::string>;
  CHECK(averaged_states(local_steps{.inner = muon{}, .periods = every_two}) == names{"momentum"});
  CHECK(averaged_states(local_steps{.inner = soap{}, .periods = every_two}) ==
        names{"first_moment"});
  CHECK(averaged_states(local_steps{.inner = shampoo{}, .periods = every_two}) == names{});
  // An outer momentum is equal everywhere and is not sent; with few numbers sent none are for
  // moments unless asked for.
  CHECK(averaged_states(local_steps{
            .inner = sgd{}, .periods = every_two, .outer = outer_nesterov{}}) == names{"momentum"});
  local_steps quiet{
      .inner = adamw{}, .periods = {.parameters = 2}, .exchange = exchange_low_rank{.rank = 2}};
  CHECK(averaged_states(quiet).empty());
  const std::string text = quiet.options();
  quiet.periods.first_moment = 2;
  CHECK(averaged_states(quiet) == names{"first_moment"});
  CHECK(quiet.options() != text);
}

TEST_CASE("DiLoCo is the loop of its paper") {
  const adamw inner{.learning_rate = 0.05};
  const outer_nesterov outer{.learning_rate = 0.7, .momentum = 0.9};
  const lordo::sync_periods three{.parameters = 3, .first_moment = 0, .second_moment = 0};
  auto sites =
      sites_of<double>(local_steps{.inner = inner, .periods = three, .outer = outer}, shape, 2);
  std::vector<double> anchor = wavy_matrix<double>(shape);
  std::vector<double> momentum(anchor.size(), 0.0);
  std::vector<mfsdp_test::one_matrix<double, adamw>> workers(2, {inner, shape, anchor});
  for (int t = 1; t <= 12; ++t) {
    const auto gradients = site_gradients<double>(shape, 2, t);
    sites.step(gradients);
    for (std::size_t m = 0; m < 2; ++m) workers[m].update(gradients[m]);
    if (t % 3 == 0) {
      // Outer gradient, then torch.optim.SGD(nesterov=True) on it.
      for (std::size_t e = 0; e < anchor.size(); ++e) {
        const double g = anchor[e] - (workers[0].parameter[e] + workers[1].parameter[e]) / 2;
        momentum[e] = 0.9 * momentum[e] + g;
        anchor[e] -= 0.7 * (g + 0.9 * momentum[e]);
      }
      for (auto& worker : workers) worker.parameter = anchor;
    }
    for (std::size_t m = 0; m < 2; ++m) {
      CHECK(relative_distance(sites.parameter(m), workers[m].parameter) < 1e-12);
    }
  }
  CHECK(relative_distance(sites.state(2, 1), anchor) < 1e-12);
}

TEST_CASE("an outer rate of one without momentum is plain averaging") {
  auto plain = sites_of<double>(local_steps{.inner = adamw{}, .periods = every_two}, shape, 3);
  auto outer =
      sites_of<double>(local_steps{.inner = adamw{},
                                   .periods = every_two,
                                   .outer = outer_nesterov{.learning_rate = 1, .momentum = 0}},
                       shape, 3);
  for (int t = 1; t <= 8; ++t) {
    const auto gradients = site_gradients<double>(shape, 3, t);
    plain.step(gradients);
    outer.step(gradients);
    CHECK(relative_distance(outer.parameter(), plain.parameter()) < 1e-13);
  }
}

TEST_CASE("stagger spreads the syncs of parameters over the steps") {
  local_steps rule{.inner = adamw{}, .periods = {.parameters = 4, .stagger = 1}};
  for (std::int64_t t = 1; t <= 8; ++t) {
    int due = 0;
    for (std::size_t item = 0; item < 4; ++item) {
      due += rule.exchanges(shape, {t, item, 0})[0] ? 1 : 0;
    }
    CHECK(due == 1);
  }
  rule.periods.stagger = 0;
  CHECK(rule.exchanges(shape, {4, 0, 0}) == rule.exchanges(shape, {4, 3, 0}));
  // A parameter syncs at the steps of its own item, in all that a sync does.
  auto sites = sites_of<float>(
      local_steps{
          .inner = adamw{}, .periods = {.parameters = 4, .stagger = 1}, .outer = outer_nesterov{}},
      shape, 2, 3);
  for (int t = 1; t <= 8; ++t) {
    CAPTURE(t);
    sites.step(site_gradients<float>(shape, 2, t));
    CHECK(parameters_equal(sites) == (t % 4 == 1));
    CHECK((sites.parameter() == sites.state(2)) == (t % 4 == 1));  // the anchor
  }
}

TEST_CASE("local steps refuse options that make no sense, and show those that matter") {
  using mfsdp_test::refused;
  CHECK(refused(local_steps{.inner = muon{.momentum = 1}}, "muon: momentum is 1"));
  CHECK(refused(local_steps{.inner = adamw{}, .periods = {.parameters = 0}}, "local adamw: "));
  CHECK(refused(local_steps{.inner = adamw{}, .outer = outer_nesterov{.learning_rate = 0}},
                "local adamw: the outer learning rate 0"));
  CHECK(refused(local_steps{.inner = adamw{}, .outer = outer_nesterov{.momentum = 1}},
                "the outer momentum is 1"));
  CHECK(refused(local_steps{.inner = muon{}, .exchange = exchange_low_rank{}},
                "local muon: the rank 0 of the exchange"));
  CHECK(refused(local_steps{.inner = muon{}}, "accepted"));

  using full = local_steps<adamw, outer_nesterov, exchange_low_rank>;
  std::vector<full> rules(9);
  rules[1].inner.learning_rate = 1;
  rules[2].periods.parameters = 5;
  rules[3].periods.first_moment = 5;
  rules[4].periods.second_moment = 5;
  rules[5].periods.stagger = 5;
  rules[6].outer.learning_rate = 0.5;
  rules[7].outer.momentum = 0.5;
  rules[8].exchange.rank = 5;
  std::set<std::string> texts{"feedback"};
  for (const full& rule : rules) texts.insert(rule.options());
  rules[8].exchange.feedback = false;
  texts.insert(rules[8].options());
  CHECK(texts.size() == rules.size() + 2);
}

}  // namespace local_steps_test
