#include "mfsdp/backend/cpu.hpp"

#include <doctest/doctest.h>

#include "conformance/backend.hpp"
#include "support/allocations.hpp"

namespace cpu_test {

using namespace mfsdp;

TEST_CASE("cpu_backend conforms") {
  mfsdp_test::backend_conformance(cpu_backend{});
}

TEST_CASE("cpu_backend uses the best kernel of the processor") {
  CHECK(cpu_backend{}.kernel() == best_product_kernel());
}

TEST_CASE("products of cpu_backend allocate nothing after a thread's first") {
  const cpu_backend backend;
  if (backend.kernel() == product_kernel::none) return;
  host_buffer<float> a(300 * 1000), d(300 * 300);
  backend.fill(a.span(), 0.5f);
  const matrix_view<const float> left(a.span().data(), 300, 1000);
  const matrix_view<float> out(d.span().data(), 300, 300);
  const matrix_view<float> small(d.span().data(), 1, 1);
  backend.multiply(1.0f, matrix_view<const float>(a.span().data(), 1, 1), transpose::no,
                   matrix_view<const float>(a.span().data(), 1, 1), transpose::no, 0.0f, {}, small);
  const long before = mfsdp_test::allocations;
  backend.multiply(1.0f, left, transpose::no, left, transpose::yes, 0.0f, {}, out);
  backend.multiply_symmetric(1.0f, left, transpose::no, left, transpose::yes, 1.0f, out, out);
  CHECK(mfsdp_test::allocations == before);
  CHECK(out.data()[7] == 500.0f);
}

}  // namespace cpu_test
