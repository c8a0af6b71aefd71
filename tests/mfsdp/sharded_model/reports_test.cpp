// What sharding runtimes have been reported to get wrong, as behaviour; docs/failures.md has the
// list.
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <thread>

#include "support/toy_training.hpp"

namespace reports_test {

using namespace mfsdp;

namespace {

struct update_count {
  int updates = 0;
  index_t elements = 0;
};

// Descent with momentum that counts its updates. Counters belong to one rank.
template <bool WholeMatrix>
struct counted {
  update_count* count;

  static constexpr std::string_view name = WholeMatrix ? "counted_matrices" : "counted_pieces";
  static constexpr bool whole_matrix = WholeMatrix;
  [[nodiscard]] index_t flops(matrix_shape s) const { return 4 * s.elements(); }
  [[nodiscard]] std::array<state_spec, 1> states(matrix_shape s) const {
    return {{{"momentum", s.elements()}}};
  }
  [[nodiscard]] index_t workspace_size(matrix_shape) const { return 0; }

  template <class B, class T>
  void update(B& backend, const std::array<std::span<T>, 1>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient, const update_context<T>&) const {
    ++count->updates;
    count->elements += parameter.size();
    backend.transform(
        [](auto& w, auto& m, const auto& g) {
          m = 0.5f * m + g;
          w = w - 0.01f * m;
        },
        parameter.flat(), state[0], gradient.flat());
  }
};

// What one rank has updated and allocated.
struct books {
  update_count matrices;
  update_count pieces;
  int allocations = 0;
  int allowed = 1 << 20;
  index_t live = 0;  // bytes

  [[nodiscard]] mixed<counted<true>, counted<false>> rules() {
    return {counted<true>{&matrices}, counted<false>{&pieces}};
  }
};

// Host memory that counts what is alive and runs out after some allocations.
struct limited_memory : eigen_backend {
  explicit limited_memory(books& b) : account(&b) {}

  template <class T>
  struct buffer {
    host_buffer<T> memory;
    std::shared_ptr<void> entry;
    [[nodiscard]] std::span<T> span() { return memory.span(); }
    [[nodiscard]] std::span<const T> span() const { return memory.span(); }
  };

  template <class T>
  [[nodiscard]] buffer<T> allocate(index_t elements) const {
    if (account->allocations == account->allowed) throw std::bad_alloc();
    ++account->allocations;
    const index_t bytes = elements * static_cast<index_t>(sizeof(T));
    account->live += bytes;
    return {eigen_backend::allocate<T>(elements),
            std::shared_ptr<void>(nullptr, [a = account, bytes](void*) { a->live -= bytes; })};
  }

  books* account;
};

// Runs body(model, books) on every rank of an initialized model.
template <class Body>
void on_ranks(int ranks, const model_spec& spec, Body&& body, model_options options = {}) {
  thread_world{ranks}.run([&](auto comm) {
    books mine;
    sharded_model model{spec, comm, owner_placement{}, mine.rules(), options, limited_memory(mine)};
    model.initialize(toy::initialize);
    body(model, mine);
  });
}

// The parameters after some steps, and after the same steps of a plain loop.
std::map<std::string, std::vector<float>> trained(const model_spec& spec,
                                                  const toy::settings& how) {
  std::map<std::string, std::vector<float>> end;
  on_ranks(how.ranks, spec, [&](auto& model, books&) {
    std::vector<double> ignored;
    toy::train(model, how, ignored, ignored);
    auto parameters = toy::read_parameters(model);
    if (model.rank() == 0) end = std::move(parameters);
  });
  return end;
}

std::map<std::string, std::vector<float>> trained_plainly(const model_spec& spec,
                                                          const toy::settings& how) {
  books ignored;
  return toy::run_plain(spec, ignored.rules(), how).parameters;
}

// One backward over all units; value(tensor, element) is this rank's gradient.
template <class Model, class Value>
void backward(Model& model, Value&& value) {
  for (const std::size_t unit : model.backward_order()) {
    const auto weights = model.acquire(unit, pass::backward);
    const auto gradients = model.gradients(unit);
    const auto& references = model.plan().spec.units()[unit].tensors;
    for (std::size_t i = 0; i < references.size(); ++i) {
      const auto gradient = gradients[i];
      for (std::size_t k = 0; k < gradient.flat().size(); ++k) {
        const float g = value(references[i].tensor, k);
        gradient.flat()[k] = gradient.accumulate ? gradient.flat()[k] + g : g;
      }
    }
    gradients.reduce();
  }
}

float wave(std::size_t tensor, std::size_t element) {
  return std::sin(0.9f * static_cast<float>(element) + 2.1f * static_cast<float>(tensor));
}

model_spec two_units() {
  model_spec spec;
  spec.unit("first").matrix("weight", 9, 7).vector("bias", 9);
  spec.unit("second")
      .matrix("weight", 5, 9)
      .matrix("fused", 6, 5, {.row_groups = 3})
      .vector("bias", 5);
  return spec;
}

// The message with which a run of this model fails, in time.
template <class Body>
std::string failure(int ranks, const model_spec& spec, Body&& body) {
  const auto start = std::chrono::steady_clock::now();
  std::string message;
  try {
    on_ranks(ranks, spec, body, {.prefetch = 0, .timeout = std::chrono::seconds(5)});
  } catch (const collective_error& e) {
    message = e.what();
  }
  CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  return message;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("matrices of fewer rows than ranks train when cut by rows") {
  model_spec spec;
  spec.unit("a").matrix("eighteen", 18, 5).vector("three", 3);
  spec.unit("b").matrix("five", 5, 18).matrix("one", 1, 6);
  const toy::settings how{.ranks = 8, .max_norm = 0};
  std::vector<std::map<std::string, std::vector<float>>> ends(8);
  thread_world{8}.run([&](auto comm) {
    books mine;
    const auto rules = mine.rules();
    sharded_model model{spec,
                        comm,
                        row_placement{},
                        mixed{gathered{rules.matrix}, rules.elementwise},
                        model_options{},
                        limited_memory(mine)};
    model.initialize(toy::initialize);
    std::vector<double> ignored;
    toy::train(model, how, ignored, ignored);
    ends[static_cast<std::size_t>(comm.rank())] = toy::read_parameters(model);
    CHECK(model.memory_in_use()[memory_kind::workspace] ==
          4 * 2 * 96);  // gradient and parameter of 18 x 5
  });
  for (const auto& end : ends) CHECK(end == trained_plainly(spec, how));
}

TEST_CASE("tensors without elements train and stay, even alone in a unit or tied") {
  model_spec spec;
  spec.unit("nothing").vector("none", 0).matrix("flat", 0, 7).vector("tied", 0);
  spec.unit("some").matrix("weight", 6, 4).matrix("thin", 3, 0).vector("empty", 0);
  spec.unit("tail").tied("again", "nothing.tied");
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const toy::settings how{.ranks = ranks};
    const auto end = trained(spec, how);
    CHECK(end == trained_plainly(spec, how));
    CHECK(end.at("nothing.flat").empty());
    for (const float w : end.at("some.weight")) CHECK(std::isfinite(w));
    on_ranks(ranks, spec, [](auto& model, books&) {
      for (const std::size_t unit : model.backward_order()) {
        const auto gradients = model.gradients(unit);
        gradients.zero();
        CHECK(gradients.pointers().size() == model.plan().spec.units()[unit].tensors.size());
        gradients.reduce();
      }
      CHECK(model.clip(1.0) == 0);
      CHECK(model.step().skipped.empty());
    });
  }
}

TEST_CASE("owners of very different sizes in one unit train") {
  model_spec spec;
  auto unit = spec.unit("all");
  unit.matrix("dot", 1, 1).matrix("large", 64, 64).matrix("small", 3, 5).matrix("tall", 170, 2);
  unit.matrix("wide", 1, 40).matrix("even", 16, 16).vector("scalar", 1).vector("long", 3000);
  for (const int ranks : {2, 5, 8}) {
    CAPTURE(ranks);
    const toy::settings how{.ranks = ranks};
    CHECK(trained(spec, how) == trained_plainly(spec, how));
  }
}

TEST_CASE("a tensor with two names in one unit gets the gradients of both") {
  model_spec spec;
  spec.unit("first").matrix("weight", 5, 5).tied("again", "first.weight").vector("bias", 5);
  spec.unit("second").vector("bias", 5);
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const toy::settings how{.ranks = ranks};
    CHECK(trained(spec, how) == trained_plainly(spec, how));
    // In whatever order they are written.
    on_ranks(ranks, spec, [&](auto& model, books&) {
      const std::vector<float> ones(25, 1.0f);
      for (const std::size_t unit : model.backward_order()) {
        const auto gradients = model.gradients(unit);
        gradients.zero();
        if (unit == 0) {
          gradients.put("again", ones);
          gradients.put("weight", ones);
        }
        gradients.reduce();
      }
      CHECK(model.clip(1e9) == doctest::Approx(2 * ranks * 5.0));
    });
  }
}

TEST_CASE("backwards in a row add up, with one update and the same bytes for each") {
  constexpr int micro_batches = 4;
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    const auto run = [&](bool in_parts) {
      std::map<std::string, std::vector<float>> end;
      on_ranks(ranks, two_units(),
               [&](auto& model, books& mine) {
                 traffic one;  // micro-batch: all units gathered once and reduced once
                 int segments = 0;
                 for (const transfer_group& group : model.plan().groups) {
                   const auto all = [&](const buffer_layout& layout) {
                     index_t sum = 0;
                     for (const piece& p : layout.pieces) sum += p.count;
                     return sum;
                   };
                   const index_t own = elements_of(group.parameters.pieces, model.rank());
                   const index_t others = all(group.parameters) - own;
                   const index_t reduced = elements_of(group.gradients.pieces, model.rank());
                   if (!group.resident) one += {1, 4 * own * (ranks - 1), 4 * others};
                   one += {1, 4 * (all(group.gradients) - reduced), 4 * reduced * (ranks - 1)};
                 }
                 for (const local_segment& s : model.plan().local_segments) {
                   segments += s.rank == model.rank();
                 }
                 for (int step = 1; step <= 2; ++step) {
                   for (int micro = 0; micro < (in_parts ? micro_batches : 1); ++micro) {
                     const traffic before = model.moved(phase::backward);
                     backward(model, [&](std::size_t tensor, std::size_t k) {
                       float sum = 0;
                       for (int part = 0; part < micro_batches; ++part) {
                         if (in_parts && part != micro) continue;
                         sum += wave(tensor + static_cast<std::size_t>(7 * part + model.rank()), k);
                       }
                       return sum;
                     });
                     CHECK(model.moved(phase::backward) - before == one);
                   }
                   model.step();
                   CHECK(mine.matrices.updates + mine.pieces.updates == step * segments);
                 }
                 auto parameters = toy::read_parameters(model);
                 if (model.rank() == 0) end = std::move(parameters);
               },
               {.prefetch = 0});
      return end;
    };
    const auto whole = run(false);
    for (const auto& [name, values] : run(true)) {
      for (std::size_t k = 0; k < values.size(); ++k) {
        CHECK(values[k] == doctest::Approx(whole.at(name)[k]).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("a gradient that comes late is applied") {
  on_ranks(2, two_units(), [](auto& model, books&) {
    const auto start = toy::read_parameters(model);
    for (int step = 0; step < 3; ++step) {
      backward(model, [&](std::size_t tensor, std::size_t) {
        return tensor == 0 && step < 2 ? 0.0f : 1.0f;
      });
      model.step();
      CHECK((toy::read_parameters(model).at("first.weight") == start.at("first.weight")) ==
            (step < 2));
    }
  });
}

TEST_CASE("the norm is that of the whole gradient, on every rank, and counts a tied tensor once") {
  const model_spec spec = toy::odd_spec();
  double squares = 0;
  for (std::size_t t = 0; t < spec.tensors().size(); ++t) {
    if (spec.tensors()[t].options.frozen) continue;
    const double uses = t == 0 ? 2 : 1;  // tokens, in two units
    for (index_t k = 0; k < spec.tensors()[t].elements(); ++k) {
      const double g = uses * static_cast<double>(wave(t, static_cast<std::size_t>(k)));
      squares += g * g;
    }
  }
  for (const int ranks : {1, 2, 3, 4, 5, 7, 8}) {
    CAPTURE(ranks);
    std::vector<double> norms(static_cast<std::size_t>(ranks));
    on_ranks(ranks, spec, [&](auto& model, books&) {
      // Each rank has the gradient of its own share of the elements, the sum is the same for all.
      backward(model, [&](std::size_t tensor, std::size_t k) {
        const bool mine = static_cast<int>(k % static_cast<std::size_t>(ranks)) == model.rank();
        return mine ? wave(tensor, k) : 0.0f;
      });
      norms[static_cast<std::size_t>(model.rank())] = model.clip(1.0);
      CHECK(model.clip(1.0) == doctest::Approx(1.0));
    });
    for (const double norm : norms) {
      CHECK(norm == norms.front());
      CHECK(norm == doctest::Approx(std::sqrt(squares)).epsilon(1e-12));
    }
  }
}

TEST_CASE("all memory is allocated before the first step and given back with the model") {
  for (const int prefetch : {0, 2}) {
    thread_world{3}.run([&](auto comm) {
      books mine;
      {
        sharded_model model{toy::odd_spec(),
                            comm,
                            owner_placement{},
                            mine.rules(),
                            model_options{.prefetch = prefetch},
                            limited_memory(mine)};
        mine.allowed = mine.allocations;
        const index_t live = mine.live;
        CHECK(live == model.memory_in_use().total());
        model.initialize(toy::initialize);
        std::vector<double> ignored;
        toy::train(model, {.steps = 10}, ignored, ignored);
        toy::read_parameters(model);
        CHECK(mine.live == live);
      }
      CHECK(mine.live == 0);
    });
  }
}

TEST_CASE("an evaluation leaves no unit gathered") {
  for (const int prefetch : {0, 1}) {
    on_ranks(3, two_units(),
             [](auto& model, books&) {
               toy::read_parameters(model);
               const traffic first = model.moved(phase::evaluate);
               CHECK(first.collectives == 2);
               toy::read_parameters(model);
               CHECK(model.moved(phase::evaluate) - first == first);
             },
             {.prefetch = prefetch});
  }
}

TEST_CASE("another order of reductions on one rank is an error that names both units") {
  const std::string swapped = failure(3, two_units(), [](auto& model, books&) {
    for (const std::size_t unit : model.backward_order()) {
      const auto gradients = model.gradients(model.rank() == 1 ? 1 - unit : unit);
      gradients.zero();
      gradients.reduce();
    }
    model.step();
  });
  CHECK(contains(swapped, "reduce-scatter 'first'"));
  CHECK(contains(swapped, "reduce-scatter 'second'"));
  CHECK(contains(swapped, "rank 1"));
}

TEST_CASE("a unit that one rank leaves out of its backward is an error that names it") {
  const std::string left_out = failure(3, two_units(), [](auto& model, books&) {
    for (const std::size_t unit : model.backward_order()) {
      if (unit == 1 && model.rank() == 2) continue;
      const auto gradients = model.gradients(unit);
      gradients.zero();
      gradients.reduce();
    }
  });
  CHECK(contains(left_out, "reduce-scatter 'second'"));
  CHECK(contains(left_out, "rank 2"));
}

TEST_CASE("ranks whose models differ in length all say so, before they allocate") {
  std::atomic<int> told = 0;
  CHECK_THROWS_AS(thread_world{3}.run([&](auto comm) {
    model_spec spec = two_units();
    if (comm.rank() == 2) spec.unit("third").vector("only", 4).vector("here", 4);
    books mine;
    try {
      sharded_model model{
          spec, comm, owner_placement{}, mine.rules(), model_options{}, limited_memory(mine)};
    } catch (const plan_error&) {
      CHECK(mine.allocations == 0);
      ++told;
      throw;
    }
  }),
                  plan_error);
  CHECK(told == 3);
}

TEST_CASE("a rank out of memory ends the others with its cause") {
  for (int allowed = 0; allowed < 8; ++allowed) {
    CAPTURE(allowed);
    std::atomic<int> told = 0;
    const auto start = std::chrono::steady_clock::now();
    CHECK_THROWS_AS(thread_world{3}.run([&](auto comm) {
      books mine;
      if (comm.rank() == 1) mine.allowed = allowed;
      try {
        sharded_model model{toy::odd_spec(),   comm,
                            owner_placement{}, mine.rules(),
                            model_options{},   limited_memory(mine)};
        model.initialize(toy::initialize);
        std::vector<double> ignored;
        toy::train(model, {}, ignored, ignored);
      } catch (const rank_failure& e) {
        told += contains(e.what(), "rank 1 failed first") &&
                contains(e.what(), std::bad_alloc().what());
        throw;
      }
    }),
                    std::bad_alloc);
    CHECK(told == 2);
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(20));
  }
}

TEST_CASE("each optimizer updates exactly what the plan gives it") {
  for (const int ranks : {1, 4}) {
    CAPTURE(ranks);
    on_ranks(ranks, toy::odd_spec(), [](auto& model, books& mine) {
      backward(model, wave);
      model.step();
      const auto rank = static_cast<std::size_t>(model.rank());
      const plan_loads loads = loads_of(model.plan());
      CHECK(mine.matrices.elements == loads.optimizers[0][rank].elements);
      CHECK(mine.pieces.elements == loads.optimizers[1][rank].elements);
      index_t matrices = 0;
      for (const tensor_spec& t : model.plan().spec.tensors()) {
        if (t.role == tensor_role::matrix && !t.options.frozen) matrices += t.elements();
      }
      CHECK(model.sum(static_cast<double>(mine.matrices.elements)) ==
            static_cast<double>(matrices));
    });
  }
}

TEST_CASE("an order that prefetch did not expect makes the same calls on all ranks") {
  model_spec spec;
  for (int i = 0; i < 6; ++i) spec.unit("unit." + std::to_string(i)).matrix("weight", 5, 4);
  for (const int late : {0, 1, 2}) {
    CAPTURE(late);
    thread_world{3}.run([&](auto comm) {
      books mine;
      model_options options{.timeout = std::chrono::seconds(10)};
      options.observer = [&](model_event what, std::string_view name) {
        if (what == model_event::gather_start && name == "unit.2" && comm.rank() == late) {
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
        }
      };
      sharded_model model{spec,         comm,    owner_placement{},
                          mine.rules(), options, limited_memory(mine)};
      model.initialize(toy::initialize);
      (void)model.acquire(1, pass::forward);  // posts the gather of unit 2, which nobody asks for
      (void)model.acquire(3, pass::forward);  // would like unit 2's buffer for unit 4
      backward(model, wave);
      model.step();
    });
  }
}

}  // namespace reports_test
