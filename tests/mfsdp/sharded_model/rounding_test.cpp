// What rounding does to parameters and states of 16 bits: small updates survive, without bias, and
// equally on all ranks.
#include <doctest/doctest.h>

#include <array>

#include "support/toy_training.hpp"

namespace rounding_test {

using namespace mfsdp;

namespace {

constexpr float start = 1.0f;
constexpr float tiny_rate =
    1e-4f;  // of AdamW, whose step is the rate: far below half a bf16 spacing
constexpr index_t long_vector = 150'000;

model_spec vectors(std::vector<index_t> sizes) {
  model_spec spec;
  auto unit = spec.unit("unit");
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    unit.vector("vector." + std::to_string(i), sizes[i]);
  }
  return spec;
}

// Trains with a gradient of one everywhere; returns the parameters after each step, by rank 0.
template <class Placement, class Precision>
std::vector<std::map<std::string, std::vector<float>>> descend(const model_spec& spec,
                                                               Placement placement, int ranks,
                                                               int steps, Precision types,
                                                               std::uint64_t seed = 0) {
  std::vector<std::map<std::string, std::vector<float>>> trace;
  thread_world{ranks}.run([&](auto comm) {
    sharded_model model{spec,      comm,
                        placement, adamw{.learning_rate = tiny_rate, .weight_decay = 0},
                        types,     model_options{.rounding_seed = seed}};
    model.initialize([](const tensor_spec&, std::span<float> values, index_t) {
      std::ranges::fill(values, start);
    });
    for (int step = 0; step < steps; ++step) {
      const auto gradients = model.gradients(0);
      for (std::size_t i = 0; i < spec.tensors().size(); ++i) {
        for (auto& g : gradients[i].flat()) g = typename Precision::gradient(1.0f);
      }
      gradients.reduce();
      model.step();
      auto now = toy::read_parameters(model);
      if (comm.rank() == 0) trace.push_back(std::move(now));
    }
  });
  return trace;
}

double mean(const std::vector<float>& values) {
  double sum = 0;
  for (const float v : values) sum += static_cast<double>(v);
  return sum / static_cast<double>(values.size());
}

using masters = precision<bfloat16>;
using pure = precision<bfloat16, bfloat16, float, bfloat16>;
using narrow = precision<bfloat16, bfloat16, float, bfloat16, bfloat16>;

// Counts in two states, one of which is exact, and shows one of them as the parameter.
struct counter {
  bool show_exact = true;

  static constexpr std::string_view name = "counter";
  static constexpr bool whole_matrix = false;
  static constexpr float increment = 1e-3f;

  index_t flops(matrix_shape shape) const { return shape.elements(); }
  std::array<state_spec, 2> states(matrix_shape shape) const {
    return {{{"exact", shape.elements(), true}, {"other", shape.elements()}}};
  }
  index_t workspace_size(matrix_shape) const { return 0; }
  template <class B, class T>
  void update(B& backend, const std::array<std::span<T>, 2>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>>, const update_context<T>&) const {
    backend.transform(
        [](auto& a, auto& b) {
          a = a + increment;
          b = b + increment;
        },
        state[0], state[1]);
    backend.copy(std::span<const T>(state[show_exact ? 0 : 1]), parameter.flat());
  }
};

template <class Precision>
std::vector<float> count(counter rule, int steps) {
  std::vector<float> result;
  thread_world{2}.run([&](auto comm) {
    sharded_model model{vectors({5000}), comm, owner_placement{}, rule, Precision{}};
    model.initialize([](const tensor_spec&, std::span<float> values, index_t) {
      std::ranges::fill(values, 0.0f);
    });
    for (int step = 0; step < steps; ++step) {
      const auto gradients = model.gradients(0);
      gradients.zero();
      gradients.reduce();
      model.step();
    }
    const auto all = toy::read_parameters(model);
    if (comm.rank() == 0) result = all.at("unit.vector.0");
  });
  return result;
}

}  // namespace

TEST_CASE("updates below the spacing of bf16 survive with masters and with stochastic rounding") {
  constexpr int steps = 100;
  constexpr double expected = static_cast<double>(start) - steps * static_cast<double>(tiny_rate);
  // To nearest, each single update would be lost.
  CHECK(bfloat16(start - tiny_rate) == bfloat16(start));

  const model_spec spec = vectors({20'000});
  const auto by_master = descend(spec, owner_placement{}, 2, steps, masters{})[steps - 1];
  for (const float w : by_master.at("unit.vector.0")) {
    CHECK(std::abs(static_cast<double>(w) - expected) <= 0x1p-9);  // half a spacing below one
  }
  for (const auto& after : {descend(spec, owner_placement{}, 2, steps, pure{})[steps - 1],
                            descend(spec, owner_placement{}, 2, steps, narrow{})[steps - 1]}) {
    CHECK(mean(after.at("unit.vector.0")) == doctest::Approx(expected).epsilon(1e-3));
  }
}

TEST_CASE("tensors, steps and seeds are rounded independently") {
  // After the first step each element is one, or one spacing below with a chance of about 1/40.
  const model_spec spec = vectors({long_vector, long_vector});
  const auto trace = descend(spec, owner_placement{}, 2, 2, pure{});
  const auto other = descend(spec, owner_placement{}, 2, 1, pure{}, 1);
  const auto moved = [](const std::vector<float>& from, const std::vector<float>& to) {
    std::vector<bool> is_moved;
    for (std::size_t i = 0; i < to.size(); ++i) is_moved.push_back(to[i] != from[i]);
    return is_moved;
  };
  const std::vector<float> ones(static_cast<std::size_t>(long_vector), start);
  const auto first = moved(ones, trace[0].at("unit.vector.0"));
  const double chance = static_cast<double>(std::ranges::count(first, true)) / long_vector;
  CHECK(chance == doctest::Approx(static_cast<double>(tiny_rate) / 0x1p-8).epsilon(0.1));
  for (const auto& second : {moved(ones, trace[0].at("unit.vector.1")),
                             moved(trace[0].at("unit.vector.0"), trace[1].at("unit.vector.0")),
                             moved(ones, other[0].at("unit.vector.0"))}) {
    std::int64_t both = 0;
    for (std::size_t i = 0; i < first.size(); ++i) both += first[i] && second[i];
    const double share = static_cast<double>(both) / long_vector;
    CHECK(std::abs(share - chance * chance) <
          6 * chance / std::sqrt(static_cast<double>(long_vector)));
  }
}

TEST_CASE("tensors that are converted in parts give the same bits however they are cut") {
  const model_spec spec = vectors({long_vector, 70'001});
  for (const int ranks : {2, 3}) {
    const auto cut = descend(spec, owner_placement{}, ranks, 3, narrow{});
    const auto copies = descend(spec, replicated_placement{}, ranks, 3, narrow{});
    CHECK(cut == copies);
    CHECK(mean(cut[2].at("unit.vector.0")) < static_cast<double>(start));
  }
}

TEST_CASE("rows with gathered matrices round like a plain loop") {
  for (const int ranks : {1, 3, 4}) {
    CAPTURE(ranks);
    const toy::settings how{.ranks = ranks, .max_norm = 0};
    const auto rules = toy::optimizers();
    using half = precision<bfloat16, bfloat16, bfloat16, bfloat16, bfloat16>;
    CHECK(toy::run_sharded(
              toy::odd_spec(), row_placement{}, mixed{gathered{rules.matrix}, rules.elementwise},
              how, [](auto&) {}, half{}) == toy::run_plain<half>(toy::odd_spec(), rules, how));
  }
}

TEST_CASE("exact states keep float, others are rounded without bias") {
  using narrow_states = precision<float, float, float, float, bfloat16>;
  constexpr int steps = 300;
  float sum = 0;
  for (int step = 0; step < steps; ++step) sum += counter::increment;
  for (const float value : count<narrow_states>({.show_exact = true}, steps)) CHECK(value == sum);
  const auto rounded = count<narrow_states>({.show_exact = false}, steps);
  CHECK(std::ranges::count(rounded, rounded[0]) < std::ssize(rounded));
  CHECK(mean(rounded) == doctest::Approx(static_cast<double>(sum)).epsilon(5e-3));
}

TEST_CASE("ranks that differ in types or seed are told so") {
  const auto start_with = [](auto comm, auto types, std::uint64_t seed) {
    sharded_model model{vectors({10}), comm,  owner_placement{},
                        adamw{},       types, model_options{.rounding_seed = seed}};
  };
  CHECK_THROWS_AS(thread_world{2}.run([&](auto comm) {
    if (comm.rank() == 0) {
      start_with(comm, precision<bfloat16>{}, 0);
    } else {
      start_with(comm, precision<float16>{}, 0);
    }
  }),
                  plan_error);
  CHECK_THROWS_AS(thread_world{2}.run(
                      [&](auto comm) { start_with(comm, masters{}, comm.rank() == 0 ? 0 : 1); }),
                  plan_error);
}

}  // namespace rounding_test
