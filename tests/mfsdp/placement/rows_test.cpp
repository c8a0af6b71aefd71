#include "mfsdp/placement/rows.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "conformance/placement.hpp"

namespace rows_test {

using mfsdp::row_placement;
using mfsdp::segment;

namespace {

std::vector<segment> place(mfsdp::matrix_shape shape, int ranks) {
  mfsdp::placement_item item;
  item.shape = shape;
  return row_placement{}.place(std::vector{item}, ranks).at(0);
}

}  // namespace

TEST_CASE("rows: conformance") {
  mfsdp_test::check_placement(row_placement{});
}

TEST_CASE("rows: ten rows over four ranks are 3, 3, 2, 2") {
  CHECK(place({10, 5}, 4) ==
        std::vector<segment>{{0, 0, 15}, {1, 15, 15}, {2, 30, 10}, {3, 40, 10}});
}

TEST_CASE("rows: one row is cut by elements") {
  CHECK(place({1, 7}, 3) == std::vector<segment>{{0, 0, 3}, {1, 3, 2}, {2, 5, 2}});
}

TEST_CASE("rows: more ranks than rows leave the last ones empty") {
  CHECK(place({2, 3}, 4) == std::vector<segment>{{0, 0, 3}, {1, 3, 3}});
  CHECK(place({0, 3}, 4).empty());
  CHECK(place({3, 0}, 4).empty());
}

}  // namespace rows_test
