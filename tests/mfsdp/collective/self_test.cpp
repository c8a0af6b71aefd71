#include "mfsdp/collective/self.hpp"

#include <doctest/doctest.h>

#include "conformance/collective.hpp"

namespace self_test {

namespace {

struct self_world {
  [[nodiscard]] int size() const { return 1; }
  void run(const auto& body) { body(mfsdp::self{}); }
};

}  // namespace

TEST_CASE("self conforms") {
  self_world world;
  mfsdp_test::collective_conformance(world);
}

}  // namespace self_test
