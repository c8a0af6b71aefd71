// The life of units, gradients and ranks, including the ends that nobody plans for.
#include <doctest/doctest.h>

#include <atomic>
#include <cmath>
#include <memory>

#include "support/toy_training.hpp"

namespace lifecycle_test {

using namespace mfsdp;

namespace {

// Runs `body(model)` on every rank of a small initialized model.
template <class Body>
void on_ranks(int ranks, Body&& body, model_options options = {},
              const model_spec& spec = toy::odd_spec()) {
  thread_world{ranks}.run([&](auto comm) {
    sharded_model model{spec, comm, owner_placement{}, toy::optimizers(), options};
    model.initialize(toy::initialize);
    body(model);
  });
}

}  // namespace

TEST_CASE("a unit may be acquired again while it is in use, and is gathered once") {
  on_ranks(3, [](auto& model) {
    const auto before = model.gathers();
    auto outer = model.acquire(2, pass::backward);
    {
      const auto recompute = model.acquire(2, pass::forward);
      CHECK(recompute.pointers().data() == outer.pointers().data());
    }
    CHECK(outer["norm"].flat()[0] == toy::initial_value(model.plan().spec.tensors()[7], 0));
    const auto moved = std::move(outer);
    CHECK(moved["norm"].flat()[1] == toy::initial_value(model.plan().spec.tensors()[7], 1));
    CHECK(model.gathers().late == before.late + 1);
  });
}

TEST_CASE("evaluation between steps, and forwards without a backward, change nothing") {
  for (const int prefetch : {0, 1, 2}) {
    for (const bool reshard : {true, false}) {
      CAPTURE(prefetch);
      CAPTURE(reshard);
      const toy::settings how{.ranks = 3, .steps = 1};
      std::vector<std::map<std::string, std::vector<float>>> ends(3);
      on_ranks(3,
               [&](auto& model) {
                 std::vector<double> ignored;
                 for (int step = 0; step < 3; ++step) {
                   toy::read_parameters(model);
                   toy::read_parameters(model);
                   for (const std::size_t unit : model.forward_order()) {
                     (void)model.acquire(unit, pass::forward);
                   }
                   (void)model.acquire(3, pass::evaluate);
                   (void)model.acquire(0, pass::backward);
                   toy::train(model, how, ignored, ignored);
                 }
                 ends[static_cast<std::size_t>(model.rank())] = toy::read_parameters(model);
               },
               {.prefetch = prefetch, .reshard_after_forward = reshard});

      std::vector<std::map<std::string, std::vector<float>>> straight(3);
      on_ranks(3, [&](auto& model) {
        std::vector<double> ignored;
        for (int step = 0; step < 3; ++step) toy::train(model, how, ignored, ignored);
        straight[static_cast<std::size_t>(model.rank())] = toy::read_parameters(model);
      });
      CHECK(ends == straight);
    }
  }
}

TEST_CASE("a tied tensor has one address under both names and adds up both gradients") {
  on_ranks(3, [](auto& model) {
    const std::size_t head = model.unit("head");
    const float* tokens = model.acquire(0, pass::forward)["tokens"].data();
    CHECK(model.acquire(head, pass::forward)["output"].data() == tokens);

    // Both are open at once and the later unit writes first: nothing is lost.
    const auto of_embedding = model.gradients(0);
    const auto of_head = model.gradients(head);
    CHECK(of_head["output"].accumulate);
    CHECK(of_embedding["tokens"].accumulate);
    CHECK(!of_embedding["scale"].accumulate);
    of_embedding.zero();
    for (float& g : of_embedding["tokens"].flat()) g += 1;
    for (float& g : of_head["output"].flat()) g += 2;
    of_head.zero();  // leaves what is to be added to
    of_head.reduce();
    of_embedding.reduce();
    for (const std::size_t unit : {3u, 2u, 1u}) {
      const auto rest = model.gradients(unit);
      rest.zero();
      rest.reduce();
    }
    CHECK(model.clip(1e9) == doctest::Approx(3 * 3 * std::sqrt(61.0 * 37.0)));
  });
}

TEST_CASE("frozen tensors have no gradient, cost no state and stay as they are") {
  model_spec spec;
  spec.unit("base").matrix("weight", 8, 8, {.frozen = true}).vector("bias", 8, {.frozen = true});
  spec.unit("adapter").matrix("a", 2, 8).matrix("weight", 64, 64, {.frozen = true}).vector("b", 8);
  on_ranks(
      2,
      [](auto& model) {
        const auto before = toy::read_parameters(model);
        for (int step = 0; step < 2; ++step) {
          for (const std::size_t unit : model.backward_order()) {
            const auto gradients = model.gradients(unit);
            const auto& references = model.plan().spec.units()[unit].tensors;
            for (std::size_t i = 0; i < references.size(); ++i) {
              const bool frozen = model.plan().spec.tensors()[references[i].tensor].options.frozen;
              CHECK((gradients[i].data() == nullptr) == frozen);
              for (float& g : gradients[i].flat()) g = 1;
            }
            gradients.reduce();
          }
          CHECK(model.clip(1e9) == doctest::Approx(2 * std::sqrt(16.0 + 8.0)));
          model.step();
        }
        const auto after = toy::read_parameters(model);
        for (const char* name : {"base.weight", "base.bias", "adapter.weight"}) {
          CHECK(after.at(name) == before.at(name));
        }
        CHECK(after.at("adapter.a") != before.at("adapter.a"));
        // The large frozen matrix appears in no gradient memory.
        CHECK(model.memory_in_use()[memory_kind::gradient_buffers] == 2 * 4 * 32);
        CHECK(model.memory_in_use()[memory_kind::gradients] <= 4 * 32);
      },
      {}, spec);
}

TEST_CASE("a rank without a gradient contributes zeros") {
  std::vector<std::map<std::string, std::vector<float>>> ends(3);
  on_ranks(3, [&](auto& model) {
    for (const std::size_t unit : model.backward_order()) {
      const auto gradients = model.gradients(unit);
      gradients.zero();
      if (unit == 1 && model.rank() == 2) {  // an expert that only rank 2 has used
        for (float& g : gradients["up"].flat()) g = 0.5f;
      }
      gradients.reduce();
    }
    CHECK(model.clip(1e9) == doctest::Approx(0.5 * std::sqrt(53.0 * 37.0)));
    model.step();
    ends[static_cast<std::size_t>(model.rank())] = toy::read_parameters(model);
  });
  CHECK(ends[0] == ends[1]);
  CHECK(ends[0] == ends[2]);
}

TEST_CASE("gradients can be given up, and training goes on as if they had never been") {
  const toy::settings how{.ranks = 3};
  std::vector<std::map<std::string, std::vector<float>>> ends(3);
  on_ranks(3, [&](auto& model) {
    // Open, reduced, half of a tied tensor: whatever the state.
    model.gradients(3).zero();
    const auto reduced = model.gradients(4);
    for (std::size_t i = 0; i < 2; ++i) {
      for (float& g : reduced[i].flat()) g = 7;
    }
    reduced.reduce();
    model.discard_gradients();
    std::vector<double> ignored;
    toy::train(model, how, ignored, ignored);
    ends[static_cast<std::size_t>(model.rank())] = toy::read_parameters(model);
  });
  const auto expected = toy::run_plain(toy::odd_spec(), toy::optimizers(), how).parameters;
  for (const auto& end : ends) CHECK(end == expected);
}

TEST_CASE("what may not be read is poisoned in checked builds") {
  if constexpr (!checked) return;
  on_ranks(3, [](auto& model) {
    const float* address = nullptr;
    {
      const auto unit = model.acquire(2, pass::forward);
      address = unit["up"].data();
      CHECK(!std::isnan(address[0]));
    }
    CHECK(std::isnan(address[0]));
    const auto gradients = model.gradients(2);
    for (const float g : gradients["up"].flat()) CHECK(std::isnan(g));
    gradients.zero();
    gradients.reduce();
  });
}

TEST_CASE("an element of a gradient that is not written shows in checked builds") {
  if constexpr (!checked) return;
  on_ranks(2, [](auto& model) {
    for (const std::size_t unit : model.backward_order()) {
      const auto gradients = model.gradients(unit);
      if (unit == 2) {
        for (const char* name : {"qkv", "up"}) std::ranges::fill(gradients[name].flat(), 0.0f);
      } else {
        gradients.zero();
      }
      gradients.reduce();  // block.1: the norm was never written
    }
    CHECK(model.clip(1.0) == 0);
    CHECK(model.step().skipped == std::vector<std::string_view>{"block.1.norm"});
  });
}

TEST_CASE("a model that goes out of scope with work in flight ends well") {
  for (const int after : {0, 1, 2, 3}) {
    on_ranks(3, [&](auto& model) {
      if (after > 0) (void)model.acquire(0, pass::forward);
      if (after > 1) {
        const auto gradients = model.gradients(4);
        gradients.zero();
        gradients.reduce();
      }
      if (after > 2) model.gradients(3).zero();
    });
  }
}

TEST_CASE("a rank that throws, in whatever phase, makes all others throw its cause") {
  enum {
    before_acquire,
    in_forward,
    in_backward,
    before_reduce,
    before_clip,
    before_step,
    after_step
  };
  for (int phase = before_acquire; phase <= after_step; ++phase) {
    for (const int culprit : {0, 2}) {
      CAPTURE(phase);
      CAPTURE(culprit);
      std::atomic<int> told = 0;
      const auto start = std::chrono::steady_clock::now();
      CHECK_THROWS_AS(thread_world{4}.run([&](auto comm) {
        const auto maybe_fail = [&](int now) {
          if (now == phase && comm.rank() == culprit) throw std::domain_error("out of beans");
        };
        try {
          sharded_model model{toy::odd_spec(), comm, owner_placement{}, toy::optimizers()};
          model.initialize(toy::initialize);
          for (int step = 0; step < 1000; ++step) {
            maybe_fail(step == 2 ? before_acquire : -1);
            for (const std::size_t unit : model.forward_order()) {
              const auto weights = model.acquire(unit, pass::forward);
              maybe_fail(unit == 2 && step == 2 ? in_forward : -1);
            }
            for (const std::size_t unit : model.backward_order()) {
              const auto weights = model.acquire(unit, pass::backward);
              maybe_fail(unit == 2 ? in_backward : -1);
              const auto gradients = model.gradients(unit);
              gradients.zero();
              maybe_fail(unit == 1 ? before_reduce : -1);
              gradients.reduce();
            }
            maybe_fail(before_clip);
            model.clip(1.0);
            maybe_fail(before_step);
            model.step();
            maybe_fail(after_step);
          }
        } catch (const rank_failure& e) {
          const std::string what = e.what();
          if (what.find("out of beans") != std::string::npos &&
              what.find(fmt::format("rank {}", culprit)) != std::string::npos) {
            ++told;
          }
          throw;
        }
      }),
                      std::domain_error);
      CHECK(told == 3);
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
    }
  }
}

TEST_CASE("a rank that returns early or goes another way is named") {
  CHECK_THROWS_AS(thread_world{3}.run([&](auto comm) {
    sharded_model model{toy::odd_spec(), comm, owner_placement{}, toy::optimizers()};
    model.initialize(toy::initialize);
    if (comm.rank() == 1) return;
    std::vector<double> ignored;
    toy::train(model, {}, ignored, ignored);
  }),
                  collective_error);
  std::string message;
  try {
    on_ranks(2, [&](auto& model) { (void)model.acquire(model.rank() == 0 ? 1 : 2, pass::forward); },
             {.prefetch = 0});
  } catch (const collective_error& e) {
    message = e.what();
  }
  CHECK(message.find("block.0") != std::string::npos);
  CHECK(message.find("block.1") != std::string::npos);
}

TEST_CASE("a rank that never comes is named after the deadline") {
  std::string message;
  try {
    on_ranks(3,
             [&](auto& model) {
               if (model.rank() == 1) {
                 std::this_thread::sleep_for(std::chrono::seconds(1));
                 return;
               }
               (void)model.acquire(2, pass::forward);
             },
             {.timeout = std::chrono::milliseconds(200)});
  } catch (const collective_error& e) {
    message = e.what();
  }
  CHECK(message.find("block.1") != std::string::npos);
  CHECK(message.find("rank 1") != std::string::npos);
}

TEST_CASE("a model may outlive the run of its world") {
  using model_type = sharded_model<mesh<thread_collective>, owner_placement,
                                   decltype(toy::optimizers()), eigen_backend>;
  std::vector<std::unique_ptr<model_type>> kept(2);
  thread_world{2}.run([&](auto comm) {
    auto& model = kept[static_cast<std::size_t>(comm.rank())];
    model =
        std::make_unique<model_type>(toy::odd_spec(), comm, owner_placement{}, toy::optimizers());
    model->initialize(toy::initialize);
    (void)model->acquire(0, pass::forward);  // leaves a gather in flight
  });
  kept.clear();
}

TEST_CASE("zeros in every gradient leave a plain model where it was") {
  model_spec spec;
  spec.unit("a").matrix("weight", 4, 4).vector("empty", 0);
  on_ranks(
      2,
      [](auto& model) {
        const auto before = toy::read_parameters(model);
        toy::reduce_zeros(model);
        CHECK(model.clip(1.0) == 0);
        model.step();
        const auto after = toy::read_parameters(model);
        for (std::size_t i = 0; i < 16; ++i) {
          CHECK(std::isfinite(after.at("a.weight")[i]));
        }
        CHECK(after.at("a.empty").empty());
        CHECK(before.size() == after.size());
      },
      {}, spec);
}

}  // namespace lifecycle_test
