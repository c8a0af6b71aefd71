// Conformance of a Backend, for this library's and for yours: call backend_conformance(my_backend)
// in a doctest case. It touches the memory that the backend allocates through the backend only.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "conformance/host_copy.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/precision.hpp"

namespace mfsdp_test {

// A smooth, sign-changing sequence without repetition.
template <class T>
T sample(mfsdp::index_t i, double phase = 0.0) {
  return static_cast<T>(std::sin(0.7 + 1.3 * static_cast<double>(i) + phase));
}

template <class T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

template <class T, class B>
void allocation_conformance(B& backend) {
  for (const mfsdp::index_t size : {0, 1, 63, 64, 1000}) {
    auto buffer = backend.template allocate<T>(size);
    CHECK(std::ssize(buffer.span()) == size);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.span().data()) % mfsdp::storage_alignment == 0);
    backend.fill(buffer.span(), T(3));
    CHECK(std::ranges::all_of(on_host(backend, buffer.span()), [](T x) { return x == T(3); }));

    // From the host, within the backend, and back.
    const auto values = host_values<T>(size, [](mfsdp::index_t i) { return sample<T>(i); });
    auto other = backend.template allocate<T>(size);
    to_backend(backend, values, buffer.span());
    backend.copy(std::span<const T>(buffer.span()), other.span());
    CHECK(same_bits<T>(on_host(backend, other.span()), values));

    const T* data = buffer.span().data();
    const auto moved = std::move(buffer);
    CHECK(moved.span().data() == data);
    CHECK(std::ssize(moved.span()) == size);
  }
}

// Against a plain loop in double, for every transposition and kind of beta; then bit for bit on
// other memory of the same alignment.
template <class T, class B>
void multiply_conformance(B& backend) {
  using mfsdp::index_t, mfsdp::transpose;
  const auto multiply = [&](index_t m, index_t n, index_t k, transpose op_a, transpose op_b,
                            T beta) {
    auto a = backend.template allocate<T>(m * k);
    auto b = backend.template allocate<T>(k * n);
    auto c = backend.template allocate<T>(m * n);
    const auto left = host_values<T>(m * k, [](index_t i) { return sample<T>(i); });
    const auto right = host_values<T>(k * n, [](index_t i) { return sample<T>(i, 1.0); });
    to_backend(backend, left, a.span());
    to_backend(backend, right, b.span());
    // What beta = 0 must not read.
    backend.fill(c.span(), beta == T(0) ? std::numeric_limits<T>::quiet_NaN() : T(2));
    const bool flip_a = op_a == transpose::yes;
    const bool flip_b = op_b == transpose::yes;
    backend.multiply(
        T(0.5), mfsdp::matrix_view<const T>(a.span().data(), flip_a ? k : m, flip_a ? m : k), op_a,
        mfsdp::matrix_view<const T>(b.span().data(), flip_b ? n : k, flip_b ? k : n), op_b, beta,
        mfsdp::matrix_view<const T>(c.span().data(), m, n),
        mfsdp::matrix_view<T>(c.span().data(), m, n));
    std::vector<T> result = on_host(backend, c.span());
    const auto at = [](const std::vector<T>& x, index_t i) {
      return static_cast<double>(x[static_cast<std::size_t>(i)]);
    };
    double error = 0;
    for (index_t i = 0; i < m; ++i) {
      for (index_t j = 0; j < n; ++j) {
        double sum = 0;
        for (index_t l = 0; l < k; ++l) {
          sum +=
              at(left, flip_a ? l * m + i : i * k + l) * at(right, flip_b ? j * k + l : l * n + j);
        }
        const double expected = 0.5 * sum + 2 * static_cast<double>(beta);
        const double difference = std::abs(at(result, i * n + j) - expected);
        error = std::isnan(difference) ? 1e30 : std::max(error, difference);
      }
    }
    CHECK(error <= 4 * static_cast<double>(k + 1) * std::numeric_limits<T>::epsilon());
    return result;
  };
  const std::vector<std::vector<index_t>> shapes = {
      {1, 1, 1},    {1, 7, 5}, {7, 1, 5}, {3, 4, 5}, {16, 1, 1},   {17, 33, 70},
      {64, 64, 64}, {4, 3, 0}, {0, 3, 2}, {5, 0, 2}, {40, 70, 300}};
  for (const auto& shape : shapes) {
    for (const transpose op_a : {transpose::no, transpose::yes}) {
      for (const transpose op_b : {transpose::no, transpose::yes}) {
        for (const T beta : {T(0), T(1), T(-0.25)}) {
          CAPTURE(shape);
          const auto once = multiply(shape[0], shape[1], shape[2], op_a, op_b, beta);
          const auto again = multiply(shape[0], shape[1], shape[2], op_a, op_b, beta);
          CHECK(same_bits<T>(once, again));
        }
      }
    }
  }
}

// X X^T, X^T X and the square of a symmetric matrix: what multiply gives, added to another matrix
// or in place.
template <class T, class B>
void multiply_symmetric_conformance(B& backend) {
  using mfsdp::index_t, mfsdp::transpose;
  const auto check = [&](index_t n, index_t k, transpose op_a, transpose op_b, T beta,
                         bool in_place) {
    CAPTURE(n);
    CAPTURE(k);
    CAPTURE(beta);
    CAPTURE(in_place);
    const bool square = op_a == op_b;
    auto a = backend.template allocate<T>(n * k);
    auto c = backend.template allocate<T>(n * n);
    auto d = backend.template allocate<T>(n * n);
    auto expected = backend.template allocate<T>(n * n);
    to_backend(
        backend,
        host_values<T>(n * k,
                       [&](index_t i) { return square ? sample<T>(i / k + i % k) : sample<T>(i); }),
        a.span());
    const auto before =
        host_values<T>(n * n, [&](index_t i) { return sample<T>(i / n + i % n, 1.0); });
    to_backend(backend, before, c.span());
    backend.fill(d.span(), std::numeric_limits<T>::quiet_NaN());

    const bool flip = op_a == transpose::yes;
    const mfsdp::matrix_view<const T> left(a.span().data(), flip ? k : n, flip ? n : k);
    const mfsdp::matrix_view<const T> added =
        beta == T(0) ? mfsdp::matrix_view<const T>()
                     : mfsdp::matrix_view<const T>(c.span().data(), n, n);
    backend.multiply(T(0.5), left, op_a, left, op_b, beta, added,
                     mfsdp::matrix_view<T>(expected.span().data(), n, n));
    auto& result = in_place ? c : d;
    backend.multiply_symmetric(T(0.5), left, op_a, left, op_b, beta, added,
                               mfsdp::matrix_view<T>(result.span().data(), n, n));
    const std::vector<T> x = on_host(backend, result.span());
    const std::vector<T> y = on_host(backend, expected.span());
    double error = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double difference = std::abs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
      error = std::isnan(difference) ? 1e30 : std::max(error, difference);
    }
    CHECK(error <= 4 * static_cast<double>(k + 1) * std::numeric_limits<T>::epsilon());
    if (!in_place) CHECK(same_bits<T>(before, on_host(backend, c.span())));
  };
  for (const auto& [n, k] : {std::pair<index_t, index_t>{1, 1},
                             {1, 40},
                             {3, 5},
                             {17, 33},
                             {40, 3},
                             {64, 64},
                             {70, 300},
                             {130, 20},
                             {5, 0},
                             {0, 3}}) {
    for (const T beta : {T(0), T(1), T(-0.25)}) {
      for (const bool in_place : {false, true}) {
        check(n, k, transpose::no, transpose::yes, beta, in_place);
        check(n, k, transpose::yes, transpose::no, beta, in_place);
        if (n == k) {
          check(n, n, transpose::no, transpose::no, beta, in_place);
          check(n, n, transpose::yes, transpose::yes, beta, in_place);
        }
      }
    }
  }
}

// The product of two polynomials of one symmetric matrix is symmetric, too, but for rounding.
template <class T, class B>
void multiply_commuting_conformance(B& backend) {
  using mfsdp::index_t, mfsdp::transpose;
  for (const index_t n : {1, 5, 33, 70}) {
    CAPTURE(n);
    auto p = backend.template allocate<T>(n * n);
    auto q = backend.template allocate<T>(n * n);
    auto expected = backend.template allocate<T>(n * n);
    auto result = backend.template allocate<T>(n * n);
    const auto matrix = [n](auto& of) { return mfsdp::matrix_view<T>(of.span().data(), n, n); };
    to_backend(backend, host_values<T>(n * n, [n](index_t i) { return sample<T>(i / n + i % n); }),
               p.span());
    backend.multiply(T(1), matrix(p), transpose::no, matrix(p), transpose::no, T(0.5), matrix(p),
                     matrix(q));
    backend.multiply(T(1), matrix(p), transpose::no, matrix(q), transpose::no, T(2), matrix(q),
                     matrix(expected));
    backend.multiply_symmetric(T(1), matrix(p), transpose::no, matrix(q), transpose::no, T(2),
                               matrix(q), matrix(result));
    const std::vector<T> x = on_host(backend, result.span());
    const std::vector<T> y = on_host(backend, expected.span());
    double error = 0;
    double largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double e = static_cast<double>(y[i]);
      error = std::max(error, std::abs(static_cast<double>(x[i]) - e));
      largest = std::max(largest, std::abs(e));
    }
    CHECK(error <= 16 * static_cast<double>(n) * std::numeric_limits<T>::epsilon() * largest);
  }
}

// A kernel that reads and writes, of operations that a device may contract.
template <class T>
struct sample_step {
  MFSDP_HOST_DEVICE void operator()(auto& a, auto& b, const auto& c) const {
    using std::sqrt;
    a = T(0.9) * a + T(0.1) * c;
    b = b / (sqrt(c * c) + T(1e-3)) - a * c;
  }
};

// Every size, aligned and not: each element as if it were alone, nothing written beyond the end,
// constant spans unchanged.
template <class T, class B>
void transform_conformance(B& backend) {
  using mfsdp::index_t;
  constexpr index_t sizes = 300;
  constexpr std::size_t all = sizes + 2;
  auto a = backend.template allocate<T>(all);
  auto b = backend.template allocate<T>(all);
  auto c = backend.template allocate<T>(all);
  std::vector<T> values_a(all), values_b(all), values_c(all);
  // Element i of the samples stands at i + offset.
  const auto prepare = [&](index_t offset) {
    for (index_t i = 0; i < std::ssize(values_a); ++i) {
      values_a[static_cast<std::size_t>(i)] = sample<T>(i - offset);
      values_b[static_cast<std::size_t>(i)] = sample<T>(i - offset, 1.0);
      values_c[static_cast<std::size_t>(i)] = sample<T>(i - offset, 2.0);
    }
  };
  const auto transformed = [&](index_t from, index_t count) {
    to_backend(backend, values_a, a.span());
    to_backend(backend, values_b, b.span());
    to_backend(backend, values_c, c.span());
    backend.transform(sample_step<T>{}, mfsdp::slice(a.span(), from, count),
                      mfsdp::slice(b.span(), from, count),
                      std::span<const T>(mfsdp::slice(c.span(), from, count)));
    return std::pair(on_host(backend, a.span()), on_host(backend, b.span()));
  };
  std::vector<T> alone_a, alone_b;
  for (index_t i = 0; i < sizes; ++i) {
    prepare(-i);
    const auto [x, y] = transformed(0, 1);
    alone_a.push_back(x[0]);
    alone_b.push_back(y[0]);
  }
  bool each_alone = true;
  bool contained = true;
  for (index_t size = 0; size <= sizes; ++size) {
    for (const index_t offset : {0, 1}) {
      prepare(offset);
      const auto [x, y] = transformed(offset, size);
      const auto end = static_cast<std::size_t>(offset + size);
      for (std::size_t i = 0; i < all; ++i) {
        if (i >= static_cast<std::size_t>(offset) && i < end) {
          const std::size_t k = i - static_cast<std::size_t>(offset);
          each_alone = each_alone && x[i] == alone_a[k] && y[i] == alone_b[k];
        } else {
          contained = contained && x[i] == values_a[i] && y[i] == values_b[i];
        }
      }
      contained = contained && same_bits<T>(values_c, on_host(backend, c.span()));
    }
  }
  CHECK(each_alone);
  CHECK(contained);
}

// Right, in double, in blocks from the start, and blind to alignment.
template <class T, class B>
void sum_of_squares_conformance(B& backend) {
  constexpr mfsdp::index_t block = mfsdp::block_elements;
  for (const mfsdp::index_t size :
       {mfsdp::index_t{0}, mfsdp::index_t{1}, mfsdp::index_t{7}, mfsdp::index_t{9}, block - 1,
        block, block + 1, 3 * block + 77}) {
    CAPTURE(size);
    auto x = backend.template allocate<T>(size);
    auto shifted = backend.template allocate<T>(size + 1);
    const auto values = host_values<T>(size, [](mfsdp::index_t i) { return sample<T>(i); });
    to_backend(backend, values, x.span());
    to_backend(backend, values, shifted.span().subspan(1));
    double expected = 0;
    for (const T e : values) expected += static_cast<double>(e) * static_cast<double>(e);
    const std::span<const T> all = x.span();
    const double sum = backend.sum_of_squares(all);
    CHECK(sum == doctest::Approx(expected).epsilon(1e-13));
    CHECK(sum == backend.sum_of_squares(std::span<const T>(shifted.span()).subspan(1)));
    double by_blocks = 0;
    for (mfsdp::index_t at = 0; at < size; at += block) {
      by_blocks += backend.sum_of_squares(mfsdp::slice(all, at, std::min(block, size - at)));
    }
    CHECK(sum == by_blocks);
  }
  auto extreme = backend.template allocate<float>(2);
  backend.fill(extreme.span(), 1e30f);
  CHECK(backend.sum_of_squares(std::span<const float>(extreme.span())) ==
        doctest::Approx(2e60).epsilon(1e-6));
}

// Each element becomes part of the sum.
template <class T>
struct sample_share {
  MFSDP_HOST_DEVICE void operator()(const double& sum, auto& x) const {
    x = x * static_cast<T>(1 / sum);
  }
  MFSDP_HOST_DEVICE void operator()(const double& sum, auto& to, const auto& from) const {
    to = from * static_cast<T>(1 / sum);
  }
};

// The sum is the same number as on the host, of what was there before; it may be of other elements
// than those that are transformed.
template <class T, class B>
void transform_by_sum_conformance(B& backend) {
  using mfsdp::index_t;
  for (const index_t size : {index_t{1}, index_t{63}, index_t{300},
                             2 * static_cast<index_t>(mfsdp::block_elements) + 77}) {
    CAPTURE(size);
    const auto values = host_values<T>(size, [](index_t i) { return sample<T>(i); });
    const auto others = host_values<T>(77, [](index_t i) { return sample<T>(i, 2.0); });
    auto x = backend.template allocate<T>(size);
    auto y = backend.template allocate<T>(size);
    auto z = backend.template allocate<T>(std::ssize(others));
    to_backend(backend, values, x.span());
    to_backend(backend, others, z.span());
    const std::span<const T> read = x.span();
    const auto shares = [&](std::span<const T> of) {
      const T by = static_cast<T>(1 / backend.sum_of_squares(of));
      return host_values<T>(size,
                            [&](index_t i) { return values[static_cast<std::size_t>(i)] * by; });
    };
    const std::vector<T> expected = shares(read);
    backend.transform_by_sum(sample_share<T>{}, std::span<const T>(z.span()), y.span(), read);
    CHECK(same_bits<T>(on_host(backend, y.span()), shares(z.span())));
    CHECK(same_bits<T>(on_host(backend, read), values));
    backend.transform_by_sum(sample_share<T>{}, read, y.span(), read);
    CHECK(same_bits<T>(on_host(backend, y.span()), expected));
    backend.transform_by_sum(sample_share<T>{}, read, x.span());
    CHECK(same_bits<T>(on_host(backend, read), expected));
  }
}

// Sums of squares like those of the rows alone, factors applied to their own row only.
template <class T, class B>
void rowwise_conformance(B& backend) {
  using mfsdp::index_t, mfsdp::matrix_view;
  for (const auto [rows, cols] : {mfsdp::matrix_shape{0, 0},
                                  {0, 3},
                                  {3, 0},
                                  {1, 1},
                                  {70, 33},
                                  {5, 2 * static_cast<index_t>(mfsdp::block_elements) + 77}}) {
    CAPTURE(rows);
    CAPTURE(cols);
    auto a = backend.template allocate<T>(rows * cols);
    auto factors = backend.template allocate<T>(rows);
    const auto values = host_values<T>(rows * cols, [](index_t i) { return sample<T>(i); });
    const auto by = host_values<T>(rows, [](index_t i) { return sample<T>(i, 1.0); });
    to_backend(backend, values, a.span());
    to_backend(backend, by, factors.span());
    const auto scaled = host_values<T>(rows * cols, [&, n = cols](index_t i) {
      return by[static_cast<std::size_t>(i / n)] * values[static_cast<std::size_t>(i)];
    });
    const auto expected = host_values<T>(rows, [&, n = cols](index_t i) {
      const std::span<const T> row = mfsdp::slice(a.span(), i * n, n);
      return static_cast<T>(backend.sum_of_squares(row));
    });

    auto sums = backend.template allocate<T>(rows);
    const matrix_view<T> view(a.span().data(), rows, cols);
    backend.row_sums_of_squares(matrix_view<const T>(view), sums.span());
    CHECK(same_bits<T>(on_host(backend, sums.span()), expected));
    backend.scale_rows(std::span<const T>(factors.span()), view);
    CHECK(same_bits<T>(on_host(backend, a.span()), scaled));
  }
}

// A square matrix of this rank, times a scale; symmetric and not negative, or neither.
template <class T>
std::vector<T> square_matrix(mfsdp::index_t n, mfsdp::index_t rank, double scale, bool symmetric) {
  std::vector<T> a;
  for (mfsdp::index_t i = 0; i < n; ++i) {
    for (mfsdp::index_t j = 0; j < n; ++j) {
      double sum = 0;
      for (mfsdp::index_t k = 0; k < rank; ++k) {
        sum += sample<double>(i * i + 3 * i * k + k) *
               sample<double>(j * j + 3 * j * k + k, symmetric ? 0.0 : 1.0);
      }
      a.push_back(static_cast<T>(scale * sum));
    }
  }
  return a;
}

// The largest entry of |x y^T - z| for square matrices; not finite if an entry is not.
template <class T>
double product_error(const std::vector<T>& x, const std::vector<T>& y, const auto& z,
                     mfsdp::index_t n) {
  double error = 0;
  for (mfsdp::index_t i = 0; i < n; ++i) {
    for (mfsdp::index_t j = 0; j < n; ++j) {
      double sum = 0;
      for (mfsdp::index_t k = 0; k < n; ++k) {
        sum += static_cast<double>(x[static_cast<std::size_t>(i * n + k)]) *
               static_cast<double>(y[static_cast<std::size_t>(j * n + k)]);
      }
      const double difference = std::abs(sum - z(i, j));
      error = std::isfinite(difference) ? std::max(error, difference) : difference;
    }
  }
  return error;
}

// Full, deficient and zero matrices at scales whose squares no float holds.
template <class T, class B>
void decomposition_conformance(B& backend) {
  using mfsdp::index_t, mfsdp::matrix_view;
  const auto identity = [](index_t i, index_t j) { return i == j ? 1.0 : 0.0; };
  const auto run = [&](const std::vector<T>& from, auto&& operation) {
    auto memory = backend.template allocate<T>(std::ssize(from));
    to_backend(backend, from, memory.span());
    operation(memory.span());
    return on_host(backend, memory.span());
  };
  for (const index_t n : {0, 1, 2, 7, 33}) {
    for (const index_t rank : {index_t{0}, std::min(n, index_t{2}), n}) {
      for (const double scale : {1.0, 1e-30, 1e15}) {
        CAPTURE(n);
        CAPTURE(rank);
        CAPTURE(scale);
        const double tolerance =
            20 * static_cast<double>(n + 1) * std::numeric_limits<T>::epsilon();

        const std::vector<T> a = square_matrix<T>(n, rank, scale, true);
        double size = 0;
        for (const T e : a) size = std::max(size, std::abs(static_cast<double>(e)));
        auto eigenvalues = backend.template allocate<T>(n);
        const std::vector<T> vectors = run(a, [&](std::span<T> x) {
          CHECK(backend.symmetric_eigen(matrix_view<T>(x.data(), n, n), eigenvalues.span()));
        });
        const std::vector<T> values = on_host(backend, eigenvalues.span());
        CHECK(std::ranges::is_sorted(values));
        CHECK(product_error(vectors, vectors, identity, n) <= tolerance);
        CHECK(product_error(
                  vectors, a,
                  [&](index_t i, index_t j) {
                    return static_cast<double>(values[static_cast<std::size_t>(i)]) *
                           static_cast<double>(vectors[static_cast<std::size_t>(i * n + j)]);
                  },
                  n) <= tolerance * size * static_cast<double>(n));
        bool positive = true;  // the first entry of largest magnitude of each vector
        for (index_t i = 0; i < n; ++i) {
          const auto row = mfsdp::slice(std::span(vectors), i * n, n);
          positive = positive &&
                     *std::ranges::max_element(row, {}, [](T e) { return std::abs(e); }) > T(0);
        }
        CHECK(positive);

        // Row i of the matrix has no component along later rows of the basis.
        const std::vector<T> general = square_matrix<T>(n, rank, scale, false);
        size = 0;
        for (const T e : general) size = std::max(size, std::abs(static_cast<double>(e)));
        const std::vector<T> basis = run(general, [&](std::span<T> x) {
          backend.orthonormalize_rows(matrix_view<T>(x.data(), n, n));
        });
        CHECK(product_error(basis, basis, identity, n) <= tolerance);
        double beyond = 0;
        double against = 0;  // and points to the side of its own
        for (index_t i = 0; i < n; ++i) {
          for (index_t j = i; j < n; ++j) {
            double component = 0;
            for (index_t k = 0; k < n; ++k) {
              component += static_cast<double>(general[static_cast<std::size_t>(i * n + k)]) *
                           static_cast<double>(basis[static_cast<std::size_t>(j * n + k)]);
            }
            if (i == j) {
              against = std::max(against, -component);
            } else {
              beyond = std::max(beyond, std::abs(component));
            }
          }
        }
        CHECK(beyond <= tolerance * size * static_cast<double>(n));
        CHECK(against <= tolerance * size * static_cast<double>(n));
      }
    }
  }

  const std::vector<index_t> rows = {2, 0, 1};
  const std::vector<index_t> cols = {3, 1, 0, 2};
  auto from = backend.template allocate<T>(12);
  auto to = backend.template allocate<T>(12);
  const auto before = host_values<T>(12, [](index_t i) { return sample<T>(i); });
  to_backend(backend, before, from.span());
  for (const bool by_row : {false, true}) {
    for (const bool by_col : {false, true}) {
      using order = std::span<const index_t>;
      backend.permute(matrix_view<const T>(from.span().data(), 3, 4),
                      by_row ? order(rows) : order(), by_col ? order(cols) : order(),
                      matrix_view<T>(to.span().data(), 3, 4));
      const std::vector<T> after = on_host(backend, to.span());
      bool right = true;
      for (std::size_t i = 0; i < 3; ++i) {
        for (std::size_t j = 0; j < 4; ++j) {
          const auto row = by_row ? static_cast<std::size_t>(rows[i]) : i;
          const auto col = by_col ? static_cast<std::size_t>(cols[j]) : j;
          right = right && after[i * 4 + j] == before[row * 4 + col];
        }
      }
      CHECK(right);
    }
  }
}

template <class B>
void backend_conformance(B backend) {
  static_assert(mfsdp::Backend<B>);
  const auto of = [&]<class T>(T) {
    allocation_conformance<T>(backend);
    multiply_conformance<T>(backend);
    multiply_symmetric_conformance<T>(backend);
    multiply_commuting_conformance<T>(backend);
    transform_conformance<T>(backend);
    sum_of_squares_conformance<T>(backend);
    transform_by_sum_conformance<T>(backend);
    if constexpr (mfsdp::RowwiseBackend<B>) rowwise_conformance<T>(backend);
    if constexpr (mfsdp::DecomposingBackend<B>) decomposition_conformance<T>(backend);
  };
  of(float{});
  of(double{});
}

// Storage in the 16-bit type T: conversions of every number and between numbers, at every size and
// alignment; random bits that follow from key and index alone.
template <class T, class B>
void conversion_conformance_of(B& backend) {
  static_assert(mfsdp::ConvertingBackend<B, T>);
  constexpr mfsdp::index_t patterns = 65536;
  auto narrow = backend.template allocate<T>(patterns);
  auto wide = backend.template allocate<float>(patterns);
  auto back = backend.template allocate<T>(patterns);
  const auto every = host_values<T>(
      patterns, [](mfsdp::index_t i) { return T::from_bits(static_cast<std::uint16_t>(i)); });
  to_backend(backend, every, narrow.span());
  backend.convert(std::span<const T>(narrow.span()), wide.span());
  backend.convert(std::span<const float>(wide.span()), back.span());
  const auto equal = [](T a, T b) {
    return a.bits() == b.bits() ||
           (std::isnan(static_cast<float>(a)) && std::isnan(static_cast<float>(b)));
  };
  CHECK(std::ranges::equal(every, on_host(backend, back.span()), equal));

  for (const mfsdp::index_t size : {0, 1, 7, 64, 65, 1000}) {
    for (const mfsdp::index_t shift : {0, 1}) {
      CAPTURE(size);
      CAPTURE(shift);
      const auto values =
          host_values<float>(size, [](mfsdp::index_t i) { return 3.0f * sample<float>(i); });
      const auto from = mfsdp::slice(wide.span(), shift, size);
      const auto to = mfsdp::slice(back.span(), shift, size);
      to_backend(backend, values, from);
      const T mark = T(77.0f);
      backend.fill(back.span(), mark);
      const auto rounded_as = [&](auto rounding) {
        const std::vector<T> rounded = on_host(backend, to);
        bool same = true;
        for (std::size_t i = 0; i < rounded.size(); ++i) {
          same = same && rounded[i].bits() == rounding(values[i], i).bits();
        }
        return same;
      };
      backend.convert(std::span<const float>(from), to);
      CHECK(rounded_as([](float x, std::size_t) { return T(x); }));
      backend.round_stochastically(std::span<const float>(from), to, 42, 100 + shift);
      CHECK(rounded_as([&](float x, std::size_t i) {
        const auto index = 100 + shift + static_cast<mfsdp::index_t>(i);
        return T::stochastic(x, mfsdp::rounding_bits(42, index));
      }));
      const std::vector<T> around = on_host(backend, back.span());
      CHECK(around[static_cast<std::size_t>(size + shift)] == mark);
      if (shift == 1) CHECK(around[0] == mark);

      const double sum = backend.sum_of_squares(std::span<const T>(to));
      double expected = 0;
      for (const T x : on_host(backend, to)) {
        expected += static_cast<double>(x) * static_cast<double>(x);
      }
      CHECK(sum == doctest::Approx(expected).epsilon(1e-13));
    }
  }
}

template <class B>
void conversion_conformance(B backend) {
  conversion_conformance_of<mfsdp::bfloat16>(backend);
  conversion_conformance_of<mfsdp::float16>(backend);
}

}  // namespace mfsdp_test
