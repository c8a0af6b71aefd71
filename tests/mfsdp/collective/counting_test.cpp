#include "mfsdp/collective/counting.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "conformance/collective.hpp"
#include "mfsdp/collective/self.hpp"
#include "mfsdp/collective/threads.hpp"

namespace counting_test {

using namespace mfsdp;

namespace {

struct counting_world {
  thread_world inner;
  [[nodiscard]] int size() const { return inner.size(); }
  void run(const auto& body) {
    inner.run([&](const thread_collective& collective) { body(counting(collective)); });
  }
};

// An engine with one operation only.
struct gathers_only : self {
  template <class T>
  request start_reduce_scatter(std::span<const T>, std::span<T>, std::span<const piece>,
                               reduce_into, std::string_view) = delete;
};
static_assert(AllGather<counting<gathers_only>, float>);
static_assert(!ReduceScatter<counting<gathers_only>, float>);

}  // namespace

TEST_CASE("counting conforms") {
  counting_world world{thread_world(3)};
  mfsdp_test::collective_conformance(world);
}

TEST_CASE("traffic follows from the pieces and is what threads really read") {
  for (const int ranks : {1, 2, 3, 5, 8}) {
    for (const mfsdp_test::piece_map& map : mfsdp_test::piece_maps(ranks)) {
      CAPTURE(ranks);
      CAPTURE(map.name);
      std::vector<traffic> total(static_cast<std::size_t>(ranks));
      std::vector<traffic> expected(total);
      std::vector<std::int64_t> read(total.size());
      thread_world(ranks).run([&](thread_collective inner) {
        const std::size_t at = static_cast<std::size_t>(inner.rank());
        counting collective(inner);
        auto copy = collective;
        const auto finish = [](auto request) { request.drain(mfsdp_test::soon()); };
        const auto into = reduce_into::write;
        const mfsdp_test::piece_map everywhere = mfsdp_test::for_all_reduce(map);
        auto gather = mfsdp_test::all_gather_of<double>(collective, map);
        auto scatter = mfsdp_test::reduction_of<float>(collective, map, into, false);
        auto sum = mfsdp_test::reduction_of<float>(collective, everywhere, into, true);
        finish(mfsdp_test::start_all_gather(collective, gather, "gather"));
        finish(mfsdp_test::start_reduce_scatter(copy, scatter, into, "scatter"));
        finish(mfsdp_test::start_all_reduce(collective, sum, into, "sum"));
        total[at] = copy.total();
        read[at] = inner.bytes_read();

        index_t all = 0;
        for (const piece& p : map.pieces) all += p.count;
        const index_t mine = elements_of(map.pieces, inner.rank());
        const index_t others = all - mine;
        expected[at] = {3, 8 * mine * (ranks - 1) + 4 * others + 4 * all * (ranks - 1),
                        8 * others + 4 * mine * (ranks - 1) + 4 * all * (ranks - 1)};
      });
      traffic sum;
      for (std::size_t rank = 0; rank < total.size(); ++rank) {
        CHECK(total[rank] == expected[rank]);
        CHECK(total[rank].received == read[rank]);
        sum += total[rank];
      }
      CHECK(sum.sent == sum.received);
    }
  }
}

TEST_CASE("traffic of a part is a difference") {
  CHECK(traffic{5, 70, 80} - traffic{2, 30, 30} == traffic{3, 40, 50});
}

}  // namespace counting_test
