// Bytes on the wire, number of collectives, live bytes, addresses and the order of events.
#include <doctest/doctest.h>

#include "support/toy_training.hpp"

namespace accounts_test {

using namespace mfsdp;

namespace {

// Elements of a unit's own and tied tensors, counted from the spec alone.
index_t elements_of_group(const plan& p, std::size_t group, bool trainable_only) {
  index_t sum = 0;
  for (const std::size_t t : p.groups[group].tensors) {
    if (!trainable_only || !p.spec.tensors()[t].options.frozen)
      sum += p.spec.tensors()[t].elements();
  }
  return sum;
}

index_t owned_elements(const plan& p, std::size_t group, int rank, bool trainable_only) {
  index_t sum = 0;
  for (std::size_t i = 0; i < p.items.size(); ++i) {
    const std::size_t tensor = p.items[i].tensor;
    if (p.tensors[tensor].group != group) continue;
    if (trainable_only && p.spec.tensors()[tensor].options.frozen) continue;
    for (const segment& s : p.segments[i]) sum += s.rank == rank ? s.count : 0;
  }
  return sum;
}

traffic operator+(traffic a, const traffic& b) {
  return a += b;
}

constexpr int steps = 3;
constexpr int micro_batches = 2;
constexpr int passes = steps * micro_batches;

}  // namespace

TEST_CASE(
    "owner placement moves exactly the unpadded bytes, once a pass, and nothing in the step") {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const int prefetch : {0, 1}) {
      CAPTURE(ranks);
      CAPTURE(prefetch);
      const toy::settings how{.ranks = ranks,
                              .steps = steps,
                              .micro_batches = micro_batches,
                              .max_norm = 0,
                              .options = {.prefetch = prefetch}};
      toy::run_sharded(
          toy::odd_spec(), owner_placement{}, toy::optimizers(), how, [&](auto& model) {
            const plan& p = model.plan();
            const int rank = model.rank();
            traffic forward;
            traffic backward;
            for (std::size_t g = 0; g < p.groups.size(); ++g) {
              const index_t total = elements_of_group(p, g, false);
              const index_t own = owned_elements(p, g, rank, false);
              const traffic gather =
                  ranks == 1 ? traffic{} : traffic{1, 4 * own * (ranks - 1), 4 * (total - own)};
              // A tied tensor is gathered once a step. With prefetch the last unit stays gathered
              // between its forward and its backward.
              const bool held = p.groups[g].held;
              const bool last = p.groups[g].units.back() + 1 == p.unit_groups.size();
              const int forwards = held ? steps : passes;
              const int backwards = held || (last && prefetch > 0) ? 0 : passes;
              for (int i = 0; i < forwards; ++i) forward += gather;
              for (int i = 0; i < backwards; ++i) backward += gather;
              const index_t gradient = elements_of_group(p, g, true);
              const index_t own_gradient = owned_elements(p, g, rank, true);
              for (int i = 0; i < passes; ++i) {
                backward += {1, 4 * (gradient - own_gradient), 4 * own_gradient * (ranks - 1)};
              }
            }
            CHECK(model.moved(phase::forward) == forward);
            CHECK(model.moved(phase::backward) == backward);
            CHECK(model.moved(phase::step) == traffic{});
            CHECK(model.moved(phase::clip) == traffic{});
            CHECK(model.gathers().dropped == 0);
            if (prefetch > 0 && ranks > 1) CHECK(model.gathers().ahead > model.gathers().late);
          });
    }
  }
}

TEST_CASE("clipping gathers one number for each whole item and for each block of a cut one") {
  const toy::settings how{.ranks = 4, .steps = steps};
  toy::run_sharded(toy::odd_spec(), owner_placement{}, toy::optimizers(), how, [&](auto& model) {
    index_t all = 0;
    index_t own = 0;
    const plan& p = model.plan();
    for (std::size_t i = 0; i < p.items.size(); ++i) {
      if (p.tensors[p.items[i].tensor].optimizer < 0) continue;
      for (const segment& s : p.segments[i]) {
        const index_t sums = p.segments[i].size() == 1 ? 1 : (s.count + 1023) / 1024;
        all += sums;
        own += s.rank == model.rank() ? sums : 0;
      }
    }
    CHECK(model.moved(phase::clip) == traffic{steps, steps * 8 * own * 3, steps * 8 * (all - own)});
  });
}

TEST_CASE("the rows baseline gathers every matrix in the step, and it shows") {
  const toy::settings how{.ranks = 4, .steps = steps, .max_norm = 0};
  const auto rules = toy::optimizers();
  toy::run_sharded(toy::odd_spec(), row_placement{},
                   mixed{gathered{rules.matrix}, rules.elementwise}, how, [&](auto& model) {
                     traffic expected;
                     const plan& p = model.plan();
                     for (std::size_t i = 0; i < p.items.size(); ++i) {
                       if (p.tensors[p.items[i].tensor].optimizer != 0) continue;
                       index_t own = 0;
                       for (const segment& s : p.segments[i])
                         own += s.rank == model.rank() ? s.count : 0;
                       for (int step = 0; step < steps; ++step) {
                         expected += {1, 4 * own * 3, 4 * (p.items[i].elements() - own)};
                       }
                     }
                     CHECK(expected.collectives > 0);
                     CHECK(model.moved(phase::step) == expected);
                   });
}

TEST_CASE("replicated training gathers nothing") {
  const toy::settings how{.ranks = 3, .steps = steps};
  toy::run_sharded(toy::odd_spec(), replicated_placement{}, toy::optimizers(), how,
                   [&](auto& model) {
                     CHECK(model.moved(phase::forward) == traffic{});
                     CHECK(model.moved(phase::evaluate) == traffic{});
                     CHECK(model.moved(phase::clip) == traffic{});
                     CHECK(model.moved(phase::step) == traffic{});
                     CHECK(model.memory_in_use()[memory_kind::unit_buffers] == 0);
                   });
}

TEST_CASE("live bytes are those of the bound, and known before the first step") {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8}) {
    for (const int prefetch : {0, 1, 2}) {
      CAPTURE(ranks);
      CAPTURE(prefetch);
      thread_world{ranks}.run([&](auto comm) {
        sharded_model model{toy::odd_spec(), comm, owner_placement{}, toy::optimizers(),
                            model_options{.prefetch = prefetch}};
        const memory_usage before = model.memory_in_use();
        model.initialize(toy::initialize);
        std::vector<double> ignored;
        toy::train(model, {.steps = 2}, ignored, ignored);
        CHECK(model.memory_in_use().bytes == before.bytes);
        toy::train(model, {.steps = 8}, ignored, ignored);
        CHECK(model.memory_in_use().bytes == before.bytes);

        // The bound: shard, owned gradients and states; k units; two gradients; tied tensors twice.
        const plan& p = model.plan();
        const auto aligned = [](index_t n) { return (n + 15) / 16 * 16; };
        index_t parameters = 0;
        index_t gradients = 0;
        index_t states = 0;
        for (std::size_t i = 0; i < p.items.size(); ++i) {
          const auto& tensor = p.spec.tensors()[p.items[i].tensor];
          for (const segment& s : p.segments[i]) {
            if (s.rank != comm.rank()) continue;
            parameters += aligned(s.count);
            if (tensor.options.frozen) continue;
            gradients += aligned(s.count);
            states += (tensor.role == tensor_role::matrix ? 1 : 2) * aligned(s.count);
          }
        }
        index_t largest = 0;
        index_t held = 0;
        for (const auto& group : p.groups) {
          index_t elements = 0;
          for (const std::size_t t : group.tensors)
            elements += aligned(p.spec.tensors()[t].elements());
          if (group.held) {
            held += elements;
          } else {
            largest = std::max(largest, elements);
          }
        }
        const index_t slots = ranks == 1 ? 0 : prefetch + 1;
        CHECK(before[memory_kind::parameters] <= 4 * parameters + (ranks == 1 ? 4 * 16 * 12 : 0));
        CHECK(before[memory_kind::gradients] <= 4 * gradients + (ranks == 1 ? 4 * 16 * 12 : 0));
        CHECK(before[memory_kind::optimizer_states] == 4 * states);
        CHECK(before[memory_kind::unit_buffers] <= 4 * slots * largest);
        CHECK(before[memory_kind::gradient_buffers] == 4 * 2 * largest);
        CHECK(before[memory_kind::held_buffers] == 4 * (ranks == 1 ? 1 : 2) * held);
      });
    }
  }
}

TEST_CASE("the next unit's gather starts before this one is released") {
  thread_world{3}.run([](auto comm) {
    std::vector<std::pair<model_event, std::string>> trace;
    sharded_model model{toy::odd_spec(), comm, owner_placement{}, toy::optimizers(),
                        model_options{.observer = [&](model_event what, std::string_view name) {
                          trace.emplace_back(what, name);
                        }}};
    model.initialize(toy::initialize);
    std::vector<double> ignored;
    toy::train(model, {.steps = 1, .micro_batches = 1}, ignored, ignored);

    const auto position = [&](model_event what, const std::string& name, std::size_t from = 0) {
      for (std::size_t i = from; i < trace.size(); ++i) {
        if (trace[i] == std::pair(what, name)) return i;
      }
      return trace.size();
    };
    const auto& units = model.plan().spec.units();
    std::size_t at = 0;
    for (std::size_t u = 0; u + 1 < units.size(); ++u) {
      // The embedding's tensor is tied and held; its other group goes by the unit's name.
      CHECK(position(model_event::gather_start, units[u + 1].name) <
            position(model_event::release, units[u].name));
      at = std::max(at, position(model_event::release, units[u].name));
    }
    at = position(model_event::release, "head", at + 1);  // the end of forward
    REQUIRE(at < trace.size());
    for (std::size_t u = units.size() - 1; u-- > 0;) {
      CHECK(position(model_event::gather_start, units[u].name, at + 1) <
            position(model_event::release, units[u + 1].name, at + 1));
      at = position(model_event::release, units[u + 1].name, at + 1);
    }
  });
}

TEST_CASE("a tensor has one address for the model's whole life") {
  for (const bool reshard : {true, false}) {
    thread_world{3}.run([&](auto comm) {
      sharded_model model{toy::odd_spec(), comm, owner_placement{}, toy::optimizers(),
                          model_options{.reshard_after_forward = reshard}};
      model.initialize(toy::initialize);
      std::vector<std::vector<const float*>> seen(model.forward_order().size());
      for (int step = 0; step < 3; ++step) {
        for (const std::size_t unit : model.forward_order()) {
          const auto weights = model.acquire(unit, pass::forward);
          if (step == 0) {
            seen[unit].assign(weights.pointers().begin(), weights.pointers().end());
          }
          CHECK(std::ranges::equal(seen[unit], weights.pointers()));
        }
        for (const std::size_t unit : model.backward_order()) {
          const auto weights = model.acquire(unit, pass::backward);
          CHECK(std::ranges::equal(seen[unit], weights.pointers()));
          const auto gradients = model.gradients(unit);
          gradients.zero();
          gradients.reduce();
        }
        model.step();
      }
      for (const auto& unit : seen) {
        for (const float* tensor : unit) CHECK(reinterpret_cast<std::uintptr_t>(tensor) % 64 == 0);
      }
    });
  }
}

TEST_CASE("counted bytes are the bytes that the engine has read") {
  thread_world{5}.run([](auto comm) {
    sharded_model model{toy::odd_spec(), comm, owner_placement{}, toy::optimizers()};
    model.initialize(toy::initialize);
    std::vector<double> ignored;
    toy::train(model, {}, ignored, ignored);
    traffic all;
    for (std::size_t where = 0; where < phases; ++where) {
      all = all + model.moved(static_cast<phase>(where));
    }
    CHECK(all.received == comm.bytes_read());
  });
}

TEST_CASE(
    "a model of many units uses the same buffers and operations in the first and later steps") {
  model_spec spec;
  for (int i = 0; i < 100; ++i) {
    spec.unit("unit." + std::to_string(i)).matrix("weight", 5, 3).vector("bias", 5);
  }
  thread_world{4}.run([&](auto comm) {
    sharded_model model{spec, comm, owner_placement{}, toy::optimizers()};
    model.initialize(toy::initialize);
    std::vector<double> ignored;
    toy::train(model, {.steps = 1}, ignored, ignored);
    const traffic first = model.moved(phase::forward) + model.moved(phase::backward);
    toy::train(model, {.steps = 9}, ignored, ignored);
    const traffic ten = model.moved(phase::forward) + model.moved(phase::backward);
    CHECK(ten.collectives == 10 * first.collectives);
    CHECK(ten.received == 10 * first.received);
  });
}

}  // namespace accounts_test
