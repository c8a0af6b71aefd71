#include "mfsdp/plan_report.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "mfsdp/placement/owner.hpp"
#include "mfsdp/placement/replicated.hpp"
#include "mfsdp/placement/rows.hpp"
#include "mfsdp/plan_text.hpp"
#include "mfsdp/planner.hpp"
#include "support/plan_fakes.hpp"

namespace plan_report_test {

namespace {

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

struct gathering : fakes::newton_schulz {
  static constexpr bool gathers = true;
};

mfsdp::model_spec small_spec() {
  mfsdp::model_spec spec;
  spec.unit("u").matrix("fused", 8, 4, {.row_groups = 2}).vector("gain", 6);
  spec.unit("w").matrix("m", 4, 8).vector("frozen", 10, {.frozen = true});
  return spec;
}

}  // namespace

TEST_CASE("loads count what each rank holds") {
  const mfsdp::plan plan = make_plan(small_spec(), 1, mfsdp::owner_placement{}, fakes::by_role{});
  const mfsdp::plan_loads loads = mfsdp::loads_of(plan);
  CHECK(loads.matrices == std::vector<mfsdp::index_t>{3});
  CHECK(loads.total_matrices == 3);
  CHECK(loads.resident_bytes == std::vector<mfsdp::index_t>{64 * 12 + 6 * 16 + 10 * 4});
  CHECK(loads.resident_bytes_ideal == loads.resident_bytes[0]);
  CHECK(loads.update_flops_ideal == loads.update_flops[0]);
  CHECK(loads.optimizers[0][0].tensors == 2);
  CHECK(loads.optimizers[0][0].elements == 64);
  CHECK(loads.optimizers[1][0].tensors == 1);
  CHECK(loads.optimizers[1][0].elements == 6);
}

TEST_CASE("loads of all ranks add up to the model, and repeat when replicated") {
  const mfsdp::model_spec spec = fakes::gpt2_spec();
  const auto bytes = [](const mfsdp::plan& plan) {
    mfsdp::index_t sum = 0;
    for (const mfsdp::index_t b : mfsdp::loads_of(plan).resident_bytes) sum += b;
    return sum;
  };
  mfsdp::index_t expected = 0;
  for (const mfsdp::tensor_spec& t : spec.tensors()) {
    expected += t.elements() * (t.role == mfsdp::tensor_role::matrix ? 12 : 16);
  }
  CHECK(bytes(make_plan(spec, 7, mfsdp::owner_placement{}, fakes::by_role{})) == expected);
  CHECK(bytes(make_plan(spec, 3, mfsdp::replicated_placement{}, fakes::by_role{})) == 3 * expected);
  CHECK(
      mfsdp::loads_of(make_plan(spec, 3, mfsdp::row_placement{}, fakes::two_moments{})).matrices ==
      std::vector<mfsdp::index_t>{72, 72, 72});
}

TEST_CASE("a share of a cost does not overflow") {
  constexpr mfsdp::index_t large = mfsdp::index_t{1} << 62;
  CHECK(mfsdp::detail::share(large, 1 << 20, 1 << 21) == large / 2);
  CHECK(mfsdp::detail::share(large, 1, 1) == large);
  CHECK(mfsdp::detail::share(7, 2, 3) == 4);
}

TEST_CASE("fan-out of a unit with few matrices") {
  const mfsdp::plan plan = make_plan(fakes::llama_spec(fakes::llama_3_8b), 8,
                                     mfsdp::owner_placement{}, fakes::by_role{});
  const std::vector<mfsdp::group_load> groups = mfsdp::group_loads_of(plan);
  CHECK(groups.size() == 34);
  CHECK(groups[1].largest >= mfsdp::index_t{14336} * 4096);
  CHECK(groups[1].fan_out == doctest::Approx(2.15).epsilon(0.01));
}

TEST_CASE("the report names ranks without a matrix") {
  const std::string few = mfsdp::describe(
      make_plan(fakes::gpt2_spec(), 100, mfsdp::owner_placement{}, fakes::by_role{}));
  CHECK(contains(few, "more ranks than matrices: 28 of 100 ranks own no matrix, for 72 matrices"));
  CHECK(contains(few, "embedding.tokens (tied)"));
  CHECK(contains(few, "... 88 more"));
  CHECK(std::count(few.begin(), few.end(), '\n') < 45);

  const std::string enough =
      mfsdp::describe(make_plan(fakes::gpt2_spec(), 8, mfsdp::owner_placement{}, fakes::by_role{}));
  CHECK(!contains(enough, "no matrix"));
  CHECK(contains(enough, "8 ranks, placement owner, 14 units, 148 tensors"));
  CHECK(contains(enough, "largest against ideal"));
}

TEST_CASE("the report of a model without matrices or cost") {
  mfsdp::model_spec spec;
  spec.unit("u").vector("v", 0);
  const std::string text =
      mfsdp::describe(make_plan(spec, 2, mfsdp::owner_placement{}, fakes::two_moments{}));
  CHECK(!contains(text, "own no matrix"));
  CHECK(contains(text, "= 1.000"));
  CHECK(
      contains(mfsdp::describe(make_plan(spec, 1, mfsdp::owner_placement{}, fakes::two_moments{})),
               "(on every rank)"));
}

TEST_CASE("an optimizer that gathers matrices costs every rank its whole update and its states") {
  mfsdp::model_spec spec;
  spec.unit("u").matrix("m", 8, 4);
  const mfsdp::plan p = make_plan(spec, 4, mfsdp::row_placement{}, gathering{});
  const mfsdp::plan_loads loads = loads_of(p);
  const mfsdp::index_t state = gathering{}.states({8, 4})[0].elements;
  for (const mfsdp::index_t bytes : loads.resident_bytes) CHECK(bytes == 8 * 8 + 4 * state);
  for (const mfsdp::index_t flops : loads.update_flops) CHECK(flops == gathering{}.flops({8, 4}));
  CHECK(to_text(mfsdp::parse_plan(to_text(p))) == to_text(p));
}

}  // namespace plan_report_test
