// Every placement with every rule on threads, and every rule between sites of owners.
#include "support/mixing.hpp"

namespace mixing_test {

TEST_CASE("every legal cell trains as a plain loop does, bit for bit") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    mfsdp::thread_world{ranks}.run([](auto comm) { mfsdp_test::check_every_cell(comm); });
  }
}

TEST_CASE("sites of owners train as single workers do, bit for bit") {
  for (const std::vector<int>& ranks : {std::vector{1, 1}, {2, 2}, {3, 1}, {2, 1, 2}}) {
    CAPTURE(ranks.size());
    CAPTURE(ranks.front());
    mfsdp::thread_world{std::accumulate(ranks.begin(), ranks.end(), 0)}.run(
        [&](auto comm) { mfsdp_test::check_sites(comm, ranks); });
  }
}

}  // namespace mixing_test
