// Gradients that an optimizer cannot use; what a step reports; threads that share out updates.
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "mfsdp/mfsdp.hpp"

namespace unusable_test {

using namespace mfsdp;

namespace {

constexpr float infinite = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

// Four tensors whose gradients do not depend on any parameter, so that each has a life of its own.
model_spec four_tensors() {
  model_spec spec;
  spec.unit("u")
      .matrix("fused", 12, 8, {.row_groups = 2})
      .matrix("matrix", 9, 6)
      .elementwise("long", {3000})
      .vector("short", 5);
  return spec;
}

using spoil = std::function<void(std::string_view tensor, int step, std::span<float> gradient)>;
using parameters = std::map<std::string, std::vector<float>>;

struct outcome {
  parameters values;
  std::vector<std::vector<std::string>> skipped;  // names, by step
  std::vector<std::string> observed;              // by rank 0
  std::vector<double> norms;
  double root_mean_square = 0;  // of rank 0's largest update in the last step
};

struct how {
  int first = 1;  // steps with the gradients of steps first, first + 1, ..., last
  int last = 3;
  bool clip = false;
  int ranks = 2;
  int threads = 1;
  spoil spoiled = [](std::string_view, int, std::span<float>) {};
};

template <class Placement, class Rules>
outcome train(Placement placement, Rules rules, const how& run) {
  outcome result;
  std::mutex mutex;
  thread_world{run.ranks}.run([&](auto comm) {
    const bool speaks = comm.rank() == 0;
    const auto observe = [&](model_event event, std::string_view name) {
      if (speaks && event == model_event::skip) result.observed.emplace_back(name);
    };
    sharded_model model{
        four_tensors(), comm, placement, rules,
        model_options{.update_threads = run.threads, .measure_updates = true, .observer = observe}};
    model.initialize([](const tensor_spec&, std::span<float> values, index_t first) {
      for (float& value : values) value = std::cos(0.3f * static_cast<float>(first++));
    });
    for (int step = run.first; step <= run.last; ++step) {
      const auto gradients = model.gradients(0);
      for (const char* name : {"fused", "matrix", "long", "short"}) {
        const std::span<float> g = gradients[name].flat();
        for (std::size_t i = 0; i < g.size(); ++i) {
          g[i] =
              std::sin(0.7f * static_cast<float>(i + 1) + static_cast<float>(step * comm.rank()));
        }
        if (comm.rank() == run.ranks - 1) run.spoiled(name, step, g);
      }
      gradients.reduce();
      const double norm = run.clip ? model.clip(infinite) : 0;
      const step_result taken = model.step();
      const std::vector<std::string> names(taken.skipped.begin(), taken.skipped.end());
      if (speaks) {
        result.skipped.push_back(names);
        result.norms.push_back(norm);
      }
      (void)model.sum(0);  // the names of rank 0 are there
      if (run.clip) {
        const std::lock_guard lock(mutex);
        CHECK(names == result.skipped.back());
      }
      (void)model.sum(0);
    }
    if (speaks) {
      for (const update_size& size : model.updates()) {
        result.root_mean_square = std::max(result.root_mean_square, size.root_mean_square());
      }
    }
    const auto unit = model.acquire(0, pass::evaluate);
    const std::lock_guard lock(mutex);
    for (const char* name : {"fused", "matrix", "long", "short"}) {
      const auto values = unit[name].flat();
      result.values[name].assign(values.begin(), values.end());
    }
  });
  return result;
}

const mixed rules{muon{.weight_decay = 0.1}, adamw{.weight_decay = 0.1}};
const mixed gathered_rules{gathered{muon{.weight_decay = 0.1}}, adamw{.weight_decay = 0.1}};

// Calls f(run) for every placement.
template <class F>
void everywhere(std::vector<bool> clips, F f) {
  for (const bool clip : clips) {
    CAPTURE(clip);
    for (const int ranks : {1, 2, 3}) {
      CAPTURE(ranks);
      const auto with = [&](const auto& placement, const auto& by) {
        f([&, clip, ranks](how run) {
          run.clip = clip;
          run.ranks = ranks;
          return train(placement, by, run);
        });
      };
      with(owner_placement{}, rules);
      with(replicated_placement{}, rules);
      with(row_placement{}, gathered_rules);
    }
  }
}

}  // namespace

TEST_CASE("a matrix with a gradient that is not finite is left out, whole and as if it had none") {
  for (const float bad : {infinite, -infinite, not_a_number}) {
    everywhere({false, true}, [&](auto trained) {
      const outcome spoiled = trained({.spoiled = [&](std::string_view name, int step, auto g) {
        if (name == "matrix" && step == 1) g[7] = bad;
      }});
      const outcome all = trained({});
      const outcome later = trained({.first = 2});
      CHECK(spoiled.values.at("matrix") == later.values.at("matrix"));
      for (const char* other : {"fused", "long", "short"}) {
        CHECK(spoiled.values.at(other) == all.values.at(other));
      }
      CHECK(all.observed.empty());
    });
  }
}

TEST_CASE("one row group is left out alone") {
  const auto spoiled = train(owner_placement{}, rules,
                             {.last = 1, .spoiled = [](std::string_view name, int, auto g) {
                                if (name == "fused") g[50] = not_a_number;  // the second of two
                              }});
  const auto all = train(owner_placement{}, rules, {.last = 1});
  const auto none = train(owner_placement{}, rules, {.last = 0});
  const auto half = [](const outcome& of, std::size_t from) {
    const auto& v = of.values.at("fused");
    return std::vector(v.begin() + static_cast<long>(from),
                       v.begin() + static_cast<long>(from) + 48);
  };
  CHECK(half(spoiled, 0) == half(all, 0));
  CHECK(half(spoiled, 48) == half(none, 48));
}

TEST_CASE("after clip every rank leaves out the same tensors and can name them") {
  everywhere({true}, [&](auto trained) {
    const how run{.last = 2, .spoiled = [](std::string_view name, int step, auto g) {
                    if ((name == "long" || name == "fused") && step == 1) g[5] = not_a_number;
                  }};
    const outcome spoiled = trained(run);
    CHECK(spoiled.skipped == std::vector<std::vector<std::string>>{{"u.fused", "u.long"}, {}});
    CHECK(spoiled.observed == std::vector<std::string>{"u.fused", "u.long"});
    CHECK(spoiled.values.at("long") == trained({.first = 2, .last = 2}).values.at("long"));
    CHECK(spoiled.values.at("short") == trained({.last = 2}).values.at("short"));
    CHECK(std::isfinite(spoiled.norms[0]));
    CHECK(spoiled.norms[0] < trained({.last = 1}).norms[0]);
  });
}

TEST_CASE("without clip a long tensor is left out in blocks, wherever it is cut") {
  const spoil second_block = [](std::string_view name, int, auto g) {
    if (name == "long") g[1500] = infinite;
  };
  const auto all = train(owner_placement{}, rules, {.last = 1}).values.at("long");
  const auto none = train(owner_placement{}, rules, {.last = 0}).values.at("long");
  for (const int ranks : {2, 3}) {
    const how run{.last = 1, .ranks = ranks, .spoiled = second_block};
    const auto owned = train(owner_placement{}, rules, run);
    CHECK(owned.values == train(replicated_placement{}, rules, run).values);
  }
  const auto spoiled =
      train(owner_placement{}, rules, {.last = 1, .spoiled = second_block}).values.at("long");
  for (std::size_t i = 0; i < 3000; ++i) {
    REQUIRE(spoiled[i] == (i / 1024 == 1 ? none[i] : all[i]));
  }
}

TEST_CASE("what is too large to be squared is left out where squares are taken, and only there") {
  for (const bool clip : {false, true}) {
    const how run{.last = 1, .clip = clip, .spoiled = [](std::string_view, int, auto g) {
                    for (float& e : g) e *= 1e25f;
                  }};
    const auto huge = train(owner_placement{}, rules, run);
    const auto none = train(owner_placement{}, rules, {.last = 0});
    CHECK(huge.values.at("short") == none.values.at("short"));
    CHECK(huge.values.at("long") == none.values.at("long"));
    CHECK(huge.values.at("matrix") != none.values.at("matrix"));
    for (const float w : huge.values.at("matrix")) CHECK(std::isfinite(w));
  }
}

TEST_CASE("a trainer may give up a whole step for one tensor, on all ranks alike") {
  thread_world{3}.run([&](auto comm) {
    sharded_model model{four_tensors(), comm, owner_placement{}, rules};
    model.initialize([](const tensor_spec&, std::span<float> values, index_t) {
      std::ranges::fill(values, 1.0f);
    });
    const auto gradients = model.gradients(0);
    gradients.zero();
    if (comm.rank() == 1) gradients["matrix"].flat()[0] = not_a_number;
    gradients.reduce();
    CHECK(model.refused().empty());
    (void)model.clip(1.0);
    CHECK(model.refused() == std::vector<std::string_view>{"u.matrix"});
    model.discard_gradients();
    CHECK(model.refused().empty());
    const auto unit = model.acquire(0, pass::evaluate);
    for (const float w : unit["fused"].flat()) CHECK(w == 1.0f);
  });
}

TEST_CASE("the root mean square of updates is that of the change of the parameters") {
  const auto before = train(owner_placement{}, rules, {.last = 2, .ranks = 1});
  const auto after = train(owner_placement{}, rules, {.last = 3, .ranks = 1});
  double largest = 0;
  const auto measure = [&](const char* name, std::size_t from, std::size_t to) {
    double sum = 0;
    for (std::size_t i = from; i < to; ++i) {
      const double d = double(after.values.at(name)[i]) - double(before.values.at(name)[i]);
      sum += d * d;
    }
    largest = std::max(largest, std::sqrt(sum / static_cast<double>(to - from)));
  };
  measure("fused", 0, 48);
  measure("fused", 48, 96);
  measure("matrix", 0, 54);
  measure("long", 0, 3000);
  measure("short", 0, 5);
  CHECK(after.root_mean_square == doctest::Approx(largest).epsilon(1e-6));

  thread_world{1}.run([&](auto comm) {
    sharded_model model{four_tensors(), comm, owner_placement{}, rules};
    CHECK_THROWS_WITH_AS((void)model.updates(),
                         "updates are measured only if model_options.measure_updates is true",
                         usage_error);
  });
}

TEST_CASE("threads that share out updates change no bit") {
  const spoil some = [](std::string_view name, int step, auto g) {
    if (name == "matrix" && step == 2) g[3] = not_a_number;
  };
  for (const int ranks : {1, 2}) {
    const auto alone = train(owner_placement{}, rules, {.ranks = ranks, .spoiled = some});
    for (const int threads : {2, 5}) {
      const auto shared =
          train(owner_placement{}, rules, {.ranks = ranks, .threads = threads, .spoiled = some});
      CHECK(shared.values == alone.values);
      CHECK(shared.skipped == alone.skipped);
    }
  }
  CHECK_THROWS_AS(train(owner_placement{}, rules, {.threads = 0}), spec_error);
}

}  // namespace unusable_test
