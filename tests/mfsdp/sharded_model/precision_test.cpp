// Bytes of a model in 16 bits: moved, held and planned; and how close it stays to one in float.
#include <doctest/doctest.h>

#include <array>

#include "support/toy_training.hpp"

namespace precision_test {

using namespace mfsdp;

namespace {

constexpr index_t aligned(index_t elements, index_t element_size) {
  const index_t step = 64 / element_size;
  return (elements + step - 1) / step * step;
}

using masters = precision<bfloat16>;
using pure = precision<bfloat16, bfloat16, float, bfloat16>;
using narrow = precision<bfloat16, bfloat16, float, bfloat16, bfloat16>;

template <class P>
void check_memory() {
  thread_world{3}.run([](auto comm) {
    sharded_model model{toy::odd_spec(), comm, owner_placement{}, toy::optimizers(), P{}};
    const plan& p = model.plan();
    const index_t compute = sizeof(typename P::compute);
    const index_t gradient = sizeof(typename P::gradient);
    const index_t reduce = sizeof(typename P::reduce);
    const index_t state = sizeof(typename P::state);
    const index_t smallest = std::min(compute, gradient);
    index_t parameters = 0;
    index_t masters_of_trainable = 0;
    index_t gradients = 0;
    index_t states = 0;
    index_t scratch = 0;
    const auto rules = toy::optimizers();
    for (const local_segment& segment : p.local_segments) {
      if (segment.rank != comm.rank()) continue;
      // For initial values and clipping, if they are not in place.
      if (compute == 2 || reduce == 2) scratch = std::max(scratch, segment.count);
      const tensor_spec& tensor = p.spec.tensors()[p.items[segment.item].tensor];
      const index_t elements = aligned(segment.count, smallest);
      parameters += elements;
      if (tensor.options.frozen) continue;
      masters_of_trainable += elements;
      gradients += elements;
      const bool matrix = tensor.role == tensor_role::matrix;
      states += (matrix ? 1 : 2) * aligned(segment.count, state);
      // A copy in float of whatever an update reads in 16 bits.
      const int copies =
          (reduce == 2) + (sizeof(typename P::master) == 2) + (state == 2 ? matrix ? 1 : 2 : 0);
      const index_t rule = matrix ? rules.matrix.workspace_size(p.items[segment.item].shape) : 0;
      scratch = std::max(scratch, copies * aligned(segment.count, 4) + rule);
    }
    index_t largest = 0;
    index_t held = 0;
    for (const auto& group : p.groups) {
      index_t elements = 0;
      for (const std::size_t t : group.tensors) {
        elements += aligned(p.spec.tensors()[t].elements(), smallest);
      }
      (group.held ? held : largest) = group.held ? held + elements : std::max(largest, elements);
    }
    const memory_usage& usage = model.memory_in_use();
    CHECK(usage[memory_kind::parameters] ==
          compute * parameters + (P::has_master ? 4 * masters_of_trainable : 0));
    CHECK(usage[memory_kind::gradients] == reduce * gradients);
    CHECK(usage[memory_kind::optimizer_states] == state * states);
    CHECK(usage[memory_kind::unit_buffers] == compute * 2 * largest);
    CHECK(usage[memory_kind::gradient_buffers] == gradient * 2 * largest);
    CHECK(usage[memory_kind::held_buffers] == (compute + gradient) * held);
    CHECK(usage[memory_kind::workspace] == 4 * scratch);
  });
}

}  // namespace

TEST_CASE("bf16 halves the bytes that are gathered and reduced, and the step moves none") {
  constexpr int ranks = 4;
  const toy::settings how{.ranks = ranks, .max_norm = 0};
  using moved_bytes = std::array<traffic, phases>;
  const auto moved = [&](auto types) {
    std::vector<moved_bytes> by_rank(ranks);
    toy::run_sharded(
        toy::odd_spec(), owner_placement{}, toy::optimizers(), how,
        [&](auto& model) {
          for (std::size_t p = 0; p < phases; ++p) {
            by_rank[static_cast<std::size_t>(model.rank())][p] = model.moved(static_cast<phase>(p));
          }
        },
        types);
    return by_rank;
  };
  // Owners may be others, since bytes decide who holds what: sums over ranks.
  const auto whole = moved(precision<>{});
  const auto half = moved(masters{});
  for (const phase p : {phase::forward, phase::backward, phase::evaluate}) {
    traffic all, all_half;
    for (int rank = 0; rank < ranks; ++rank) {
      all += whole[static_cast<std::size_t>(rank)][static_cast<std::size_t>(p)];
      all_half += half[static_cast<std::size_t>(rank)][static_cast<std::size_t>(p)];
    }
    CHECK(all.received > 0);
    CHECK(all_half.collectives == all.collectives);
    CHECK(2 * all_half.received == all.received);
    CHECK(2 * all_half.sent == all.sent);
  }
  for (const auto& of_rank : half) {
    CHECK(of_rank[static_cast<std::size_t>(phase::step)] == traffic{});
  }
}

TEST_CASE("memory in use is that of the types, to the byte") {
  check_memory<precision<>>();
  check_memory<masters>();
  check_memory<pure>();
  check_memory<narrow>();
  check_memory<precision<bfloat16, bfloat16, bfloat16>>();
  check_memory<precision<float, float16, float, float, float16>>();
}

TEST_CASE("the plan counts the bytes of the types") {
  const model_spec spec = toy::odd_spec();
  const auto resident = [&](const storage_bytes& bytes) {
    index_t sum = 0;
    const plan p = make_plan(spec, 3, owner_placement{}, toy::optimizers(), bytes);
    for (const index_t b : loads_of(p).resident_bytes) sum += b;
    return sum;
  };
  index_t trainable = 0;
  index_t frozen = 0;
  index_t states = 0;
  for (const tensor_spec& t : spec.tensors()) {
    (t.options.frozen ? frozen : trainable) += t.elements();
    if (!t.options.frozen) states += (t.role == tensor_role::matrix ? 1 : 2) * t.elements();
  }
  CHECK(resident(precision<>::bytes) == 8 * trainable + 4 * frozen + 4 * states);
  CHECK(resident(masters::bytes) == 10 * trainable + 2 * frozen + 4 * states);
  CHECK(resident(pure::bytes) == 6 * trainable + 2 * frozen + 4 * states);
  CHECK(resident(narrow::bytes) == 6 * trainable + 2 * frozen + 2 * states);
}

TEST_CASE("bf16 training with float masters stays close to the float run") {
  toy::settings how{.ranks = 3, .steps = 12};
  const auto ignore = [](auto&) {};
  const auto exact = toy::run_sharded(toy::odd_spec(), owner_placement{}, toy::optimizers(), how);
  const auto mixed_run = toy::run_sharded(toy::odd_spec(), owner_placement{}, toy::optimizers(),
                                          how, ignore, masters{});
  CHECK(mixed_run != exact);
  for (std::size_t i = 0; i < exact.losses.size(); ++i) {
    CHECK(mixed_run.losses[i] == doctest::Approx(exact.losses[i]).epsilon(0.01));
  }
}

TEST_CASE("gradients of any size in bf16 are normalised in float") {
  model_spec spec;
  spec.unit("unit").matrix("weight", 20, 30);
  for (const float size : {1e-6f, 1.0f, 1e5f}) {
    CAPTURE(size);
    thread_world{2}.run([&](auto comm) {
      sharded_model model{spec, comm, owner_placement{}, toy::optimizers(), masters{}};
      model.initialize(toy::initialize);
      const auto gradients = model.gradients(0);
      for (index_t i = 0; i < gradients[0].size(); ++i) {
        gradients[0].data()[i] = bfloat16(size * std::sin(static_cast<float>(i * i)));
      }
      gradients.reduce();
      model.step();
      const auto unit = model.acquire(0, pass::evaluate);
      double moved = 0;
      for (index_t i = 0; i < unit[0].size(); ++i) {
        const double before = static_cast<double>(toy::initial_value(spec.tensors()[0], i));
        moved += std::abs(static_cast<double>(unit[0].data()[i]) - before);
      }
      // Muon's step is orthogonal whatever the gradient's norm: 0.02 of 1/sqrt(30) an element.
      CHECK(moved / 600 == doctest::Approx(0.02 / std::sqrt(30.0)).epsilon(0.5));
    });
  }
}

TEST_CASE("frozen tensors are rounded once and have no master") {
  model_spec spec;
  spec.unit("unit").vector("frozen", 100, {.frozen = true}).vector("trained", 100);
  thread_world{1}.run([&](auto comm) {
    sharded_model model{spec, comm, owner_placement{}, adamw{}, masters{}};
    model.initialize(toy::initialize);
    // Both in Compute, one in Master: gaps are those of 32 and 16 elements.
    CHECK(model.memory_in_use()[memory_kind::parameters] == 2 * (128 + 128) + 4 * 128);
    const auto unit = model.acquire(0, pass::evaluate);
    for (std::size_t i = 0; i < 2; ++i) {
      const tensor_spec& tensor = spec.tensors()[i];
      for (index_t k = 0; k < 100; ++k) {
        CHECK(unit[i].data()[k] == bfloat16(toy::initial_value(tensor, k)));
      }
    }
  });
}

}  // namespace precision_test
