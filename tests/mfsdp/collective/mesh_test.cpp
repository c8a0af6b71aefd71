#include "mfsdp/collective/mesh.hpp"

#include <doctest/doctest.h>

#include <type_traits>

#include "mfsdp/collective/threads.hpp"

namespace mesh_test {

using namespace mfsdp;

TEST_CASE("the axes that are not given are of one rank") {
  thread_world(2).run([](thread_collective collective) {
    const mesh sharded{collective};
    static_assert(std::is_same_v<decltype(sharded), const mesh<thread_collective, self, self>>);
    static_assert(Mesh<decltype(sharded)>);
    const mesh named{.shard = collective};
    static_assert(std::is_same_v<decltype(named), decltype(sharded)>);
    const mesh replicated{.shard = self{}, .replicate = collective};
    static_assert(std::is_same_v<decltype(replicated), const mesh<self, thread_collective, self>>);
    const mesh sited{.shard = self{}, .replicate = self{}, .site = collective};
    static_assert(std::is_same_v<decltype(sited), const mesh<self, self, thread_collective>>);
    const bool right = sharded.shard.size() == 2 && sharded.replicate.size() == 1 &&
                       named.site.size() == 1 && replicated.replicate.rank() == collective.rank() &&
                       sited.site.size() == 2;
    CHECK(right);
  });
}

TEST_CASE("neighbours share a shard group, equal positions replicate") {
  thread_world(6).run([](thread_collective collective) {
    const mesh axes = make_mesh(collective, 3);
    const bool right = axes.shard.size() == 3 && axes.shard.rank() == collective.rank() % 3 &&
                       axes.replicate.size() == 2 &&
                       axes.replicate.rank() == collective.rank() / 3 && axes.site.size() == 1;
    CHECK(right);
  });
  const mesh alone = make_mesh(self{}, 1);
  CHECK(alone.replicate.size() == 1);
}

TEST_CASE("a world that cannot be cut evenly makes no mesh") {
  for (const int shard_ranks : {0, -2, 4, 12}) {
    CHECK_THROWS_WITH_AS(
        thread_world(6).run([&](thread_collective c) { (void)make_mesh(c, shard_ranks); }),
        fmt::format("6 ranks cannot be cut into shard groups of {}", shard_ranks).c_str(),
        spec_error);
  }
}

namespace {
struct without_site {
  self shard;
  self replicate;
};
struct site_of_no_collective : without_site {
  int site;
};
static_assert(!Mesh<without_site>);
static_assert(!Mesh<site_of_no_collective>);
}  // namespace

}  // namespace mesh_test
