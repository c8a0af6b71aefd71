#include "mfsdp/placement/owner.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <vector>

#include "conformance/placement.hpp"
#include "mfsdp/plan_report.hpp"
#include "support/plan_fakes.hpp"

namespace owner_test {

using mfsdp::index_t;
using mfsdp::owner_placement;
using mfsdp::owner_strategy;
using mfsdp::placement_item;
using mfsdp::segment;

namespace {

constexpr auto block = static_cast<index_t>(mfsdp::block_elements);

placement_item matrix(index_t elements, std::size_t unit = 0) {
  placement_item item;
  item.unit = unit;
  item.shape = {1, elements};
  item.update_flops = elements;
  item.resident_bytes = 12 * elements;
  return item;
}

placement_item filler(index_t elements, std::size_t unit = 0) {
  placement_item item = matrix(elements, unit);
  item.divisible = true;
  item.resident_bytes = 16 * elements;
  return item;
}

// The block of the published tests: q, k, v, projection, two halves of up, down, four norms.
std::vector<placement_item> published_units(std::size_t units) {
  std::vector<placement_item> items;
  for (std::size_t u = 0; u < units; ++u) {
    items.push_back(filler(16, u));
    for (const index_t elements : {256, 256, 256, 256, 512, 512, 512}) {
      items.push_back(matrix(elements, u));
    }
    for (int norm = 0; norm < 3; ++norm) items.push_back(filler(16, u));
  }
  return items;
}

// Owners of the items, which must be whole.
std::vector<int> owners(const std::vector<placement_item>& items, int ranks,
                        owner_strategy strategy) {
  std::vector<int> result;
  for (const auto& segments : owner_placement{strategy}.place(items, ranks)) {
    REQUIRE(segments.size() == 1);
    result.push_back(segments[0].rank);
  }
  return result;
}

std::vector<index_t> totals(const std::vector<placement_item>& items, int ranks,
                            owner_strategy strategy) {
  std::vector<index_t> result(static_cast<std::size_t>(ranks));
  const std::vector<int> owner = owners(items, ranks, strategy);
  for (std::size_t i = 0; i < items.size(); ++i) {
    result[static_cast<std::size_t>(owner[i])] += items[i].elements();
  }
  return result;
}

double largest_over_mean(const std::vector<index_t>& loads) {
  const double sum = std::accumulate(loads.begin(), loads.end(), 0.0);
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) *
         static_cast<double>(loads.size()) / sum;
}

double largest_over(const std::vector<index_t>& loads, index_t ideal) {
  return static_cast<double>(*std::max_element(loads.begin(), loads.end())) /
         static_cast<double>(ideal);
}

mfsdp::plan plan_owners(const mfsdp::model_spec& spec, int ranks) {
  return mfsdp::make_plan(spec, ranks, owner_placement{}, fakes::by_role{});
}

}  // namespace

TEST_CASE("owner: conformance") {
  for (const auto strategy : {owner_strategy::balanced, owner_strategy::ordered,
                              owner_strategy::role_greedy, owner_strategy::scope_greedy}) {
    mfsdp_test::check_placement(owner_placement{strategy});
  }
}

TEST_CASE("ordered: matrices in order, everything else of the unit after them") {
  CHECK(owners(published_units(1), 8, owner_strategy::ordered) ==
        std::vector<int>{7, 0, 1, 2, 3, 4, 5, 6, 7, 7, 7});
  CHECK(owners(published_units(1), 3, owner_strategy::ordered) ==
        std::vector<int>{2, 0, 1, 2, 0, 1, 2, 0, 2, 2, 2});
}

TEST_CASE("role_greedy and scope_greedy: published totals of four equal units") {
  const std::vector<placement_item> items = published_units(4);
  CHECK(totals(items, 8, owner_strategy::role_greedy) ==
        std::vector<index_t>{1536, 1280, 1152, 1280, 1344, 1280, 1280, 1344});
  CHECK(totals(items, 8, owner_strategy::scope_greedy) ==
        std::vector<index_t>{1344, 1344, 1344, 1344, 1280, 1280, 1280, 1280});
  const std::vector<int> owner = owners(items, 8, owner_strategy::scope_greedy);
  CHECK(std::vector<int>{owner[5], owner[16], owner[27], owner[38]} ==
        std::vector<int>{0, 3, 6, 1});
}

TEST_CASE("role_greedy: published assignment over earlier loads") {
  std::vector<mfsdp::detail::owner_role> roles = mfsdp::detail::collect_roles(published_units(1));
  std::vector<index_t> loads{0, 0, 0, 1024, 1024, 0, 0, 0};
  mfsdp::detail::assign_by_elements(roles, loads);
  CHECK(loads == std::vector<index_t>{512, 512, 512, 1024, 1024, 512, 320, 256});
  std::vector<int> owner(11);
  for (const auto& role : roles) {
    for (const std::size_t i : role.items) owner[i] = role.owner;
  }
  CHECK(owner == std::vector<int>{6, 5, 6, 7, 5, 0, 1, 2, 6, 6, 6});
}

TEST_CASE("balanced: exchanges improve on longest first") {
  // Longest first ends at 14 and 16; 15 and 15 is possible.
  const std::vector<placement_item> items{matrix(9), matrix(7), matrix(6), matrix(5), matrix(3)};
  std::vector<index_t> loads(2);
  const auto segments = owner_placement{}.place(items, 2);
  for (std::size_t i = 0; i < items.size(); ++i) {
    loads[static_cast<std::size_t>(segments[i].at(0).rank)] += items[i].elements();
  }
  CHECK(loads == std::vector<index_t>{15, 15});
}

TEST_CASE("balanced: exchanges do not raise the largest bytes") {
  // The only exchange that helps swaps 6 for 5, and would bring 500 bytes to the rank of 9.
  std::vector<placement_item> items{matrix(9), matrix(7), matrix(6), matrix(5), matrix(3)};
  for (placement_item& item : items) item.resident_bytes = 100;
  items[0].resident_bytes = 300;
  items[2].resident_bytes = 200;
  CHECK(owners(items, 2, owner_strategy::balanced) == std::vector<int>{0, 1, 1, 0, 1});
  items[2].resident_bytes = 100;
  CHECK(owners(items, 2, owner_strategy::balanced) == std::vector<int>{0, 1, 0, 1, 1});
}

TEST_CASE("balanced: equal matrices of a unit spread over ranks") {
  const std::vector<placement_item> items{matrix(64, 0), matrix(64, 0), matrix(64, 1),
                                          matrix(64, 1)};
  CHECK(owners(items, 4, owner_strategy::balanced) == std::vector<int>{0, 1, 2, 3});
  CHECK(owners(items, 2, owner_strategy::balanced) == std::vector<int>{0, 1, 0, 1});
}

TEST_CASE("balanced: frozen matrices level bytes, since they take no time") {
  std::vector<placement_item> items(6, matrix(64));
  for (placement_item& item : items) item.update_flops = 0;
  std::vector<int> owner = owners(items, 3, owner_strategy::balanced);
  std::sort(owner.begin(), owner.end());
  CHECK(owner == std::vector<int>{0, 0, 1, 1, 2, 2});
}

TEST_CASE("balanced: filler raises the lowest ranks to one level") {
  // 3 * 4096 elements of 12 bytes on rank 0, none on the others: only these are filled.
  const std::vector<placement_item> items{filler(4 * block), matrix(12 * block), filler(2 * block)};
  const auto segments = owner_placement{}.place(items, 3);
  CHECK(segments[1] == std::vector<segment>{{0, 0, 12 * block}});
  CHECK(segments[0] == std::vector<segment>{{1, 0, 3 * block}, {2, 3 * block, block}});
  CHECK(segments[2] == std::vector<segment>{{2, 0, 2 * block}});
}

TEST_CASE("balanced: a tensor below one block stays whole, and the last block may be short") {
  const auto segments =
      owner_placement{}.place(std::vector{filler(block - 1), filler(3 * block + 7)}, 2);
  CHECK(segments[0] == std::vector<segment>{{0, 0, block - 1}});
  CHECK(segments[1] == std::vector<segment>{{0, 0, block}, {1, block, 2 * block + 7}});
}

TEST_CASE("balanced: sums near the end of 64 bits do not overflow") {
  placement_item huge = filler(index_t{1} << 57);
  huge.resident_bytes = index_t{1} << 61;
  placement_item heavy = matrix(index_t{1} << 40);
  heavy.update_flops = index_t{1} << 61;
  const std::vector<placement_item> items{huge, heavy, heavy, heavy};
  const auto segments = owner_placement{}.place(items, 7);
  CHECK(segments[0].size() == 7);
  CHECK(segments[1] != segments[2]);
}

// Largest over mean, as in the table of longest-first figures for these shapes.
TEST_CASE("balanced: optimizer time of real models") {
  const auto time = [](const mfsdp::model_spec& spec, int ranks) {
    return largest_over_mean(mfsdp::loads_of(plan_owners(spec, ranks)).update_flops);
  };
  CHECK(time(fakes::gpt2_spec(), 8) < 1.005);
  CHECK(time(fakes::gpt2_spec(), 64) < 1.605);
  CHECK(time(fakes::llama_spec(fakes::llama_3_8b), 8) < 1.005);
  CHECK(time(fakes::llama_spec(fakes::llama_3_8b), 64) < 1.065);
  CHECK(time(fakes::llama_spec(fakes::qwen3_8b), 8) < 1.005);
  CHECK(time(fakes::llama_spec(fakes::qwen3_8b), 64) < 1.115);
  CHECK(time(fakes::llama_spec(fakes::llama_3_70b), 64) < 1.015);
  CHECK(time(fakes::llama_spec(fakes::llama_3_70b), 512) < 1.705);
}

TEST_CASE("balanced: embedding and head level the bytes of real models") {
  for (const mfsdp::model_spec& spec : {fakes::gpt2_spec(), fakes::llama_spec(fakes::llama_3_8b),
                                        fakes::llama_spec(fakes::qwen3_8b)}) {
    for (const int ranks : {8, 64}) {
      const mfsdp::plan plan = plan_owners(spec, ranks);
      const mfsdp::plan_loads loads = mfsdp::loads_of(plan);
      CHECK(largest_over(loads.resident_bytes, loads.resident_bytes_ideal) < 1.001);
      std::size_t segments = 0;
      for (const auto& of_item : plan.segments) segments += of_item.size();
      CHECK(segments <= plan.items.size() + static_cast<std::size_t>(ranks));
    }
  }
}

TEST_CASE("balanced: planning a large model takes milliseconds") {
  const mfsdp::model_spec spec = fakes::llama_spec(fakes::llama_3_70b);
  const auto start = std::chrono::steady_clock::now();
  const mfsdp::plan plan = plan_owners(spec, 512);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  CHECK(plan.local_segments.size() >= plan.items.size());
  CHECK(elapsed.count() < 2.0);  // 0.01 s optimized; the margin is for sanitizers and busy machines
}

TEST_CASE("balanced: more ranks than matrices") {
  const mfsdp::plan plan = plan_owners(fakes::gpt2_spec(), 100);
  const mfsdp::plan_loads loads = mfsdp::loads_of(plan);
  CHECK(loads.total_matrices == 72);
  CHECK(std::count(loads.matrices.begin(), loads.matrices.end(), 1) == 72);
  CHECK(largest_over(loads.update_flops, loads.update_flops_ideal) == 1.0);
}

}  // namespace owner_test
