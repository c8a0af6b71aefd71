// Conformance of a Backend, for this library's and for yours: call backend_conformance(my_backend)
// in a doctest case. The host must be able to read and write the memory that the backend allocates.
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
    CHECK(std::ranges::all_of(buffer.span(), [](T x) { return x == T(3); }));

    auto other = backend.template allocate<T>(size);
    backend.copy(std::span<const T>(buffer.span()), other.span());
    CHECK(std::ranges::equal(buffer.span(), other.span()));

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
    for (index_t i = 0; i < m * k; ++i) a.span()[i] = sample<T>(i);
    for (index_t i = 0; i < k * n; ++i) b.span()[i] = sample<T>(i, 1.0);
    // What beta = 0 must not read.
    backend.fill(c.span(), beta == T(0) ? std::numeric_limits<T>::quiet_NaN() : T(2));
    const bool flip_a = op_a == transpose::yes;
    const bool flip_b = op_b == transpose::yes;
    backend.multiply(
        T(0.5), mfsdp::matrix_view<const T>(a.span().data(), flip_a ? k : m, flip_a ? m : k), op_a,
        mfsdp::matrix_view<const T>(b.span().data(), flip_b ? n : k, flip_b ? k : n), op_b, beta,
        mfsdp::matrix_view<const T>(c.span().data(), m, n),
        mfsdp::matrix_view<T>(c.span().data(), m, n));
    double error = 0;
    for (index_t i = 0; i < m; ++i) {
      for (index_t j = 0; j < n; ++j) {
        double sum = 0;
        for (index_t l = 0; l < k; ++l) {
          sum += static_cast<double>(a.span()[flip_a ? l * m + i : i * k + l]) *
                 static_cast<double>(b.span()[flip_b ? j * k + l : l * n + j]);
        }
        const double expected = 0.5 * sum + 2 * static_cast<double>(beta);
        const double difference = std::abs(static_cast<double>(c.span()[i * n + j]) - expected);
        error = std::isnan(difference) ? 1e30 : std::max(error, difference);
      }
    }
    CHECK(error <= 4 * static_cast<double>(k + 1) * std::numeric_limits<T>::epsilon());
    return c;
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
          CHECK(same_bits<T>(once.span(), again.span()));
        }
      }
    }
  }
}

// X X^T, X^T X and the square of a symmetric matrix: what multiply gives, symmetric to the last
// bit, added to another matrix or in place.
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
    for (index_t i = 0; i < n * k; ++i) {
      a.span()[i] = square ? sample<T>(i / k + i % k) : sample<T>(i);
    }
    for (index_t i = 0; i < n * n; ++i) c.span()[i] = sample<T>(i / n + i % n, 1.0);
    const std::vector<T> before(c.span().begin(), c.span().end());
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
    double error = 0;
    bool symmetric = true;
    for (index_t i = 0; i < n * n; ++i) {
      const double difference =
          std::abs(static_cast<double>(result.span()[i]) - static_cast<double>(expected.span()[i]));
      error = std::isnan(difference) ? 1e30 : std::max(error, difference);
      symmetric = symmetric && result.span()[i] == result.span()[i % n * n + i / n];
    }
    CHECK(error <= 4 * static_cast<double>(k + 1) * std::numeric_limits<T>::epsilon());
    CHECK(symmetric);
    if (!in_place) CHECK(same_bits<T>(before, c.span()));
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
    for (index_t i = 0; i < n * n; ++i) p.span()[i] = sample<T>(i / n + i % n);
    backend.multiply(T(1), matrix(p), transpose::no, matrix(p), transpose::no, T(0.5), matrix(p),
                     matrix(q));
    backend.multiply(T(1), matrix(p), transpose::no, matrix(q), transpose::no, T(2), matrix(q),
                     matrix(expected));
    backend.multiply_symmetric(T(1), matrix(p), transpose::no, matrix(q), transpose::no, T(2),
                               matrix(q), matrix(result));
    double error = 0;
    double largest = 0;
    for (index_t i = 0; i < n * n; ++i) {
      const double e = static_cast<double>(expected.span()[i]);
      error = std::max(error, std::abs(static_cast<double>(result.span()[i]) - e));
      largest = std::max(largest, std::abs(e));
    }
    CHECK(error <= 16 * static_cast<double>(n) * std::numeric_limits<T>::epsilon() * largest);
  }
}

// Every size, aligned and not: each element as if it were alone, nothing written beyond the end,
// constant spans unchanged.
template <class T, class B>
void transform_conformance(B& backend) {
  const auto kernel = [](auto& a, auto& b, const auto& c) {
    using std::sqrt;
    a = T(0.9) * a + T(0.1) * c;
    b = b / (sqrt(c * c) + T(1e-3)) - a * c;
  };
  constexpr mfsdp::index_t sizes = 300;
  auto a = backend.template allocate<T>(sizes + 2);
  auto b = backend.template allocate<T>(sizes + 2);
  auto c = backend.template allocate<T>(sizes + 2);
  std::vector<T> alone_a, alone_b;
  for (mfsdp::index_t i = 0; i < sizes; ++i) {
    a.span()[0] = sample<T>(i);
    b.span()[0] = sample<T>(i, 1.0);
    c.span()[0] = sample<T>(i, 2.0);
    backend.transform(kernel, a.span().first(1), b.span().first(1),
                      std::span<const T>(c.span().first(1)));
    alone_a.push_back(a.span()[0]);
    alone_b.push_back(b.span()[0]);
  }
  bool each_alone = true;
  bool contained = true;
  for (mfsdp::index_t size = 0; size <= sizes; ++size) {
    for (const mfsdp::index_t offset : {0, 1}) {
      for (mfsdp::index_t i = 0; i < sizes + 2; ++i) {
        a.span()[i] = sample<T>(i - offset);
        b.span()[i] = sample<T>(i - offset, 1.0);
        c.span()[i] = sample<T>(i - offset, 2.0);
      }
      const std::vector<T> before(c.span().begin(), c.span().end());
      const auto count = static_cast<std::size_t>(size);
      const auto part_a = mfsdp::slice(a.span(), offset, size);
      const auto part_b = mfsdp::slice(b.span(), offset, size);
      backend.transform(kernel, part_a, part_b,
                        std::span<const T>(mfsdp::slice(c.span(), offset, size)));
      each_alone = each_alone && same_bits<T>(part_a, std::span(alone_a).first(count)) &&
                   same_bits<T>(part_b, std::span(alone_b).first(count));
      contained = contained && a.span()[size + offset] == sample<T>(size) &&
                  b.span()[size + offset] == sample<T>(size, 1.0) && same_bits<T>(before, c.span());
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
    double expected = 0;
    for (mfsdp::index_t i = 0; i < size; ++i) {
      x.span()[i] = shifted.span()[i + 1] = sample<T>(i);
      expected += static_cast<double>(x.span()[i]) * static_cast<double>(x.span()[i]);
    }
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
    for (index_t i = 0; i < rows * cols; ++i) a.span()[i] = sample<T>(i);
    for (index_t i = 0; i < rows; ++i) factors.span()[i] = sample<T>(i, 1.0);
    std::vector<T> scaled;
    for (index_t i = 0; i < rows * cols; ++i) {
      scaled.push_back(factors.span()[i / cols] * a.span()[i]);
    }
    std::vector<T> expected;
    for (index_t i = 0; i < rows; ++i) {
      const std::span<const T> row = mfsdp::slice(a.span(), i * cols, cols);
      expected.push_back(static_cast<T>(backend.sum_of_squares(row)));
    }

    auto sums = backend.template allocate<T>(rows);
    const matrix_view<T> view(a.span().data(), rows, cols);
    backend.row_sums_of_squares(matrix_view<const T>(view), sums.span());
    CHECK(same_bits<T>(sums.span(), expected));
    backend.scale_rows(std::span<const T>(factors.span()), view);
    CHECK(same_bits<T>(a.span(), scaled));
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
    std::ranges::copy(from, memory.span().begin());
    operation(memory.span());
    return std::vector<T>(memory.span().begin(), memory.span().end());
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
        auto values = backend.template allocate<T>(n);
        const std::vector<T> vectors = run(a, [&](std::span<T> x) {
          CHECK(backend.symmetric_eigen(matrix_view<T>(x.data(), n, n), values.span()));
        });
        CHECK(std::ranges::is_sorted(values.span()));
        CHECK(product_error(vectors, vectors, identity, n) <= tolerance);
        CHECK(product_error(
                  vectors, a,
                  [&](index_t i, index_t j) {
                    return static_cast<double>(values.span()[i]) *
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
  for (index_t i = 0; i < 12; ++i) from.span()[i] = sample<T>(i);
  for (const bool by_row : {false, true}) {
    for (const bool by_col : {false, true}) {
      using order = std::span<const index_t>;
      backend.permute(matrix_view<const T>(from.span().data(), 3, 4),
                      by_row ? order(rows) : order(), by_col ? order(cols) : order(),
                      matrix_view<T>(to.span().data(), 3, 4));
      bool right = true;
      for (std::size_t i = 0; i < 3; ++i) {
        for (std::size_t j = 0; j < 4; ++j) {
          const auto row = by_row ? static_cast<std::size_t>(rows[i]) : i;
          const auto col = by_col ? static_cast<std::size_t>(cols[j]) : j;
          right = right && to.span()[i * 4 + j] == from.span()[row * 4 + col];
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
  for (mfsdp::index_t i = 0; i < patterns; ++i) {
    narrow.span()[i] = T::from_bits(static_cast<std::uint16_t>(i));
  }
  backend.convert(std::span<const T>(narrow.span()), wide.span());
  backend.convert(std::span<const float>(wide.span()), back.span());
  const auto equal = [](T a, T b) {
    return a.bits() == b.bits() ||
           (std::isnan(static_cast<float>(a)) && std::isnan(static_cast<float>(b)));
  };
  CHECK(std::ranges::equal(narrow.span(), back.span(), equal));

  for (const mfsdp::index_t size : {0, 1, 7, 64, 65, 1000}) {
    for (const mfsdp::index_t shift : {0, 1}) {
      CAPTURE(size);
      CAPTURE(shift);
      const auto values = mfsdp::slice(wide.span(), shift, size);
      const auto rounded = mfsdp::slice(back.span(), shift, size);
      const T mark = T(77.0f);
      backend.fill(back.span(), mark);
      for (mfsdp::index_t i = 0; i < size; ++i) values[i] = 3.0f * sample<float>(i);
      bool nearest = true;
      backend.convert(std::span<const float>(values), rounded);
      for (mfsdp::index_t i = 0; i < size; ++i) {
        nearest = nearest && rounded[i].bits() == T(values[i]).bits();
      }
      CHECK(nearest);
      bool stochastic = true;
      backend.round_stochastically(std::span<const float>(values), rounded, 42, 100 + shift);
      for (mfsdp::index_t i = 0; i < size; ++i) {
        const T expected = T::stochastic(values[i], mfsdp::rounding_bits(42, 100 + shift + i));
        stochastic = stochastic && rounded[i].bits() == expected.bits();
      }
      CHECK(stochastic);
      CHECK(back.span()[size + shift] == mark);
      if (shift == 1) CHECK(back.span()[0] == mark);

      const double sum = backend.sum_of_squares(std::span<const T>(rounded));
      double expected = 0;
      for (const T x : rounded) expected += static_cast<double>(x) * static_cast<double>(x);
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
