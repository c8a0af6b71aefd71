// A mesh of shard groups and replicas: the bits of a plain loop, and what moves between replicas.
#include <doctest/doctest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/toy_training.hpp"

namespace replicas_test {

using namespace mfsdp;

namespace {

struct shape {
  int shard_ranks;
  int replicas;
};
constexpr shape shapes[] = {{2, 2}, {3, 2}, {2, 3}, {1, 3}};

toy::settings settings_of(const shape& s, int micro_batches, double max_norm) {
  return {.ranks = s.shard_ranks * s.replicas,
          .replicas = s.replicas,
          .micro_batches = micro_batches,
          .max_norm = max_norm};
}

// toy::run_sharded on a mesh.
template <class Placement, class Rules, class Inspect, class Precision = precision<>>
toy::outcome run(const model_spec& spec, Placement placement, Rules rules, const toy::settings& how,
                 Inspect&& inspect, Precision types = {}) {
  return toy::run_sharded(spec, placement, rules, how, inspect, types,
                          [&](auto comm) { return make_mesh(comm, how.ranks / how.replicas); });
}

// Bytes and operations of one sum over replicas of what a rank keeps.
template <class Model>
traffic replica_sum_of(const Model& model, index_t element_bytes) {
  const plan& p = model.plan();
  const int place = model.rank() % p.ranks;
  const index_t others = model.ranks() / p.ranks - 1;
  traffic sum;
  for (const transfer_group& group : p.groups) {
    index_t own = 0;
    for (const piece& x : group.gradients.pieces) own += x.rank == place ? x.count : 0;
    const index_t bytes = own * element_bytes * others;
    if (own > 0) sum += {1, bytes, bytes};
  }
  return sum;
}

// What the same training moves without replicas, by phase and place in the shard group.
std::vector<std::array<traffic, phases>> moved_without_replicas(toy::settings how) {
  how.ranks /= how.replicas;
  std::vector<std::array<traffic, phases>> moved(static_cast<std::size_t>(how.ranks));
  toy::run_sharded(toy::odd_spec(), owner_placement{}, toy::optimizers(), how, [&](auto& model) {
    for (std::size_t p = 0; p < phases; ++p) {
      moved[static_cast<std::size_t>(model.rank())][p] = model.moved(static_cast<phase>(p));
    }
  });
  return moved;
}

// Calls check(shape, settings) for each shape, with and without micro-batches and clipping.
template <class Check>
void for_every_mesh(const Check& check) {
  for (const shape& s : shapes) {
    for (const int micro_batches : {1, 3}) {
      for (const double max_norm : {0.0, 0.5}) {
        CAPTURE(s.shard_ranks);
        CAPTURE(s.replicas);
        CAPTURE(micro_batches);
        CAPTURE(max_norm);
        check(s, settings_of(s, micro_batches, max_norm));
      }
    }
  }
}

traffic operator*(std::int64_t times, const traffic& t) {
  return {times * t.collectives, times * t.sent, times * t.received};
}

}  // namespace

TEST_CASE("the order of sums shows in the reference") {
  const auto of = [](int replicas) {
    return toy::run_plain(toy::odd_spec(), toy::optimizers(), {.ranks = 6, .replicas = replicas});
  };
  CHECK(of(1) != of(2));
  CHECK(of(2) != of(3));
}

TEST_CASE("training on a mesh equals a plain loop bit for bit") {
  for_every_mesh([](const shape&, const toy::settings& how) {
    const auto expected = toy::run_plain(toy::odd_spec(), toy::optimizers(), how);
    const auto ignore = [](auto&) {};
    CHECK(run(toy::odd_spec(), owner_placement{}, toy::optimizers(), how, ignore) == expected);
    CHECK(run(toy::odd_spec(), replicated_placement{}, toy::optimizers(), how, ignore) == expected);
    if (how.max_norm > 0) return;  // rows cut between blocks of the norm
    const auto rules = toy::optimizers();
    CHECK(run(toy::odd_spec(), row_placement{}, mixed{gathered{rules.matrix}, rules.elementwise},
              how, ignore) == expected);
  });
}

TEST_CASE("replicas of 16-bit types stay equal to the bit, and to a plain loop") {
  using narrow = precision<bfloat16, bfloat16, bfloat16, bfloat16>;
  const toy::settings how = settings_of({2, 3}, 2, 0.5);
  std::vector<std::map<std::string, std::vector<float>>> ends(6);
  const auto result = run(
      toy::odd_spec(), owner_placement{}, toy::optimizers(), how,
      [&](auto& model) {
        ends[static_cast<std::size_t>(model.rank())] = toy::read_parameters(model);
      },
      narrow{});
  CHECK(result == toy::run_plain<narrow>(toy::odd_spec(), toy::optimizers(), how));
  for (const auto& end : ends) CHECK(end == ends[0]);
}

TEST_CASE("one sum over replicas a step, however many micro-batches; the rest as without") {
  for_every_mesh([](const shape& s, const toy::settings& how) {
    const auto without = moved_without_replicas(how);
    run(toy::odd_spec(), owner_placement{}, toy::optimizers(), how, [&](auto& model) {
      const auto& alone = without[static_cast<std::size_t>(model.rank() % s.shard_ranks)];
      for (const phase p : {phase::forward, phase::clip, phase::step, phase::evaluate}) {
        CHECK(model.moved(p) == alone[static_cast<std::size_t>(p)]);
      }
      CHECK(model.moved(phase::step) == traffic{});
      const traffic sum = replica_sum_of(model, sizeof(float));
      CHECK(sum.received > 0);
      CHECK(model.moved(phase::backward) - alone[static_cast<std::size_t>(phase::backward)] ==
            how.steps * sum);
    });
  });
}

TEST_CASE("nothing moves between the sum over replicas and the next gather") {
  thread_world{4}.run([](auto comm) {
    sharded_model model{toy::odd_spec(), make_mesh(comm, 2), owner_placement{}, toy::optimizers()};
    model.initialize(toy::initialize);
    std::vector<double> ignored;
    toy::train(model, {.steps = 1, .micro_batches = 1, .max_norm = 0}, ignored, ignored);
    toy::reduce_zeros(model);
    model.clip(1.0);
    const traffic after_clip = model.moved(phase::backward);
    model.clip(1.0);  // the gradients are finished
    model.step();
    CHECK(model.moved(phase::backward) == after_clip);
    CHECK(model.moved(phase::step) == traffic{});
    // Given up, not summed.
    toy::reduce_zeros(model);
    const traffic after_reduce = model.moved(phase::backward);
    model.discard_gradients();
    CHECK(model.moved(phase::backward) == after_reduce);
  });
}

TEST_CASE("long shards are summed in parts, through a bounded copy") {
  model_spec spec;
  spec.unit("long").elementwise("table", {600, 500}).matrix("short", 3, 5);
  spec.unit("longer").elementwise("table", {1200, 500});
  const toy::settings how{
      .ranks = 2, .replicas = 2, .steps = 2, .micro_batches = 1, .max_norm = 0.5};
  const auto result = run(spec, owner_placement{}, toy::optimizers(), how, [](auto& model) {
    constexpr index_t part = 256 * 1024;
    static_assert(300015 / part + 1 == 2 && 600000 / part + 1 == 3);
    // Two groups are reduced in two steps, each to this rank alone.
    CHECK(model.moved(phase::backward) - traffic{2 * 2, 0, 0} ==
          2 * traffic{2 + 3, 4 * 900015, 4 * 900015});
    CHECK(model.memory_in_use()[memory_kind::gradient_buffers] == 2 * 4 * 600000 + 2 * 4 * part);
  });
  CHECK(result == toy::run_plain(spec, toy::optimizers(), how));
}

TEST_CASE("memory is divided by the shard ranks, with a copy of one part or two for replicas") {
  thread_world{4}.run([](auto comm) {
    const auto memory_of = [](auto axes) {
      return sharded_model{toy::odd_spec(), axes, owner_placement{}, toy::optimizers()}
          .memory_in_use();
    };
    auto pair = comm.split(comm.rank() / 2);
    const memory_usage alone = memory_of(pair);
    const memory_usage replicated = memory_of(make_mesh(comm, 2));
    CHECK(replicated.resident() == alone.resident());
    for (std::size_t kind = 0; kind < memory_kinds; ++kind) {
      if (kind == static_cast<std::size_t>(memory_kind::gradient_buffers)) continue;
      CHECK(replicated.bytes[kind] == alone.bytes[kind]);
    }
    const plan p = make_plan(toy::odd_spec(), 2, owner_placement{}, toy::optimizers());
    index_t largest = 0;
    for (const transfer_group& group : p.groups) {
      index_t own = 0;
      for (const piece& x : group.gradients.pieces) own += x.rank == pair.rank() ? x.count : 0;
      largest = std::max(largest, own);
    }
    CHECK(replicated[memory_kind::gradient_buffers] - alone[memory_kind::gradient_buffers] ==
          2 * 4 * largest);
  });
}

TEST_CASE("ranks are counted replica by replica, and sums cover both axes") {
  thread_world{6}.run([](auto comm) {
    sharded_model model{toy::odd_spec(), make_mesh(comm, 3), owner_placement{}, toy::optimizers()};
    CHECK(model.rank() == comm.rank());
    CHECK(model.ranks() == 6);
    CHECK(model.plan().ranks == 3);
    CHECK(model.sum(1 << comm.rank()) == 63);
    // 1e16 swallows what is added to it alone: in rank order both do not.
    CHECK(model.sum(comm.rank() == 5 ? 1e16 : 1.0) == 5 + 1e16);
  });
}

TEST_CASE("every rank of every replica gets the same norm") {
  std::array<double, 6> norms{};
  thread_world{6}.run([&](auto comm) {
    sharded_model model{toy::odd_spec(), make_mesh(comm, 2), owner_placement{}, toy::optimizers()};
    model.initialize(toy::initialize);
    index_t elements = 0;
    for (const std::size_t unit : model.backward_order()) {
      const auto gradients = model.gradients(unit);
      gradients.zero();
      for (std::size_t i = 0; i < model.plan().spec.units()[unit].tensors.size(); ++i) {
        if (gradients[i].accumulate && unit != 0) continue;  // the tied tensor once
        elements += gradients[i].size();
        for (float& g : gradients[i].flat()) g = static_cast<float>(1 + comm.rank());
      }
      gradients.reduce();
    }
    norms[static_cast<std::size_t>(comm.rank())] = model.clip(1.0);
    CHECK(norms[static_cast<std::size_t>(comm.rank())] ==
          std::sqrt(static_cast<double>(elements) * 21 * 21));
  });
}

TEST_CASE("a replica with another plan is named before anything moves") {
  std::atomic<int> named = 0;
  CHECK_THROWS_AS(thread_world{6}.run([&](auto comm) {
    const bool odd = comm.rank() / 2 == 1;  // a whole shard group, which agrees with itself
    model_spec spec;
    spec.unit("unit").matrix("weight", odd ? 8 : 4, 4).vector("bias", 4);
    try {
      sharded_model model{spec, make_mesh(comm, 2), owner_placement{}, toy::optimizers()};
    } catch (const error& e) {  // a rank_failure where the other groups were quicker
      const std::string what = e.what();
      named += what.find("rank 2, 3") != std::string::npos &&
               what.find("rank 0, 1, 4, 5") != std::string::npos;
      throw;
    }
  }),
                  plan_error);
  CHECK(named == 6);
}

TEST_CASE("axes that do not make a grid are refused") {
  CHECK_THROWS_WITH_AS(thread_world{4}.run([](auto comm) {
    const int group = comm.rank() / 2;
    const int crossed = group == 0 ? comm.rank() : 3 - comm.rank();
    const mesh axes{.shard = comm.split(group), .replicate = comm.split(crossed)};
    sharded_model model{toy::odd_spec(), axes, owner_placement{}, toy::optimizers()};
  }),
                       doctest::Contains("of a shard group with rank"), spec_error);
}

TEST_CASE("a rank that throws, in whatever phase, ends all replicas with its cause") {
  for (const std::string failing : {"construction", "forward", "backward", "clip", "step"}) {
    for (const int culprit : {0, 3}) {
      CAPTURE(failing);
      CAPTURE(culprit);
      std::atomic<int> told = 0;
      const auto start = std::chrono::steady_clock::now();
      CHECK_THROWS_AS(thread_world{6}.run([&](auto comm) {
        const auto at = [&](const std::string& now) {
          if (now == failing && comm.rank() == culprit) throw std::domain_error("out of beans");
        };
        try {
          const mesh axes = make_mesh(comm, 2);
          at("construction");
          sharded_model model{toy::odd_spec(), axes, owner_placement{}, toy::optimizers()};
          model.initialize(toy::initialize);
          for (int step = 0; step < 3; ++step) {
            for (const std::size_t unit : model.forward_order()) {
              const auto weights = model.acquire(unit, pass::forward);
              if (step == 1) at("forward");
            }
            for (const std::size_t unit : model.backward_order()) {
              const auto weights = model.acquire(unit, pass::backward);
              const auto gradients = model.gradients(unit);
              gradients.zero();
              if (step == 1) at("backward");
              gradients.reduce();
            }
            if (step == 1) at("clip");
            model.clip(1.0);
            if (step == 1) at("step");
            model.step();
          }
        } catch (const rank_failure& e) {
          told += std::string(e.what()).find("out of beans") != std::string::npos;
          throw;
        }
      }),
                      std::domain_error);
      CHECK(told == 5);
      CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
    }
  }
}

}  // namespace replicas_test
