#include "mfsdp/collective/parcels.hpp"

#include <doctest/doctest.h>

#include <numeric>
#include <vector>

namespace parcels_test {

namespace {

using mfsdp::index_t;
using mfsdp::piece;
using mfsdp::detail::parcel;
using mfsdp::detail::parcels_of;

// What the parcels of an owner cover, element by element.
std::vector<piece> covered(const std::vector<parcel>& parcels, int owner) {
  std::vector<piece> elements;
  for (const parcel& p : parcels) {
    index_t count = 0;
    for (const parcel::stretch& s : p.stretches) {
      count += s.count;
      for (index_t i = 0; i < s.count; ++i) elements.push_back({owner, s.in + i, s.out + i, 1});
    }
    CHECK(count == p.count);
  }
  return elements;
}

}  // namespace

TEST_CASE(
    "parcels cover the pieces of their owner once, in order, and are no larger than allowed") {
  const std::vector<piece> pieces{{0, 0, 10, 100},  {1, 100, 0, 7},  {0, 107, 110, 3},
                                  {0, 200, 500, 2}, {1, 300, 7, 64}, {0, 400, 600, 33}};
  for (const index_t largest : {1, 5, 32, 64, 1000}) {
    for (int owner = 0; owner < 3; ++owner) {
      CAPTURE(largest);
      CAPTURE(owner);
      std::vector<piece> expected;
      for (const piece& p : pieces) {
        for (index_t i = 0; i < p.count; ++i) {
          if (p.rank == owner) expected.push_back({owner, p.full + i, p.local + i, 1});
        }
      }
      const auto parcels = parcels_of(pieces, owner, false, largest);
      CHECK(covered(parcels, owner) == expected);
      for (const parcel& p : parcels) CHECK(p.count <= largest);
    }
  }
}

TEST_CASE("a gather reads the shard and writes the unit, a sum the other way round") {
  const std::vector<piece> pieces{{0, 5, 70, 2}};
  const auto gather = parcels_of(pieces, 0, true, 100);
  CHECK(gather[0].stretches[0].in == 70);
  CHECK(gather[0].stretches[0].out == 5);
  const auto sum = parcels_of(pieces, 0, false, 100);
  CHECK(sum[0].stretches[0].in == 5);
  CHECK(sum[0].stretches[0].out == 70);
}

TEST_CASE("small pieces share a parcel, large ones are whole stretches") {
  const std::vector<piece> pieces{
      {0, 0, 0, 10}, {0, 20, 10, 10}, {0, 40, 20, 500}, {0, 600, 520, 10}};
  const auto parcels = parcels_of(pieces, 0, false, 160);
  REQUIRE(parcels.size() == 6);
  CHECK(parcels[0].stretches.size() == 2);
  for (std::size_t i = 1; i < 5; ++i) {
    CHECK(parcels[i].stretches.size() == 1);
    CHECK(parcels[i].count == 125);  // no short one at the end
  }
  CHECK(parcels[5].count == 10);
}

TEST_CASE("pieces of more than 2^31 elements") {
  const index_t count = (index_t{1} << 33) + 5;
  const auto parcels = parcels_of(std::vector<piece>{{0, 3, 7, count}}, 0, false, index_t{1} << 28);
  index_t next = 0;
  for (const parcel& p : parcels) {
    CHECK(p.stretches[0].in == 3 + next);
    CHECK(p.stretches[0].out == 7 + next);
    CHECK(p.count <= index_t{1} << 28);
    next += p.count;
  }
  CHECK(next == count);
}

TEST_CASE("an all-reduce is shared out evenly, whoever holds the pieces") {
  const std::vector<piece> pieces{{0, 0, 50, 10}, {2, 30, 0, 7}};
  const auto shares = mfsdp::detail::spread(pieces, 4);
  std::vector<index_t> of_rank(4, 0);
  std::vector<piece> elements;
  for (const piece& p : shares) {
    of_rank[static_cast<std::size_t>(p.rank)] += p.count;
    for (index_t i = 0; i < p.count; ++i) elements.push_back({0, p.full + i, p.local + i, 1});
  }
  CHECK(of_rank == std::vector<index_t>{5, 5, 5, 2});
  std::vector<piece> expected;
  for (const piece& p : pieces) {
    for (index_t i = 0; i < p.count; ++i) expected.push_back({0, p.full + i, p.local + i, 1});
  }
  CHECK(elements == expected);
  CHECK(mfsdp::detail::spread({}, 4).empty());
}

}  // namespace parcels_test
