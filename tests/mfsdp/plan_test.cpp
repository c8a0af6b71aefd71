#include "mfsdp/plan.hpp"

#include <doctest/doctest.h>

#include <array>
#include <functional>
#include <limits>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "../conformance/placement.hpp"
#include "mfsdp/placement/owner.hpp"
#include "mfsdp/placement/replicated.hpp"
#include "mfsdp/placement/rows.hpp"
#include "mfsdp/plan_text.hpp"
#include "mfsdp/planner.hpp"
#include "support/plan_fakes.hpp"

namespace plan_test {

using mfsdp::index_t;
using mfsdp::make_plan;
using mfsdp::model_spec;
using mfsdp::owner_placement;
using mfsdp::piece;
using mfsdp::plan;
using mfsdp::plan_error;
using mfsdp::replicated_placement;
using mfsdp::row_placement;
using mfsdp::segment;
using mfsdp::spec_error;

namespace {

using answer = std::vector<std::vector<segment>>;

// Answers what the test says.
template <bool WholeMatrices>
struct scripted {
  static constexpr std::string_view name = "scripted";
  static constexpr bool whole_matrices = WholeMatrices;
  static constexpr bool replicated = false;
  answer segments;
  [[nodiscard]] answer place(std::span<const mfsdp::placement_item>, int) const { return segments; }
};

// A matrix of 32 elements and an elementwise tensor of 3000, on 2 ranks.
model_spec two_tensors() {
  model_spec spec;
  spec.unit("u").matrix("m", 8, 4).elementwise("e", {3000});
  return spec;
}

std::string refusal(answer segments) {
  try {
    (void)make_plan(two_tensors(), 2, scripted<true>{std::move(segments)}, fakes::by_role{});
  } catch (const spec_error& refused) {
    return refused.what();
  }
  return "accepted";
}

// Costs that a test chooses.
struct stated_costs {
  static constexpr std::string_view name = "stated_costs";
  static constexpr bool whole_matrix = false;
  index_t time = 0;
  index_t state = 0;
  [[nodiscard]] index_t flops(mfsdp::matrix_shape) const { return time; }
  [[nodiscard]] std::array<mfsdp::state_spec, 1> states(mfsdp::matrix_shape) const {
    return {{{"state", state}}};
  }
  [[nodiscard]] index_t workspace_size(mfsdp::matrix_shape) const { return 0; }
};

struct routes_too_far {
  [[nodiscard]] std::tuple<fakes::two_moments> members() const { return {}; }
  [[nodiscard]] std::size_t route(const mfsdp::tensor_spec&) const { return 1; }
};

model_spec tied_spec() {
  model_spec spec;
  spec.unit("in").elementwise("table", {40, 50}).vector("gain", 20);
  spec.unit("mid").matrix("m", 6, 4, {.row_groups = 3}).vector("fixed", 9, {.frozen = true});
  spec.unit("out").tied("table", "in.table").tied("again", "in.table").tied("m", "mid.m");
  return spec;
}

}  // namespace

TEST_CASE("items carry shapes and costs") {
  const plan p = make_plan(tied_spec(), 2, owner_placement{}, fakes::by_role{});
  REQUIRE(p.items.size() == 6);
  CHECK(p.items[0].divisible);
  CHECK(p.items[0].shape == mfsdp::matrix_shape{1, 2000});
  CHECK(p.items[0].update_flops == 24000);
  CHECK(p.items[0].resident_bytes == 16 * 2000);
  CHECK(!p.items[3].divisible);
  CHECK(p.items[3].name == "mid.m");
  CHECK(p.items[3].offset == 8);
  CHECK(p.items[3].shape == mfsdp::matrix_shape{2, 4});
  CHECK(p.items[3].update_flops == fakes::newton_schulz{}.flops({2, 4}));
  CHECK(p.items[3].resident_bytes == 12 * 8);
  CHECK(p.items[5].update_flops == 0);
  CHECK(p.items[5].resident_bytes == 4 * 9);
  CHECK(p.tensors[0].optimizer == 1);
  CHECK(p.tensors[2].optimizer == 0);
  CHECK(p.tensors[3].optimizer == -1);
  CHECK(p.optimizers == std::vector<std::string>{"newton_schulz", "two_moments"});
}

TEST_CASE("every slice of a stack and every row group in it is an item, whatever the ranks") {
  model_spec spec;
  spec.unit("moe")
      .stack("gated", 3, 8, 5, {.row_groups = 2})
      .convolution("conv", {64, 3, 1, 7})
      .stack("none", 0, 8, 5);
  for (const int ranks : {1, 2, 7}) {
    CAPTURE(ranks);
    const plan p = make_plan(spec, ranks, owner_placement{}, fakes::newton_schulz{});
    REQUIRE(p.items.size() == 7);
    for (std::size_t i = 0; i < 6; ++i) {
      CHECK(p.items[i].tensor == 0);
      CHECK(p.items[i].shape == mfsdp::matrix_shape{4, 5});
      CHECK(p.items[i].offset == 20 * static_cast<index_t>(i));
      CHECK(!p.items[i].divisible);
      CHECK(p.items[i].update_flops == fakes::newton_schulz{}.flops({4, 5}));
      CHECK(p.segments[i].size() == 1);
    }
    CHECK(p.items[6].shape == mfsdp::matrix_shape{64, 21});
    CHECK(p.items[6].update_flops == fakes::newton_schulz{}.flops({64, 21}));
  }
}

TEST_CASE("slices of one stack have different owners") {
  model_spec spec;
  spec.unit("moe").stack("experts", 4, 8, 5);
  const plan p = make_plan(spec, 4, owner_placement{}, fakes::newton_schulz{});
  std::set<int> owners;
  for (const std::vector<segment>& segments : p.segments) {
    REQUIRE(segments.size() == 1);
    CHECK(segments[0].count == 40);
    owners.insert(segments[0].rank);
  }
  CHECK(owners == std::set<int>{0, 1, 2, 3});
}

TEST_CASE("a tied tensor is a group of its own") {
  const plan p = make_plan(tied_spec(), 2, owner_placement{}, fakes::by_role{});
  REQUIRE(p.groups.size() == 4);
  CHECK(p.groups[0].name == "in");
  CHECK(p.groups[1].name == "in.table");
  CHECK(p.groups[2].name == "mid");
  CHECK(p.groups[3].name == "mid.m");
  CHECK(!p.groups[0].held);
  CHECK(p.groups[1].held);
  CHECK(p.groups[0].tensors == std::vector<std::size_t>{1});
  CHECK(p.groups[2].tensors == std::vector<std::size_t>{3});
  CHECK(p.groups[1].units == std::vector<std::size_t>{0, 2});
  CHECK(p.groups[3].units == std::vector<std::size_t>{1, 2});
  CHECK(p.unit_groups == std::vector<std::vector<std::size_t>>{{0, 1}, {2, 3}, {1, 3}});
  CHECK(p.tensors[0].group == 1);
  CHECK(p.tensors[1].group == 0);
}

TEST_CASE("two names in one unit tie a tensor as well") {
  model_spec spec;
  spec.unit("u").vector("a", 3).tied("b", "u.a").vector("c", 4);
  const plan p = make_plan(spec, 1, owner_placement{}, fakes::two_moments{});
  CHECK(p.unit_groups == std::vector<std::vector<std::size_t>>{{0, 1}});
  CHECK(p.groups[1].name == "u.a");
  CHECK(p.groups[1].held);
}

TEST_CASE("buffers and shards are aligned, and neighbours move as one piece") {
  model_spec spec;
  spec.unit("u")
      .matrix("a", 8, 4, {.row_groups = 2})
      .matrix("b", 3, 5)
      .matrix("c", 4, 4, {.frozen = true});
  const answer segments{{{0, 0, 16}}, {{0, 0, 16}}, {{1, 0, 15}}, {{1, 0, 16}}};
  const plan p = make_plan(spec, 2, scripted<true>{segments}, fakes::newton_schulz{});
  const mfsdp::transfer_group& group = p.groups.at(0);
  CHECK(p.tensors[1].offset == 32);
  CHECK(p.tensors[2].offset == 48);
  CHECK(group.parameters.full_elements == 64);
  CHECK(!group.resident);
  CHECK(group.parameters.shard_elements == std::vector<index_t>{32, 32});
  CHECK(group.parameters.pieces ==
        std::vector<piece>{{0, 0, 0, 32}, {1, 32, 0, 15}, {1, 48, 16, 16}});
  CHECK(group.gradients.pieces == std::vector<piece>{{0, 0, 0, 32}, {1, 32, 0, 15}});
  CHECK(p.local_segments.at(3).local == 16);
  CHECK(mfsdp::elements_of(group.parameters.pieces, 1) == 31);
}

TEST_CASE("one rank holds everything where the buffer has it") {
  model_spec spec;
  spec.unit("u").matrix("a", 6, 3, {.row_groups = 3}).vector("v", 5);
  const plan p = make_plan(spec, 1, owner_placement{}, fakes::by_role{});
  const mfsdp::transfer_group& group = p.groups.at(0);
  CHECK(group.resident);
  CHECK(group.parameters.pieces.empty());
  CHECK(group.gradients.pieces == std::vector<piece>{{0, 0, 0, 18}, {0, 32, 32, 5}});
  CHECK(p.local_segments.at(1).local == 6);
  CHECK(p.local_segments.at(3).local == 32);
}

TEST_CASE("errors of the description") {
  const fakes::two_moments any;
  model_spec spec;
  CHECK_THROWS_WITH_AS((void)make_plan(spec, 1, owner_placement{}, any), "the model has no units",
                       spec_error);
  CHECK_THROWS_AS((void)make_plan(two_tensors(), 0, owner_placement{}, any), spec_error);
  spec.unit("bare");
  CHECK_THROWS_WITH_AS((void)make_plan(spec, 1, owner_placement{}, any),
                       "unit 'bare' has no tensors", spec_error);
}

TEST_CASE("errors of the optimizers") {
  CHECK_THROWS_WITH_AS(
      (void)make_plan(two_tensors(), 1, owner_placement{}, fakes::newton_schulz{}),
      "tensor 'u.e' is no matrix, and optimizer 'newton_schulz' updates whole matrices only: use "
      "mfsdp::mixed or mfsdp::parameter_groups to give it another optimizer",
      spec_error);
  model_spec vectors;
  vectors.unit("u").vector("v", 3);
  CHECK_THROWS_WITH_AS((void)make_plan(vectors, 1, owner_placement{}, fakes::by_role{}),
                       "optimizer 'newton_schulz' updates whole matrices, but the model has no "
                       "trainable matrix for it",
                       spec_error);
  CHECK_THROWS_WITH_AS((void)make_plan(vectors, 1, owner_placement{}, routes_too_far{}),
                       "tensor 'u.v' has no optimizer: add a group that takes it, such as "
                       "mfsdp::for_rest(optimizer), or freeze it",
                       spec_error);

  constexpr index_t half = std::numeric_limits<index_t>::max() / 2 + 1;
  CHECK_NOTHROW((void)make_plan(vectors, 1, owner_placement{}, stated_costs{half, 0}));
  CHECK_THROWS_AS((void)make_plan(two_tensors(), 1, owner_placement{}, stated_costs{half, 0}),
                  spec_error);
  CHECK_THROWS_AS((void)make_plan(vectors, 1, owner_placement{}, stated_costs{0, half}),
                  spec_error);
  CHECK_THROWS_AS((void)make_plan(vectors, 1, owner_placement{}, stated_costs{-1, 0}), spec_error);
}

TEST_CASE("a placement that errs is refused by tensor and rank") {
  const std::vector<segment> matrix{{0, 0, 32}};
  const std::vector<segment> cut{{0, 0, 1024}, {1, 1024, 1976}};
  CHECK(refusal({matrix, cut}) == "accepted");
  CHECK(refusal({{{1, 0, 32}}, {{1, 1024, 1976}, {0, 0, 1024}}}) == "accepted");

  const std::string of_e = "placement 'scripted', tensor 'u.e'";
  CHECK(refusal({matrix}) == "placement 'scripted' answers for 1 of 2 items");
  CHECK(refusal({matrix, {{0, 0, 2048}, {1, 1024, 1976}}}) ==
        of_e + ", rank 1: its segment at 1024 overlaps another that ends at 2048");
  CHECK(refusal({matrix, {{0, 0, 1024}, {1, 2048, 952}}}) ==
        of_e + ", rank 1: elements 1024 to 2047 before its segment belong to no rank");
  CHECK(refusal({matrix, {{0, 0, 1024}}}) == of_e + ": elements 1024 to 2999 belong to no rank");
  CHECK(refusal({matrix, {}}) == of_e + ": elements 0 to 2999 belong to no rank");
  CHECK(refusal({matrix, {{2, 0, 3000}}}) == of_e + ", rank 2: there are only 2 ranks");
  CHECK(refusal({matrix, {{-1, 0, 3000}}}) == of_e + ", rank -1: there are only 2 ranks");
  CHECK(refusal({matrix, {{0, 0, 0}, {1, 0, 3000}}}) ==
        of_e + ", rank 0: a segment at 0 has 0 elements");
  CHECK(refusal({matrix, {{0, 0, 3001}}}) ==
        of_e + ", rank 0: its segment at 0 has 3001 elements, beyond the end at 3000");
  CHECK(refusal({matrix, {{0, 0, 64}, {1, 64, 2936}}}) ==
        of_e + ", rank 1: the cut at 64 is not a multiple of 1024");
  CHECK(refusal({{{0, 0, 16}, {1, 16, 16}}, cut}) ==
        "placement 'scripted', tensor 'u.m', rank 0: the matrix is cut");

  const answer anywhere{{{0, 0, 5}, {1, 5, 27}}, {{0, 0, 64}, {1, 64, 2936}}};
  CHECK_NOTHROW((void)make_plan(two_tensors(), 2, scripted<false>{anywhere}, fakes::two_moments{}));
}

TEST_CASE("text and back") {
  const plan p = make_plan(two_tensors(), 2, owner_placement{}, fakes::by_role{});
  CHECK(mfsdp::to_text(p) ==
        "mfsdp plan 1\n"
        "ranks 2\n"
        "placement sharded owner\n"
        "bytes 4 4 4 0 4\n"
        "optimizer newton_schulz\n"
        "optimizer two_moments\n"
        "unit u\n"
        "tensor u m matrix 0 1 8 4\n"
        "item 3200 384 0:0:32\n"
        "tensor u e elementwise 1 1 3000\n"
        "item 36000 48000 0:0:1024 1:1024:1976\n"
        "end\n");
  CHECK(mfsdp::plan_hash(p) == 0x626b2f127bdfbf7cu);

  const auto round_trip = [](const plan& original) {
    const std::string text = mfsdp::to_text(original);
    const plan parsed = mfsdp::parse_plan(text);
    CHECK(mfsdp::to_text(parsed) == text);
    CHECK(parsed.unit_groups == original.unit_groups);
    CHECK(parsed.local_segments.size() == original.local_segments.size());
    REQUIRE(parsed.groups.size() == original.groups.size());
    for (std::size_t g = 0; g < parsed.groups.size(); ++g) {
      CHECK(parsed.groups[g].parameters.pieces == original.groups[g].parameters.pieces);
      CHECK(parsed.groups[g].gradients.pieces == original.groups[g].gradients.pieces);
      CHECK(parsed.groups[g].parameters.shard_elements ==
            original.groups[g].parameters.shard_elements);
    }
  };
  std::mt19937 random(7);
  for (int trial = 0; trial < 20; ++trial) {
    const model_spec spec = mfsdp_test::random_spec(random);
    for (const int ranks : {1, 3}) {
      round_trip(make_plan(spec, ranks, owner_placement{}, mfsdp_test::any_pieces{}));
      round_trip(make_plan(spec, ranks, row_placement{}, mfsdp_test::any_pieces{}));
      round_trip(make_plan(spec, ranks, replicated_placement{}, mfsdp_test::any_pieces{}));
    }
  }
  round_trip(make_plan(tied_spec(), 2, owner_placement{}, fakes::by_role{}));

  model_spec batches;
  batches.unit("u")
      .stack("s", 2, 6, 5, {.row_groups = 3})
      .convolution("c", {4, 3, 2})
      .stack("none", 0, 6, 5);
  const plan batched = make_plan(batches, 2, owner_placement{}, fakes::newton_schulz{});
  round_trip(batched);
  CHECK(mfsdp::to_text(batched).find("tensor u s stack 0 3 2 6 5\nitem ") != std::string::npos);
  CHECK(mfsdp::to_text(batched).find("tensor u c matrix 0 1 4 3 2\nitem ") != std::string::npos);
  CHECK(mfsdp::to_text(batched).ends_with("tensor u none stack 0 1 0 6 5\nend\n"));
}

TEST_CASE("units whose tensors were declared in turns keep their order in text") {
  model_spec spec;
  auto a = spec.unit("a");
  auto b = spec.unit("b");
  b.vector("first", 1);
  a.tied("x", "b.first").vector("second", 2);
  b.tied("y", "a.second").vector("third", 3);
  a.tied("z", "b.third");
  const std::string text =
      mfsdp::to_text(make_plan(spec, 2, owner_placement{}, fakes::two_moments{}));
  CHECK(mfsdp::to_text(mfsdp::parse_plan(text)) == text);
}

TEST_CASE("the hash sees every choice") {
  const auto hash = [](const auto& placement, int ranks, const model_spec& spec) {
    return mfsdp::plan_hash(make_plan(spec, ranks, placement, fakes::two_moments{}));
  };
  const auto reference = hash(owner_placement{}, 2, two_tensors());
  CHECK(reference == hash(owner_placement{}, 2, two_tensors()));
  CHECK(reference != hash(owner_placement{}, 3, two_tensors()));
  CHECK(reference != hash(row_placement{}, 2, two_tensors()));
  CHECK(reference != hash(replicated_placement{}, 2, two_tensors()));
  model_spec other;
  other.unit("u").matrix("m", 4, 8).elementwise("e", {3000});
  CHECK(reference != hash(owner_placement{}, 2, other));
}

TEST_CASE("malformed text is refused with its line") {
  const std::string good =
      mfsdp::to_text(make_plan(two_tensors(), 2, owner_placement{}, fakes::by_role{}));
  const auto fault = [&](std::string_view part, std::string_view by) {
    std::string text = good;
    text.replace(text.find(part), part.size(), by);
    try {
      (void)mfsdp::parse_plan(text);
    } catch (const plan_error& refused) {
      return std::string(refused.what());
    }
    return std::string("accepted");
  };
  CHECK(fault("plan 1", "plan 2") == "plan text, line 1: 'plan 2' where 'plan 1' is expected");
  CHECK(fault("ranks 2", "ranks 0") == "plan text, line 2: a plan needs at least one rank");
  CHECK(fault("ranks 2", "ranks two").starts_with("plan text, line 2: 'two' is not a number"));
  CHECK(fault("ranks 2", "ranks") == "plan text, line 2: a word is missing");
  CHECK(fault("ranks 2", "ranks 02") == "plan text, line 2: not as to_text writes it");
  CHECK(fault("sharded", "spread") == "plan text, line 3: not as to_text writes it");
  CHECK(fault("bytes 4 4 4 0 4", "bytes 4 4 4 0 3") == "plan text, line 4: no element has 3 bytes");
  CHECK(fault("bytes 4 4", "bytes 0 4") == "plan text, line 4: no element has 0 bytes");
  CHECK(fault("bytes 4", "bytes 8") == "plan text, line 4: '8' is not a number from 0 to 4");
  CHECK(fault("unit u", "unit v") == "plan text, line 8: no unit is named 'u'");
  CHECK(fault("unit u", "unit u\nunit u") == "plan text, line 8: unit 'u' is declared twice");
  CHECK(fault("unit u", "unit u\nunit v") == "plan text, line 13: unit 'v' has no tensors");
  CHECK(fault("matrix 0", "matrix 2") == "plan text, line 8: no optimizer has the number '2'");
  CHECK(fault("m matrix", "m tensor") == "plan text, line 8: 'tensor' with 2 extents is no tensor");
  CHECK(fault("m matrix", "m stack") == "plan text, line 8: 'stack' with 2 extents is no tensor");
  CHECK(fault("0 1 8 4", "0 3 8 4").starts_with("plan text, line 8: tensor 'u.m': 3 row groups"));
  CHECK(fault("0 1 8 4", "0 2 8 4").starts_with("plan text, line 9: placement 'owner', tensor"));
  CHECK(fault("item 3200", "items 3200") == "plan text, line 9: 'items' where 'item' is expected");
  CHECK(fault("0:0:32", "0:0:31") ==
        "plan text, line 9: placement 'owner', tensor 'u.m': elements 31 to 31 belong to no rank");
  CHECK(
      fault("0:0:32", "2:0:32").starts_with("plan text, line 9: '2' is not a number from 0 to 1"));
  CHECK(fault("0:0:32", "0:32").starts_with("plan text, line 9: '' is not a number"));
  CHECK(fault("end\n", "") == "plan text, line 12: the text ends before its 'end' line");
  CHECK(fault("end\n", "fin\n") == "plan text, line 12: 'fin' starts no line of a plan");
  CHECK(fault("end\n", "end\nmore\n") == "plan text, line 13: not as to_text writes it");
  CHECK_THROWS_AS((void)mfsdp::parse_plan(""), plan_error);
}

TEST_CASE("a text cannot ask for more memory or larger numbers than a plan can have") {
  const auto fault = [](const std::string& text) {
    try {
      (void)mfsdp::parse_plan(text);
    } catch (const plan_error& refused) {
      return std::string(refused.what());
    }
    return std::string("accepted");
  };
  const auto text_of = [](index_t ranks, std::string_view placement, int tensors, index_t elements,
                          index_t flops) {
    std::string text =
        fmt::format("mfsdp plan 1\nranks {}\nplacement {}\nbytes 4 4 4 0 4\noptimizer a\nunit u\n",
                    ranks, placement);
    for (int t = 0; t < tensors; ++t) {
      text += fmt::format("tensor u t{} vector 0 1 {}\nitem {} 0\n", t, elements, flops);
    }
    return text + "end\n";
  };
  CHECK(fault(text_of(3, "replicated p", 2, 5, 7)) == "accepted");
  CHECK(
      fault(text_of(1 << 20, "replicated p", 20, 1, 0)) ==
      "plan text, line 47: the layout of 1048576 ranks would take 2256 MiB; more than 512 are not "
      "read");
  const index_t largest = std::numeric_limits<index_t>::max();
  CHECK(fault(text_of(1, "replicated p", 40, largest / 64, 0)) ==
        "plan text, line 71: the model has too many elements to count");
  CHECK(fault(text_of(1, "replicated p", 2, 5, largest))
            .starts_with("plan text, line 10: tensor 'u.t1': a cost of 9223372036854775807"));
}

}  // namespace plan_test
