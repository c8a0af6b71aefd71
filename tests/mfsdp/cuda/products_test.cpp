#include "mfsdp/cuda/products.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "emulation/emulation.hpp"
#include "emulation/session.hpp"
#include "support/on_device.hpp"

namespace cuda_products_test {

using namespace mfsdp;
using mfsdp_test::on_device;
using mfsdp_test::on_host;

namespace {

template <class T>
std::vector<T> wave_values(index_t n, double phase) {
  return mfsdp_test::host_values<T>(n, [&](index_t i) {
    return static_cast<T>(static_cast<float>(std::sin(0.7 + 1.3 * static_cast<double>(i) + phase)));
  });
}

// d = 0.5 op(a) op(b) + beta d in place, with operands `shift` elements past an aligned place,
// against loops in double over the same rounded operands.
template <class T>
void check_product_in_place(cuda_backend& backend, index_t m, index_t n, index_t k, transpose op_a,
                            transpose op_b, float beta, index_t shift) {
  CAPTURE(m);
  CAPTURE(n);
  CAPTURE(k);
  CAPTURE(shift);
  const auto a = wave_values<T>(shift + m * k, 0.0);
  const auto b = wave_values<T>(shift + k * n, 1.0);
  const auto c = wave_values<T>(shift + m * n, 2.0);
  auto left = on_device(backend, a);
  auto right = on_device(backend, b);
  auto out = on_device(backend, c);
  const bool flip_a = op_a == transpose::yes;
  const bool flip_b = op_b == transpose::yes;
  const matrix_view<T> d(out.span().data() + shift, m, n);
  backend.multiply<T>(
      0.5f, matrix_view<const T>(left.span().data() + shift, flip_a ? k : m, flip_a ? m : k), op_a,
      matrix_view<const T>(right.span().data() + shift, flip_b ? n : k, flip_b ? k : n), op_b, beta,
      d, d);
  const auto result = on_host(backend, out.span());
  double error = 0;
  for (index_t i = 0; i < m; ++i) {
    for (index_t j = 0; j < n; ++j) {
      const auto at = [shift](const std::vector<T>& x, index_t index) {
        return static_cast<double>(x[static_cast<std::size_t>(shift + index)]);
      };
      double sum = 0;
      for (index_t l = 0; l < k; ++l) {
        sum += at(a, flip_a ? l * m + i : i * k + l) * at(b, flip_b ? j * k + l : l * n + j);
      }
      const double expected = 0.5 * sum + static_cast<double>(beta) * at(c, i * n + j);
      error =
          std::max(error, std::abs(at(result, i * n + j) - expected) / (1 + std::abs(expected)));
    }
  }
  // Sums are in float or better, and rounded once.
  CHECK(error <=
        static_cast<double>(std::numeric_limits<T>::epsilon()) + static_cast<double>(k) * 1e-7);
}

template <class T>
void check_products_in_place(cuda_backend& backend) {
  for (const transpose op_a : {transpose::no, transpose::yes}) {
    for (const transpose op_b : {transpose::no, transpose::yes}) {
      for (const float beta : {0.0f, 1.0f, -0.75f}) {
        for (const index_t shift : {0, 1, 2, 4}) {
          check_product_in_place<T>(backend, 5, 7, 9, op_a, op_b, beta, shift);
        }
        check_product_in_place<T>(backend, 16, 24, 8, op_a, op_b, beta, 0);
        check_product_in_place<T>(backend, 3, 4, 0, op_a, op_b, beta, 0);
      }
    }
  }
}

}  // namespace

TEST_CASE("products of every type, in place and wherever operands stand") {
  const emulation::session machine;
  for (const auto choice : {cuda::algorithm_choice::first, cuda::algorithm_choice::fastest}) {
    cuda_backend backend(0, {.choice = choice});
    check_products_in_place<float>(backend);
    check_products_in_place<double>(backend);
    check_products_in_place<bfloat16>(backend);
    check_products_in_place<float16>(backend);
  }
}

TEST_CASE("algorithms are asked for once") {
  const emulation::session machine;
  for (const auto choice : {cuda::algorithm_choice::first, cuda::algorithm_choice::fastest}) {
    cuda_backend backend(0, {.choice = choice});
    auto x = on_device(backend, wave_values<float>(64, 0));
    auto y = backend.allocate<float>(64);
    const matrix_view<float> a(x.span().data(), 8, 8);
    const matrix_view<float> d(y.span().data(), 8, 8);
    backend.multiply(1.0f, a, transpose::no, a, transpose::yes, 0.0f, d, d);
    const auto once = emulation::counts();
    emulation::fail_call("cublasLtMatmulAlgoGetHeuristic", CUBLAS_STATUS_NOT_SUPPORTED);
    backend.multiply(2.0f, a, transpose::no, a, transpose::yes, 0.0f, d, d);
    const auto twice = emulation::counts();
    CHECK(twice.matmuls == once.matmuls + 1);
    CHECK(twice.host_synchronisations == once.host_synchronisations);
    // Another shape is another question, and what it fails with is told.
    const matrix_view<float> row(x.span().data(), 1, 8);
    const std::string what = mfsdp_test::what_of<device_error>([&] {
      backend.multiply(1.0f, row, transpose::no, a, transpose::no, 0.0f, row,
                       matrix_view<float>(y.span().data(), 1, 8));
    });
    CHECK(what.find("cublasLtMatmulAlgoGetHeuristic for 1 x 8 x 8") != std::string::npos);
    CHECK(what.find("CUBLAS_STATUS_NOT_SUPPORTED") != std::string::npos);
  }
}

TEST_CASE("timing algorithms leaves operands alone") {
  const emulation::session machine;
  cuda_backend first;
  cuda_backend fastest(0, {.choice = cuda::algorithm_choice::fastest});
  const auto values = wave_values<float>(64, 0);
  std::vector<std::vector<float>> results;
  for (cuda_backend* backend : {&first, &fastest}) {
    auto x = on_device(*backend, values);
    const matrix_view<float> d(x.span().data(), 4, 4);
    const matrix_view<float> a(x.span().data() + 32, 4, 4);
    backend->multiply(1.0f, a, transpose::no, a, transpose::no, 2.0f, d, d);
    results.push_back(on_host(*backend, x.span()));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    CHECK(results[0][i] == doctest::Approx(results[1][i]).epsilon(1e-5));
  }
  CHECK(emulation::counts().matmuls > 2);
}

}  // namespace cuda_products_test
