// The suites touch memory through the backend only: they pass where the host cannot touch it.
#include <doctest/doctest.h>

#include "conformance/backend.hpp"
#include "mfsdp/backend/cpu.hpp"
#include "support/remote_backend.hpp"

namespace remote_backend_test {

TEST_CASE("memory out of the host's reach conforms") {
  mfsdp_test::backend_conformance(mfsdp_test::remote_backend<>{});
  mfsdp_test::conversion_conformance(mfsdp_test::remote_backend<>{});
}

TEST_CASE("only copies take memory of the host") {
  const mfsdp_test::remote_backend<mfsdp::cpu_backend> backend;
  std::vector<float> host(3, 2.0f);
  CHECK_THROWS_AS(backend.fill(std::span(host), 1.0f), std::logic_error);
  auto memory = backend.allocate<float>(3);
  backend.copy(std::span<const float>(host), memory.span());
  CHECK(backend.sum_of_squares(memory.span()) == 12.0);
  CHECK_FALSE(mfsdp_test::remote_memory::owns(host.data()));
  CHECK(mfsdp_test::remote_memory::usable(memory.span().data())[2] == 2.0f);
}

}  // namespace remote_backend_test
