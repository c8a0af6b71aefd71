// Steps in which a site, or none of them, has a gradient that can be used.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "support/local_momentum.hpp"
#include "support/mean_gradient.hpp"
#include "support/site_training.hpp"

namespace site_skips_test {

using namespace mfsdp;
using mfsdp_test::local_momentum, mfsdp_test::mean_gradient;

namespace {

// Averages parameters before the update, in every second step, and follows its own gradient.
template <bool Whole>
struct early_average {
  static constexpr std::string_view name = "early_average";
  static constexpr bool whole_matrix = Whole;
  static constexpr int rounds_before_update = 1;
  static constexpr int rounds_after_update = 0;

  [[nodiscard]] index_t flops(matrix_shape shape) const { return shape.elements(); }
  [[nodiscard]] std::array<state_spec, 1> states(matrix_shape shape) const {
    return {{{"met", shape.elements(), true}}};
  }
  [[nodiscard]] index_t workspace_size(matrix_shape) const { return 0; }
  [[nodiscard]] std::array<bool, 2> exchanges(matrix_shape, exchange_round now) const {
    return {now.step % 2 == 0, false};
  }
  template <Backend B, class T>
  void update(B& backend, const std::array<std::span<T>, 1>&, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient, const update_context<T>&) const {
    backend.transform([](auto& w, const auto& g) { w = w - T(0.05) * g; }, parameter.flat(),
                      gradient.flat());
  }
  template <Backend B, class T>
  void contribute(B&, const std::array<std::span<T>, 1>&, matrix_view<T>,
                  std::type_identity_t<matrix_view<const T>>, const update_context<T>&, int) const {
  }
  template <Backend B, class T>
  void adopt(B& backend, const std::array<std::span<T>, 1>& state, matrix_view<T>,
             const update_context<T>&, int) const {
    backend.transform([](auto& met) { met = met + T(1); }, state[0]);
  }
};

// Gradients are of no use in the second step: on site 1, or on all.
double one_fails(int site, int step) {
  return site == 1 && step == 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
}
double all_fail(int, int step) {
  return step == 1 ? std::numeric_limits<double>::infinity() : 1.0;
}

// Sites of these numbers of ranks, a single one too.
const std::vector<std::vector<int>> worlds{{1}, {2}, {1, 1}, {2, 3}};
toy::site_settings settings_of(const std::vector<int>& ranks, double (*scale)(int, int)) {
  toy::site_settings how{.ranks = ranks, .parts = ranks, .scale = scale};
  std::ranges::replace(how.parts, 1, 3);
  return how;
}

// Calls check(rules).
template <class F>
void for_all_rules(F check) {
  check(mixed{mean_gradient<true>{}, local_momentum<false>{}});
  check(mixed{mean_gradient<true>{.meeting = 1}, mean_gradient<false>{.meeting = 1}});
  check(mixed{early_average<true>{}, early_average<false>{}});
  check(mixed{local_momentum<true>{}, local_momentum<false>{}});
}

bool is_finite(const toy::site_outcome& ends) {
  return std::ranges::all_of(ends, [](const auto& site) {
    return std::ranges::all_of(site, [](const auto& tensor) {
      return std::ranges::all_of(tensor.second, [](float x) { return std::isfinite(x); });
    });
  });
}

}  // namespace

TEST_CASE("where one site, or none, has a usable gradient sites equal a plain loop") {
  for_all_rules([](const auto& rules) {
    for (const auto& ranks : worlds) {
      for (const auto scale : {one_fails, all_fail}) {
        CAPTURE(ranks.size());
        CAPTURE(ranks.front());
        CAPTURE((scale == all_fail));
        const auto how = settings_of(ranks, scale);
        const auto ends = toy::run_sites(toy::odd_spec(), owner_placement{}, rules, how);
        CHECK(is_finite(ends));
        CHECK(ends == toy::run_plain_sites(toy::odd_spec(), rules, how));
      }
    }
  });
}

TEST_CASE("a matrix of which no site has a usable gradient is as before, states included") {
  for (const std::vector<int>& ranks : {std::vector{1}, {1, 2}}) {
    const auto how = settings_of(ranks, all_fail);
    int all = 0;
    for (const int r : ranks) all += r;
    thread_world{all}.run([&](auto comm) {
      model_spec spec;
      spec.unit("unit").matrix("one", 6, 5).matrix("two", 6, 5).elementwise("long", {4000});
      sharded_model model{spec, make_sites(comm, ranks), owner_placement{},
                          mixed{mean_gradient<true>{}, early_average<false>{}}};
      model.initialize(toy::initialize);
      const auto states_of_matrices = [&] {
        std::vector<float> states;
        model.persistence().for_each_held([&](const held_part& part, auto values) {
          if (!model.persistence().arrays()[part.array].is_state()) return;
          if (model.plan().items[part.item].divisible) return;
          states.insert(states.end(), values.begin(), values.end());
        });
        return states;
      };
      CHECK(toy::step_site(model, how, 0).skipped.empty());
      const auto states = states_of_matrices();
      const auto parameters = toy::read_parameters(model);
      const step_result result = toy::step_site(model, how, 1);
      CHECK(states_of_matrices() == states);
      CHECK(toy::read_parameters(model) == parameters);
      CHECK(result.from_others.empty());
      std::size_t skipped = model.ranks() == 1 ? 3 : 2;  // both parts of the long one, a matrix
      CHECK(result.skipped.size() == skipped);
    });
  }
}

TEST_CASE(
    "a site that updates from the gradients of others says so, and does not call it skipped") {
  for (const bool clips : {false, true}) {
    auto how = settings_of({1, 1}, one_fails);
    if (clips) how.max_norm = std::numeric_limits<double>::infinity();
    thread_world{2}.run([&](auto comm) {
      model_spec spec;
      spec.unit("unit").matrix("mean", 6, 5).vector("own", 7);
      sharded_model model{spec, make_sites(comm, how.ranks), owner_placement{},
                          mixed{mean_gradient<true>{}, local_momentum<false>{}}};
      model.initialize(toy::initialize);
      toy::step_site(model, how, 0);
      const auto before = toy::read_parameters(model);
      const step_result result = toy::step_site(model, how, 1);
      using names = std::vector<std::string_view>;
      const bool fails = model.site() == 1;
      CHECK(result.from_others == (fails ? names{"unit.mean"} : names{}));
      CHECK(result.skipped == (fails ? names{"unit.own"} : names{}));
      CHECK(toy::read_parameters(model).at("unit.mean") != before.at("unit.mean"));
    });
  }
}

TEST_CASE("a step that a site gives up is one without a usable gradient") {
  for_all_rules([](const auto& rules) {
    for (const auto& ranks : {std::vector{1, 1}, {2, 3}}) {
      for (const bool all : {false, true}) {
        CAPTURE(ranks.front());
        CAPTURE(all);
        auto how = settings_of(ranks, all ? all_fail : one_fails);
        const auto expected = toy::run_plain_sites(toy::odd_spec(), rules, how);
        how.scale = [](int, int) { return 1.0; };
        toy::site_outcome ends(2);
        thread_world{ranks[0] + ranks[1]}.run([&](auto comm) {
          sharded_model model{toy::odd_spec(), make_sites(comm, ranks), owner_placement{}, rules};
          model.initialize(toy::initialize);
          for (int step = 0; step < how.steps; ++step) {
            if (step == 1 && (all || model.site() == 1)) {
              const auto gradients = model.gradients(1);
              gradients.zero();
              const step_result result = model.skip_step(toy::rate_scale(step));
              CHECK(result.step == 2);
              CHECK(!(result.skipped.empty() && result.from_others.empty()));
              CHECK(std::ranges::find(result.skipped, "block.1.down") == result.skipped.end());
            } else {
              toy::step_site(model, how, step);
            }
          }
          auto parameters = toy::read_parameters(model);
          if (model.rank() == 0) ends[static_cast<std::size_t>(model.site())] = parameters;
        });
        CHECK(ends == expected);
      }
    }
  });
}

// One that does not tell its options, so that only the meetings show that they differ.
template <bool Whole>
struct silent_momentum : local_momentum<Whole> {
  [[nodiscard]] std::string options() const { return {}; }
};

TEST_CASE("sites that meet in different steps are told so") {
  std::string what;
  try {
    thread_world{2}.run([](auto comm) {
      const auto axes = make_sites(comm, {1, 1});
      const int period = 2 + axes.site.rank();
      sharded_model model{toy::odd_spec(), axes, owner_placement{},
                          mixed{silent_momentum<true>{{.period = period}},
                                silent_momentum<false>{{.period = period}}}};
      model.initialize(toy::initialize);
      for (int step = 0; step < 3; ++step) {
        toy::reduce_zeros(model);
        model.step();
      }
    });
  } catch (const error& e) {
    what = e.what();
  }
  INFO(what);
  CHECK(what.find("'mean over sites, step 2'") != std::string::npos);
  CHECK(what.find("'mean over sites, step 3'") != std::string::npos);
}

}  // namespace site_skips_test
