#include "mfsdp/collective/routes.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

namespace routes_test {

namespace {

using mfsdp::route;
using mfsdp::travel;

// Sends one owner's parcel along the routes of all ranks, as text: what each rank keeps. A term is
// the name of its rank; a sum is its terms in their order.
struct journey {
  std::vector<std::string> kept;
  std::vector<int> sent;  // messages
};

template <class Routes>
journey travelled(int ranks, const Routes& routes_of) {
  struct stop {
    int rank;
    route way;
    std::map<int, std::string> arrived{};
    bool done = false;
  };
  std::vector<stop> stops;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const route& way : routes_of(rank)) stops.push_back({rank, way});
  }
  journey result{std::vector<std::string>(static_cast<std::size_t>(ranks)),
                 std::vector<int>(static_cast<std::size_t>(ranks))};
  for (bool moved = true; moved;) {
    moved = false;
    for (stop& at : stops) {
      std::string sum;
      bool ready = !at.done;
      for (const int term : at.way.terms) {
        if (term == at.rank) {
          sum += std::to_string(term);
        } else if (at.arrived.contains(term)) {
          sum += at.arrived[term];
        } else {
          ready = false;
        }
      }
      if (!ready) continue;
      at.done = moved = true;
      if (at.way.keep) result.kept[static_cast<std::size_t>(at.rank)] += sum;
      for (const int to : at.way.to) {
        ++result.sent[static_cast<std::size_t>(at.rank)];
        const auto next = std::ranges::find_if(stops, [&](const stop& s) {
          return s.rank == to && s.way.receive_leg == at.way.send_leg &&
                 !s.arrived.contains(at.rank) &&
                 std::ranges::find(s.way.terms, at.rank) != s.way.terms.end() && !s.done;
        });
        REQUIRE(next != stops.end());
        next->arrived[at.rank] = sum;
      }
    }
  }
  for (const stop& at : stops) CHECK(at.done);
  return result;
}

std::string in_order(int first, int ranks) {
  std::string sum;
  for (int i = 0; i < ranks; ++i) sum += std::to_string((first + i) % ranks);
  return sum;
}

}  // namespace

TEST_CASE("a gather brings the owner's part to every rank, once") {
  for (const travel how : {travel::direct, travel::ring}) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (int owner = 0; owner < ranks; ++owner) {
        const journey all = travelled(ranks, [&](int rank) {
          return std::vector{mfsdp::gather_route(how, owner, rank, ranks)};
        });
        for (const std::string& kept : all.kept) CHECK(kept == std::to_string(owner));
        for (int rank = 0; rank < ranks; ++rank) {
          const int next = (rank + 1) % ranks;
          const int expected =
              how == travel::ring ? (next == owner ? 0 : 1) : (rank == owner ? ranks - 1 : 0);
          CHECK(all.sent[static_cast<std::size_t>(rank)] == expected);
        }
      }
    }
  }
}

TEST_CASE("a sum reaches its owner alone, in the order that is promised") {
  for (const travel how : {travel::direct, travel::chain, travel::ring}) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (int owner = 0; owner < ranks; ++owner) {
        const journey all =
            travelled(ranks, [&](int rank) { return mfsdp::sum_routes(how, owner, rank, ranks); });
        for (int rank = 0; rank < ranks; ++rank) {
          CAPTURE(static_cast<int>(how));
          CAPTURE(ranks);
          CAPTURE(owner);
          CAPTURE(rank);
          const int first = how == travel::ring ? (owner + 1) % ranks : 0;
          CHECK(all.kept[static_cast<std::size_t>(rank)] ==
                (rank == owner ? in_order(first, ranks) : ""));
          const bool last =
              how == travel::chain ? rank == ranks - 1 && rank == owner : rank == owner;
          const bool passes = how == travel::chain ? !last : rank != owner;
          CHECK(all.sent[static_cast<std::size_t>(rank)] == (passes && ranks > 1 ? 1 : 0));
        }
      }
    }
  }
}

TEST_CASE("an all-reduce brings one and the same sum to every rank") {
  for (const travel how : {travel::direct, travel::chain, travel::ring}) {
    for (int ranks = 1; ranks <= 6; ++ranks) {
      for (int owner = 0; owner < ranks; ++owner) {
        const journey all = travelled(
            ranks, [&](int rank) { return mfsdp::all_sum_routes(how, owner, rank, ranks); });
        const int first = how == travel::ring ? (owner + 1) % ranks : 0;
        for (const std::string& kept : all.kept) CHECK(kept == in_order(first, ranks));
        CHECK(std::accumulate(all.sent.begin(), all.sent.end(), 0) ==
              (ranks == 1
                   ? 0
                   : 2 * (ranks - 1) + (how == travel::chain && owner != ranks - 1 ? 1 : 0)));
      }
    }
  }
}

TEST_CASE("estimates follow the most loaded link") {
  const mfsdp::fabric net{.latency = 0, .bandwidth = 1};
  const std::vector<mfsdp::index_t> even(8, 100);
  const std::vector<mfsdp::index_t> one{800, 0, 0, 0, 0, 0, 0, 0};
  const auto seconds = [&](travel how, const std::vector<mfsdp::index_t>& owned) {
    return mfsdp::travel_seconds(how, owned, 0, net);
  };
  CHECK(seconds(travel::direct, even) == 700);
  CHECK(seconds(travel::ring, even) == 700);
  CHECK(seconds(travel::direct, one) == 7 * 800);
  CHECK(seconds(travel::ring, one) == 800);
  CHECK(seconds(travel::chain, one) == 1600);
  CHECK(seconds(travel::ring, {800}) == 0);
}

}  // namespace routes_test
