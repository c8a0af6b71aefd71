// Sites that train apart and meet now and then: the bits of a plain loop, whatever the number of
// ranks of each site, and what moves between them.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>
#include <string>

#include "support/local_momentum.hpp"
#include "support/site_training.hpp"

using namespace mfsdp;
using mfsdp_test::local_momentum;

namespace {

// Steps along the mean of the sites' gradients, in every step, then meets in two rounds: the first
// halves the distance from a second state to the parameter, the second averages it.
struct mean_gradient {
  double learning_rate = 0.05;

  static constexpr std::string_view name = "mean_gradient";
  static constexpr bool whole_matrix = true;
  static constexpr bool updates_from_mean = true;
  static constexpr int rounds_before_update = 1;
  static constexpr int rounds_after_update = 2;

  [[nodiscard]] index_t flops(matrix_shape shape) const { return 4 * shape.elements(); }
  [[nodiscard]] std::array<state_spec, 2> states(matrix_shape shape) const {
    return {{{"gradient", shape.elements(), true}, {"slow", shape.elements(), true}}};
  }
  [[nodiscard]] index_t workspace_size(matrix_shape shape) const { return shape.elements(); }
  [[nodiscard]] std::array<bool, 3> exchanges(matrix_shape, exchange_round now) const {
    return {false, now.round == 0, now.round > 0 && now.step % 3 == 0};
  }
  template <Backend B, class T>
  void start(B& backend, const std::array<std::span<T>, 2>& state, matrix_view<T> parameter,
             const update_context<T>&) const {
    backend.copy(parameter.flat(), state[1]);
  }
  template <Backend B, class T>
  void update(B& backend, const std::array<std::span<T>, 2>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>>, const update_context<T>& context) const {
    const T rate = static_cast<T>(learning_rate * context.learning_rate_scale);
    backend.transform([rate](auto& w, const auto& g) { w = w - rate * g; }, parameter.flat(),
                      std::span<const T>(state[0]));
  }
  template <Backend B, class T>
  void contribute(B& backend, const std::array<std::span<T>, 2>& state, matrix_view<T> parameter,
                  std::type_identity_t<matrix_view<const T>> gradient, const update_context<T>&,
                  int round) const {
    if (round == 0) backend.copy(gradient.flat(), state[0]);
    if (round == 1) {
      backend.transform([](auto& s, const auto& w) { s = T(0.5) * (s + w); }, state[1],
                        std::span<const T>(parameter.flat()));
    }
  }
  template <Backend B, class T>
  void adopt(B& backend, const std::array<std::span<T>, 2>& state, matrix_view<T> parameter,
             const update_context<T>&, int round) const {
    if (round == 2) backend.copy(std::span<const T>(state[1]), parameter.flat());
  }
};

static_assert(PeriodicOptimizer<local_momentum<true>> && PeriodicOptimizer<mean_gradient>);
static_assert(!PeriodicOptimizer<adamw>);

const mixed local_rules{local_momentum<true>{}, local_momentum<false>{}};
const mixed mean_rules{mean_gradient{}, local_momentum<false>{.period = 1}};

// Sites of one, of equal and of unequal numbers of ranks.
const std::vector<std::vector<int>> worlds{{1}, {1, 1}, {2, 2}, {3, 2}, {1, 3, 2}, {5, 1}};

// A single rank does the work of three.
toy::site_settings settings_of(const std::vector<int>& ranks) {
  toy::site_settings how{.ranks = ranks, .parts = ranks};
  std::ranges::replace(how.parts, 1, 3);
  return how;
}

}  // namespace

TEST_CASE("sites of any number of ranks equal a plain loop over sites bit for bit") {
  const auto check = [](const auto& rules) {
    for (const auto& ranks : worlds) {
      CAPTURE(ranks.size());
      CAPTURE(ranks.front());
      const auto how = settings_of(ranks);
      const auto expected = toy::run_plain_sites(toy::odd_spec(), rules, how);
      CHECK(toy::run_sites(toy::odd_spec(), owner_placement{}, rules, how) == expected);
      auto single = how;
      std::ranges::fill(single.ranks, 1);
      CHECK(toy::run_sites(toy::odd_spec(), owner_placement{}, rules, single) == expected);
      if (std::ranges::count(ranks, ranks.front()) == std::ssize(ranks)) {
        CHECK(toy::run_sites(toy::odd_spec(), replicated_placement{}, rules, how) == expected);
      }
    }
  };
  check(local_rules);
  check(mean_rules);
}

TEST_CASE("sites differ between two meetings and are equal after one") {
  toy::site_settings how = settings_of({2, 3});
  how.steps = 3;
  auto ends = toy::run_sites(toy::odd_spec(), owner_placement{}, local_rules, how);
  CHECK(ends[0] != ends[1]);
  how.steps = 4;
  ends = toy::run_sites(toy::odd_spec(), owner_placement{}, local_rules, how);
  CHECK(ends[0] == ends[1]);
}

TEST_CASE("what sites exchange is counted apart, and is no more than they must") {
  for (const auto& ranks : worlds) {
    CAPTURE(ranks.size());
    CAPTURE(ranks.front());
    std::atomic<std::int64_t> sent = 0;
    std::atomic<std::int64_t> received = 0;
    const toy::site_settings how = settings_of(ranks);
    toy::run_sites(toy::odd_spec(), owner_placement{}, local_rules, how, [&](auto& model) {
      CHECK(model.moved(phase::step) == traffic{});
      CHECK(model.sites() == std::ssize(ranks));
      sent += model.moved(phase::sync).sent;
      received += model.moved(phase::sync).received;
      CHECK((model.memory_in_use()[memory_kind::exchange_buffers] > 0) == (ranks.size() > 1));
    });
    index_t trainable = 0;
    const model_spec spec = toy::odd_spec();
    for (const tensor_spec& t : spec.tensors()) {
      trainable += t.options.frozen ? 0 : t.elements();
    }
    // Steps 2 and 4 exchange parameters, step 4 momentum as well; every site with each other one.
    const auto pairs = static_cast<index_t>(ranks.size() * (ranks.size() - 1));
    const index_t payload = 4 * 3 * trainable * pairs;
    CHECK(sent == received);
    CHECK(sent >= payload);
    CHECK(sent <= payload + payload / 50);
  }
}

TEST_CASE("a site without a usable gradient takes the mean of the others") {
  toy::site_settings how = settings_of({2, 2});
  how.scale = [](int site, int step) {
    return site == 1 && step == 1 ? std::numeric_limits<double>::quiet_NaN() : 1.0;
  };
  const auto expected = toy::run_plain_sites(toy::odd_spec(), mean_rules, how);
  const auto ends = toy::run_sites(toy::odd_spec(), owner_placement{}, mean_rules, how);
  for (const auto& [name, values] : expected[0]) {
    if (values.empty() || name.find("norm") != std::string::npos || name.find("embedding") == 0 ||
        name.find("bias") != std::string::npos) {
      continue;  // elementwise tensors skip by blocks
    }
    CAPTURE(name);
    CHECK(ends[0].at(name) == values);
    CHECK(ends[1].at(name) == values);
    CHECK(std::ranges::all_of(values, [](float x) { return std::isfinite(x); }));
  }
}

TEST_CASE("sites that do not fit together are refused") {
  const auto message = [](const std::vector<int>& ranks, auto build) {
    int all = 0;
    for (const int r : ranks) all += r;
    std::string what;
    try {
      thread_world{all}.run([&](auto comm) { build(make_sites(comm, ranks)); });
    } catch (const error& e) {
      what = e.what();
    }
    return what;
  };
  CHECK(message({1, 1}, [](auto mesh) {
          model_spec spec;
          spec.unit("unit").matrix("weight", 4 + mesh.site.rank(), 4);
          sharded_model model{spec, mesh, owner_placement{}, local_momentum<true>{}};
        }).find("trains something else") != std::string::npos);
  CHECK(message({2, 1}, [](auto mesh) {
          model_spec spec;
          spec.unit("unit").matrix("weight", 4, 4);
          sharded_model model{spec, mesh, replicated_placement{}, local_momentum<true>{}};
        }).find("equally many ranks") != std::string::npos);
  CHECK(message({1, 1}, [](auto mesh) {
          model_spec spec;
          spec.unit("unit").matrix("weight", 4, 4);
          sharded_model model{spec, mesh, owner_placement{}, local_momentum<true>{}};
          model.initialize([&](const tensor_spec&, std::span<float> values, index_t) {
            std::ranges::fill(values, 1.0f + static_cast<float>(model.site()));
          });
          toy::reduce_zeros(model);
          model.step();
        }).find("'unit.weight' starts with other values") != std::string::npos);
  // A site axis that joins one rank of each site.
  std::string what;
  try {
    thread_world{4}.run([&](auto comm) {
      model_spec spec;
      spec.unit("unit").matrix("weight", 4, 4);
      const mesh axes{comm.split(comm.rank() / 2), self{}, comm.split(comm.rank() % 2)};
      sharded_model model{spec, axes, owner_placement{}, local_momentum<true>{}};
    });
  } catch (const error& e) {
    what = e.what();
  }
  CHECK(what.find("see make_sites") != std::string::npos);
  CHECK(message({2, 1}, [](auto mesh) {
          (void)make_sites(mesh.site, {1, 1});
        }).find("2 ranks together, the world has 3") != std::string::npos);
}
