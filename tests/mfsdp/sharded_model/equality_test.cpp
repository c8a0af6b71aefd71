// Where a matrix lives must not change a single bit of training.
#include <doctest/doctest.h>

#include "support/toy_training.hpp"

namespace equality_test {

using namespace mfsdp;

namespace {

constexpr int rank_counts[] = {1, 2, 3, 4, 5, 7, 8};

const toy::outcome& plain(const toy::settings& how) {
  static std::map<std::tuple<int, int, double>, toy::outcome> known;
  const auto [place, fresh] = known.try_emplace({how.ranks, how.micro_batches, how.max_norm});
  if (fresh) place->second = toy::run_plain(toy::odd_spec(), toy::optimizers(), how);
  return place->second;
}

// Gated experts, a fused stack of one, convolutions, and stacks without matrices or elements.
model_spec batches_spec() {
  model_spec spec;
  spec.unit("moe")
      .stack("gated", 5, 14, 9, {.row_groups = 2})
      .stack("down", 5, 9, 7)
      .stack("none", 0, 9, 7)
      .stack("flat", 3, 0, 7);
  spec.unit("net")
      .convolution("stem", {16, 3, 1, 7})
      .convolution("mixer", {12, 1, 4}, {.row_groups = 3})
      .stack("fixed", 2, 5, 5, {.frozen = true})
      .vector("bias", 16);
  spec.unit("out").tied("again", "moe.down");
  return spec;
}

bool is_finite(const toy::outcome& result) {
  for (const auto& [name, values] : result.parameters) {
    for (const float value : values) {
      if (!std::isfinite(value)) return false;
    }
  }
  return !result.parameters.empty();
}

}  // namespace

TEST_CASE("replicated training equals a plain loop that uses nothing of the runtime") {
  for (const int ranks : rank_counts) {
    for (const int micro_batches : {1, 3}) {
      for (const double max_norm : {0.0, 0.5}) {
        CAPTURE(ranks);
        CAPTURE(micro_batches);
        CAPTURE(max_norm);
        const toy::settings how{
            .ranks = ranks, .micro_batches = micro_batches, .max_norm = max_norm};
        const auto result =
            toy::run_sharded(toy::odd_spec(), replicated_placement{}, toy::optimizers(), how);
        CHECK(is_finite(result));
        CHECK(result == plain(how));
      }
    }
  }
}

TEST_CASE("owner-shaped training equals a plain loop bit for bit, however it is scheduled") {
  for (const int ranks : rank_counts) {
    for (const int prefetch : {0, 1, 2, 9}) {
      for (const bool reshard : {true, false}) {
        CAPTURE(ranks);
        CAPTURE(prefetch);
        CAPTURE(reshard);
        const toy::settings how{
            .ranks = ranks,
            .micro_batches = 1 + prefetch % 2,
            .max_norm = 0.5,
            .options = {.prefetch = prefetch, .reshard_after_forward = reshard}};
        CHECK(toy::run_sharded(toy::odd_spec(), owner_placement{}, toy::optimizers(), how) ==
              plain(how));
      }
    }
  }
}

TEST_CASE("every owner strategy gives the same bits") {
  for (const auto strategy : {owner_strategy::balanced, owner_strategy::ordered,
                              owner_strategy::role_greedy, owner_strategy::scope_greedy}) {
    const toy::settings how{.ranks = 4};
    CHECK(toy::run_sharded(toy::odd_spec(), owner_placement{.strategy = strategy},
                           toy::optimizers(), how) == plain(how));
  }
}

TEST_CASE("rows with gathered matrices equal owners bit for bit") {
  // Cuts between blocks change the last bits of the norm, so this baseline is compared unclipped.
  for (const int ranks : rank_counts) {
    CAPTURE(ranks);
    const toy::settings how{.ranks = ranks, .max_norm = 0};
    const auto rules = toy::optimizers();
    CHECK(toy::run_sharded(toy::odd_spec(), row_placement{},
                           mixed{gathered{rules.matrix}, rules.elementwise}, how) == plain(how));
  }
}

TEST_CASE("elementwise optimizers alone need no whole matrices and give the same bits") {
  for (const int ranks : {1, 2, 3, 5}) {
    CAPTURE(ranks);
    const toy::settings how{.ranks = ranks, .max_norm = 0};
    const auto rules = toy::optimizers();
    const auto expected =
        toy::run_plain(toy::odd_spec(), mixed{rules.elementwise, rules.elementwise}, how);
    CHECK(toy::run_sharded(toy::odd_spec(), owner_placement{}, rules.elementwise, how) == expected);
    CHECK(toy::run_sharded(toy::odd_spec(), row_placement{}, rules.elementwise, how) == expected);
  }
}

TEST_CASE("one rank equals plain training for tensors of one element") {
  model_spec spec;
  spec.unit("only").vector("scalar", 1).matrix("weight", 1, 1);
  const toy::settings how{.ranks = 1};
  const auto result = toy::run_sharded(spec, owner_placement{}, toy::optimizers(), how);
  CHECK(result == toy::run_plain(spec, toy::optimizers(), how));
  CHECK(result.parameters.at("only.scalar")[0] != toy::initial_value(spec.tensors()[0], 0));
}

TEST_CASE("more ranks than tensors train") {
  model_spec spec;
  spec.unit("a").matrix("weight", 6, 4);
  spec.unit("b").matrix("weight", 4, 6).vector("bias", 6);
  const toy::settings how{.ranks = 8};
  CHECK(toy::run_sharded(spec, owner_placement{}, toy::optimizers(), how) ==
        toy::run_plain(spec, toy::optimizers(), how));
}

TEST_CASE("stacks and convolutions equal a plain loop over their matrices bit for bit") {
  for (const int ranks : {1, 2, 3, 8}) {
    CAPTURE(ranks);
    const toy::settings how{.ranks = ranks};
    const auto expected = toy::run_plain(batches_spec(), toy::optimizers(), how);
    CHECK(is_finite(expected));
    CHECK(toy::run_sharded(batches_spec(), owner_placement{}, toy::optimizers(), how) == expected);
    CHECK(toy::run_sharded(batches_spec(), replicated_placement{}, toy::optimizers(), how) ==
          expected);

    const toy::settings unclipped{.ranks = ranks, .max_norm = 0};
    const auto rules = toy::optimizers();
    CHECK(toy::run_sharded(batches_spec(), row_placement{},
                           mixed{gathered{rules.matrix}, rules.elementwise},
                           unclipped) == toy::run_plain(batches_spec(), rules, unclipped));
  }
}

TEST_CASE("every slice of a stack is orthogonalised by itself, a convolution as one matrix") {
  model_spec spec;
  spec.unit("u").stack("experts", 3, 8, 5, {.row_groups = 2}).convolution("kernel", {12, 2, 1, 3});
  const auto gradient = [](std::size_t k) {
    return std::sin(1.7f * static_cast<float>(k)) * static_cast<float>(1 + k % 5);
  };
  const muon rule{.weight_decay = 0.1};

  // One matrix after the other, in memory of its own.
  const auto updated = [&](std::size_t offset, matrix_shape shape) {
    cpu_backend backend;
    auto w = backend.allocate<float>(shape.elements());
    auto g = backend.allocate<float>(shape.elements());
    auto momentum = backend.allocate<float>(shape.elements());
    auto workspace = backend.allocate<float>(rule.workspace_size(shape));
    backend.fill(momentum.span(), 0.0f);
    for (std::size_t k = 0; k < w.span().size(); ++k) {
      w.span()[k] = 0.01f * static_cast<float>(offset + k);
      g.span()[k] = gradient(offset + k);
    }
    rule.update(backend, {momentum.span()}, matrix_view<float>(w.span().data(), shape),
                matrix_view<const float>(g.span().data(), shape),
                update_context<float>{1, 1, workspace.span()});
    return std::vector<float>(w.span().begin(), w.span().end());
  };
  std::map<std::string, std::vector<float>> expected;
  for (std::size_t offset = 0; offset < 120; offset += 20) {
    const auto slice = updated(offset, {4, 5});
    auto& all = expected["u.experts"];
    all.insert(all.end(), slice.begin(), slice.end());
  }
  expected["u.kernel"] = updated(0, {12, 6});

  const auto check = [&](auto placement) {
    thread_world{4}.run([&](auto comm) {
      sharded_model model{spec, comm, placement, rule};
      model.initialize([](const tensor_spec&, std::span<float> values, index_t first) {
        for (float& value : values) value = 0.01f * static_cast<float>(first++);
      });
      const auto gradients = model.gradients(0);
      gradients.zero();
      for (std::size_t i = 0; comm.rank() == 2 && i < 2; ++i) {
        for (std::size_t k = 0; k < gradients[i].flat().size(); ++k) {
          gradients[i].flat()[k] = gradient(k);
        }
      }
      gradients.reduce();
      model.step();
      const auto parameters = toy::read_parameters(model);
      if (comm.rank() == 0) CHECK(parameters == expected);
    });
  };
  check(owner_placement{});
  check(replicated_placement{});
}

}  // namespace equality_test
