// Every misuse is a named error that says what to do; nothing hangs and nothing is lost.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "support/toy_training.hpp"

namespace misuse_test {

using namespace mfsdp;

namespace {

// Runs one call on every rank of a small model and returns rank 0's usage_error.
template <class Call>
std::string misuse(Call&& call, int ranks = 2, model_options options = {}) {
  std::string message;
  thread_world{ranks}.run([&](auto comm) {
    sharded_model model{toy::odd_spec(), comm, owner_placement{}, toy::optimizers(), options};
    model.initialize(toy::initialize);
    try {
      call(model);
    } catch (const usage_error& e) {
      if (comm.rank() == 0) message = e.what();
    }
  });
  return message;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

template <class Model>
void reduce_all(Model& model, std::optional<std::size_t> but = {}) {
  for (const std::size_t unit : model.backward_order()) {
    if (unit == but) continue;
    const auto gradients = model.gradients(unit);
    gradients.zero();
    gradients.reduce();
  }
}

}  // namespace

TEST_CASE("releasing a unit twice") {
  CHECK(contains(misuse([](auto& model) {
                   auto unit = model.acquire(0, pass::forward);
                   unit.release();
                   unit.release();
                 }),
                 "released its unit already"));
}

TEST_CASE("reading a unit after its release") {
  CHECK(contains(misuse([](auto& model) {
                   auto unit = model.acquire(0, pass::forward);
                   unit.release();
                   (void)unit[0];
                 }),
                 "released its unit already"));
}

TEST_CASE("a step while a unit is out") {
  const auto message = misuse([](auto& model) {
    reduce_all(model);
    const auto unit = model.acquire(1, pass::forward);
    model.step();
  });
  CHECK(contains(message, "step while unit 'block.0' is in use"));
}

TEST_CASE("a step after gradients that were handed out but not reduced") {
  const auto message = misuse([](auto& model) {
    reduce_all(model);
    model.gradients(2).zero();
    model.step();
  });
  CHECK(contains(message, "'block.1' were handed out but not reduced"));
}

TEST_CASE("a step without the gradient of a declared tensor") {
  for (const std::size_t forgotten : {std::size_t{1}, std::size_t{4}}) {
    const auto message = misuse([&](auto& model) {
      reduce_all(model, forgotten);
      model.step();
    });
    CHECK(contains(message, forgotten == 1
                                ? "'block.0' has no gradient since the last step"
                                : "tied tensor 'embedding.tokens': unit 'head' has not"));
  }
  CHECK(contains(misuse([](auto& model) { model.clip(1.0); }),
                 "has no gradient since the last step"));
}

TEST_CASE("reducing a unit twice, or before its gradients were asked for") {
  const auto message = misuse([](auto& model) {
    const auto gradients = model.gradients(1);
    gradients.zero();
    gradients.reduce();
    gradients.reduce();
  });
  CHECK(contains(message, "'block.0' are reduced twice"));
}

TEST_CASE("writing gradients after their reduction") {
  const auto message = misuse([](auto& model) {
    const auto gradients = model.gradients(1);
    gradients.zero();
    gradients.reduce();
    (void)gradients["norm"];
  });
  CHECK(contains(message, "'block.0' are reduced and may not be written"));
}

TEST_CASE("gradients that are handed out already, or asked for between clip and step") {
  CHECK(contains(misuse([](auto& model) {
                   model.gradients(1).zero();
                   model.gradients(1).zero();
                 }),
                 "'block.0' are handed out already"));
  CHECK(contains(misuse([](auto& model) {
                   reduce_all(model);
                   model.clip(1.0);
                   (void)model.gradients(1);
                 }),
                 "between clip and step"));
}

TEST_CASE("three units' gradients open at once") {
  const auto message = misuse([](auto& model) {
    model.gradients(1).zero();
    model.gradients(2).zero();
    model.gradients(3).zero();
  });
  CHECK(contains(message,
                 "gradients of 'block.2' were asked for while those of 'block.0' and "
                 "'block.1' are not reduced"));
}

TEST_CASE("a gradient of another size") {
  const std::vector<float> values(36, 1.0f);
  CHECK(contains(misuse([&](auto& model) { model.gradients(1).put("norm", values); }),
                 "gradient of 'block.0.norm' has 37 elements, not 36"));
}

TEST_CASE("unknown names and positions") {
  CHECK(contains(misuse([](auto& model) { (void)model.acquire(1, pass::forward)["nrom"]; }),
                 "unit 'block.0' has no tensor 'nrom'; it has 'norm' 'qkv'"));
  CHECK(contains(misuse([](auto& model) { (void)model.acquire(1, pass::forward)[9]; }),
                 "there is no tensor 9"));
  CHECK(contains(misuse([](auto& model) { (void)model.acquire(77, pass::forward); }),
                 "there is no unit 77; the model has 5"));
  CHECK(contains(misuse([](auto& model) { (void)model.unit("block.9"); }), "no unit 'block.9'"));
}

TEST_CASE("more units in use than there are buffers") {
  const auto message = misuse([](auto& model) {
    const auto a = model.acquire(1, pass::forward);
    const auto b = model.acquire(2, pass::forward);
    const auto c = model.acquire(3, pass::forward);
  });
  CHECK(contains(message,
                 "unit 'block.2' needs the buffer of unit 'block.0', which is not released"));
  CHECK(misuse(
            [](auto& model) {
              const auto a = model.acquire(1, pass::forward);
              const auto b = model.acquire(2, pass::forward);
              const auto c = model.acquire(3, pass::forward);
            },
            2, {.prefetch = 2}) == "");
}

TEST_CASE("using a model before it has values, or setting them while a unit is in use") {
  std::atomic<int> errors = 0;
  thread_world{2}.run([&](auto comm) {
    sharded_model model{toy::odd_spec(), comm, owner_placement{}, toy::optimizers()};
    CHECK_THROWS_AS((void)model.acquire(0, pass::forward), usage_error);
    CHECK_THROWS_AS((void)model.gradients(0), usage_error);
    CHECK_THROWS_AS(model.step(), usage_error);
    ++errors;
  });
  CHECK(errors == 2);
  CHECK(contains(misuse([](auto& model) {
                   const auto unit = model.acquire(0, pass::forward);
                   model.initialize(toy::initialize);
                 }),
                 "initialize while unit 'embedding' is in use"));
}

TEST_CASE("ranks with different plans") {
  for (const int ranks : {2, 3, 5}) {
    std::atomic<int> named = 0;
    CHECK_THROWS_AS(thread_world{ranks}.run([&](auto comm) {
      model_spec spec;
      spec.unit("unit").matrix("weight", comm.rank() == 1 ? 8 : 4, 4);
      try {
        sharded_model model{spec, comm, owner_placement{}, toy::optimizers().matrix};
      } catch (const plan_error& e) {
        if (contains(e.what(), "different plans (") &&
            contains(e.what(), "rank 1;") != contains(e.what(), "rank 1)")) {
          ++named;
        }
        throw;
      }
    }),
                    plan_error);
    CHECK(named == ranks);
  }
}

TEST_CASE("ranks with different plans are told in what they differ first") {
  struct arguments {
    model_spec spec = toy::odd_spec();
    mixed<muon, adamw> rules = toy::optimizers();
    model_options options{};
  };
  const auto told = [](const arguments& of_rank_1) {
    std::string message;
    try {
      thread_world{2}.run([&](auto comm) {
        const arguments own = comm.rank() == 1 ? of_rank_1 : arguments{};
        sharded_model model{own.spec, comm, owner_placement{}, own.rules, own.options};
      });
    } catch (const plan_error& e) {
      message = e.what();
    }
    return message;
  };
  arguments other;
  other.options.prefetch = 2;
  CHECK(contains(told(other), "they differ in model_options: prefetch"));
  other.rules.matrix.learning_rate = 0.5;
  CHECK(contains(told(other), "they differ in the optimizers: their options"));
  other.spec.unit("more").matrix("weight", 8, 4);
  CHECK(contains(told(other), "they differ in the model: "));
  CHECK(told({}).empty());
}

TEST_CASE("norms and rates that make no sense") {
  for (const double norm : {0.0, -1.0, std::nan("")}) {
    CHECK(contains(misuse([&](auto& model) { model.clip(norm); }), "must be positive"));
  }
  for (const float scale : {-1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
    CHECK(contains(misuse([&](auto& model) { model.step(scale); }), "cannot be scaled by"));
  }
}

TEST_CASE("a call that only one rank makes is reported at once, with what each rank waits for") {
  const auto start = std::chrono::steady_clock::now();
  std::string message;
  try {
    misuse(
        [](auto& model) {
          reduce_all(model);
          if (model.rank() == 1) (void)model.sum(1.0);
          model.clip(1.0);
          model.step();
          (void)model.acquire(0, pass::forward);
        },
        3);
  } catch (const collective_error& e) {
    message = e.what();
  }
  CHECK(contains(message, "'sum'"));
  CHECK((contains(message, "differs between ranks") || contains(message, "no rank can go on")));
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(30));
}

TEST_CASE("ranks with different options or learning rates") {
  const auto run = [](bool prefetch, bool rate) {
    thread_world{3}.run([&](auto comm) {
      const bool odd = comm.rank() == 1;
      auto rules = toy::optimizers();
      if (odd && rate) rules.matrix.learning_rate = 0.5;
      sharded_model model{toy::odd_spec(), comm, replicated_placement{}, rules,
                          model_options{.prefetch = odd && prefetch ? 2 : 1}};
    });
  };
  CHECK_NOTHROW(run(false, false));
  CHECK_THROWS_AS(run(true, false), plan_error);
  CHECK_THROWS_AS(run(false, true), plan_error);
}

TEST_CASE("options that make no sense") {
  for (const auto timeout : {std::chrono::milliseconds(0), std::chrono::milliseconds(-5)}) {
    CHECK_THROWS_AS(misuse([](auto&) {}, 2, {.timeout = timeout}), spec_error);
  }
  CHECK(misuse([](auto& model) { (void)model.acquire(0, pass::forward); }, 2,
               {.timeout = std::chrono::milliseconds::max()}) == "");
  CHECK_THROWS_AS(misuse([](auto&) {}, 2, {.prefetch = -1}), spec_error);
  CHECK_THROWS_AS(thread_world{0}, spec_error);
}

}  // namespace misuse_test
