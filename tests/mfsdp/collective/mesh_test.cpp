#include "mfsdp/collective/mesh.hpp"

#include <doctest/doctest.h>

#include <type_traits>

#include "mfsdp/collective/threads.hpp"

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
