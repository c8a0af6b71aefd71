#include "mfsdp/kernel.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "mfsdp/backend/eigen.hpp"

namespace kernel_test {

using namespace mfsdp;

static_assert(nonnegative(2.0) == 1.0);
static_assert(nonnegative(0.0f) == 1.0f);
static_assert(nonnegative(-0.0f) == 1.0f);
static_assert(nonnegative(-1e-30f) == 0.0f);

TEST_CASE("a condition on packets is what it is on scalars, wherever an element stands") {
  // Every size from a lone tail to packets and a tail.
  for (std::size_t size = 1; size < 200; ++size) {
    std::vector<float> x, y;
    for (std::size_t i = 0; i < size; ++i) {
      x.push_back(static_cast<float>(static_cast<int>(i % 3) - 1));
      y.push_back(static_cast<float>(static_cast<int>(i % 5) - 2));
    }
    x[size / 2] = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> z(size);
    eigen_backend().transform(
        [](auto& out, const auto& a, const auto& b) { out = 2.0f * nonnegative(a * b) + 1.0f; },
        std::span(z), std::span<const float>(x), std::span<const float>(y));
    for (std::size_t i = 0; i < size; ++i) REQUIRE(z[i] == 2 * nonnegative(x[i] * y[i]) + 1);
    REQUIRE(z[size / 2] == 1);
  }
}

}  // namespace kernel_test
