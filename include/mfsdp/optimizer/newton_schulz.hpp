// Newton-Schulz: the nearest matrix with orthonormal rows or columns, from products alone.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstddef>
#include <span>
#include <utility>

#include "mfsdp/concepts.hpp"
#include "mfsdp/workspace.hpp"

namespace mfsdp::inline MFSDP_ABI {

// One iteration: X <- a X + b (X X^T) X + c (X X^T)^2 X, an odd polynomial of the singular values.
struct newton_schulz_row {
  double a = 0;
  double b = 0;
  double c = 0;
  friend constexpr bool operator==(const newton_schulz_row&, const newton_schulz_row&) = default;
};

// Keller Jordan's, the same for every iteration: lifts small singular values fast and leaves all of
// them within about [0.68, 1.14] rather than at one. Source: github.com/KellerJordan/Muon.
inline constexpr std::array<newton_schulz_row, 1> keller_coefficients{{{3.4445, -4.7750, 2.0315}}};

// The rows of a run by value: the first for the first iteration, the last repeats. At most ten,
// which is more than any published table has.
class newton_schulz_table {
 public:
  template <std::size_t N>
    requires(N >= 1 && N <= 10)
  constexpr newton_schulz_table(const std::array<newton_schulz_row, N>& rows) : size_(N) {
    std::copy(rows.begin(), rows.end(), rows_.begin());
  }

  [[nodiscard]] constexpr std::span<const newton_schulz_row> rows() const {
    return std::span(rows_).first(size_);
  }
  // Of iteration 0, 1, ...
  [[nodiscard]] constexpr const newton_schulz_row& operator[](int step) const {
    return rows_[std::min(static_cast<std::size_t>(step), size_ - 1)];
  }
  friend constexpr bool operator==(const newton_schulz_table&,
                                   const newton_schulz_table&) = default;

 private:
  std::array<newton_schulz_row, 10> rows_{};
  std::size_t size_;
};

enum class epsilon_rule { add, clamp };

// How the iteration is carried out; the same but for rounding.
//   direct     X <- a X + (b R + c R^2) X of R = X X^T anew in each iteration
//   gram       iterates on R, where only the smaller side counts, and applies what came together to
//              X before the third iteration, the sixth, ... and after the last
//   automatic  gram where the larger side is 1.5 times the smaller or more: then it saves a sixth
//              of the operations of five steps, and two fifths at 4 times
enum class newton_schulz_form { automatic, direct, gram };

// What is iterated, and on what: x / (safety |x|_F + epsilon) or x / max(safety |x|_F, epsilon).
struct newton_schulz_options {
  newton_schulz_table coefficients = keller_coefficients;
  int steps = 5;
  double safety = 1;      // above one: keeps rounded singular values inside the polynomial's range
  double epsilon = 1e-7;  // positive
  epsilon_rule rule = epsilon_rule::add;
  newton_schulz_form form = newton_schulz_form::automatic;
};

namespace detail {

[[nodiscard]] constexpr bool in_gram_form(matrix_shape shape, newton_schulz_form form) {
  const auto [smaller, larger] = std::minmax(shape.rows, shape.cols);
  return form == newton_schulz_form::gram ||
         (form == newton_schulz_form::automatic && 2 * larger >= 3 * smaller);
}

// Where the Gram form returns to X. Below its rank R has eigenvalues of rounding errors, negative
// ones among them, which grow by a^2 in an iteration: between two returns by less than 200 in the
// tables that are in use, to 10^-4 in float, far from where the polynomial turns. The first row of
// a table grows fastest and has the shorter stretch.
[[nodiscard]] constexpr bool gram_restarts(int step) {
  return step % 3 == 2;
}
[[nodiscard]] constexpr int gram_stretches(int steps) {
  return steps == 0 ? 0 : 1 + steps / 3;
}

// x / divisor of the sum of squares of all x, as a root applied twice, since the inverse itself may
// be too small for T.
template <class T>
struct normalize {
  double safety;
  double epsilon;
  epsilon_rule rule;

  MFSDP_HOST_DEVICE void operator()(const double& sum, auto& x) const {
    const T by = root(sum);
    x = (x * by) * by;
  }
  MFSDP_HOST_DEVICE void operator()(const double& sum, auto& to, const auto& from) const {
    const T by = root(sum);
    to = (from * by) * by;
  }

 private:
  MFSDP_HOST_DEVICE T root(double sum) const {
    using std::sqrt;
    const double norm = safety * sqrt(sum);
    const double larger = norm < epsilon ? epsilon : norm;
    return static_cast<T>(sqrt(1 / (rule == epsilon_rule::add ? norm + epsilon : larger)));
  }
};

template <class T>
struct add_scaled {
  T factor;
  MFSDP_HOST_DEVICE void operator()(auto& x, const auto& y) const { x = x + factor * y; }
};

}  // namespace detail

// Scratch elements of one call: a matrix and two, in the Gram form four, of its smaller side.
[[nodiscard]] constexpr index_t newton_schulz_workspace(
    matrix_shape shape, newton_schulz_form form = newton_schulz_form::automatic) {
  const index_t n = std::min(shape.rows, shape.cols);
  return detail::workspace_part(shape.elements()) +
         (detail::in_gram_form(shape, form) ? 4 : 2) * detail::workspace_part(n * n);
}

// Operations of one call, n the smaller side of the matrix and m the larger, where a symmetric
// product costs half of another: 3 n^2 m + n^3 for each iteration. In the Gram form 3 n^2 m for
// each stretch between returns to X and 4 n^3 for each iteration less 3 n^3 for each stretch: for
// five steps 6 n^2 m + 14 n^3 rather than 15 n^2 m + 5 n^3.
[[nodiscard]] constexpr index_t newton_schulz_flops(
    matrix_shape shape, int steps, newton_schulz_form form = newton_schulz_form::automatic) {
  const index_t n = std::min(shape.rows, shape.cols);
  const index_t rectangular = 3 * n * shape.elements();
  const index_t cube = n * n * n;
  if (!detail::in_gram_form(shape, form)) return steps * (rectangular + cube);
  return detail::gram_stretches(steps) * (rectangular - 3 * cube) + 4 * steps * cube;
}

// Replaces x (rows x cols) by U V^T of its singular value decomposition, approximately: normalised,
// then iterated as the options say. The norm is taken in double. A zero matrix stays zero; no
// finite float overflows.
// The workspace has newton_schulz_workspace(x.shape(), options.form) elements. Results depend on
// the alignment of x and workspace only if they are not aligned to storage_alignment.
// Source: Bernstein & Newhouse, arXiv 2409.20325; github.com/KellerJordan/Muon; for the Gram form
// github.com/Dao-AILab/gram-newton-schulz.
template <Backend B, class T>
void newton_schulz(B& backend, matrix_view<T> x, const newton_schulz_options& options,
                   std::span<T> workspace) {
  assert(std::ssize(workspace) >= newton_schulz_workspace(x.shape(), options.form));
  if (x.size() == 0) return;
  const bool gram_form = detail::in_gram_form(x.shape(), options.form);

  // A tall matrix is iterated from the right, so that R is always the smaller Gram matrix.
  const bool tall = x.rows() > x.cols();
  const index_t n = std::min(x.rows(), x.cols());
  const auto square = [&](index_t i) {
    return matrix_view<T>(workspace.data() + i * detail::workspace_part(n * n), n, n);
  };
  matrix_view<T> now = x;
  matrix_view<T> next(square(gram_form ? 4 : 2).data(), x.shape());

  // r = X X^T
  const auto gram = [&](matrix_view<T> r) {
    backend.multiply_symmetric(T(1), now, tall ? transpose::yes : transpose::no, now,
                               tall ? transpose::no : transpose::yes, T(0), r, r);
  };
  // d = alpha p q + beta c of commuting symmetric matrices.
  const auto symmetric = [&](double alpha, matrix_view<T> p, matrix_view<T> q, double beta,
                             matrix_view<T> c, matrix_view<T> d) {
    backend.multiply_symmetric(static_cast<T>(alpha), p, transpose::no, q, transpose::no,
                               static_cast<T>(beta), c, d);
  };
  // X <- (p + diagonal I) X
  const auto apply = [&](matrix_view<T> p, double diagonal) {
    backend.multiply(T(1), tall ? now : p, transpose::no, tall ? p : now, transpose::no,
                     static_cast<T>(diagonal), now, next);
    std::swap(now, next);
  };

  // An odd number of exchanges of now and next starts in the workspace and so ends in x.
  const detail::normalize<T> normalize{options.safety, options.epsilon, options.rule};
  const std::span<const T> given = x.flat();
  const int exchanges = gram_form ? detail::gram_stretches(options.steps) : options.steps;
  if (exchanges % 2 == 0) {
    backend.transform_by_sum(normalize, given, x.flat());
  } else {
    backend.transform_by_sum(normalize, given, next.flat(), given);
    std::swap(now, next);
  }

  if (!gram_form) {
    const matrix_view<T> r = square(0);
    const matrix_view<T> z = square(1);
    for (int step = 0; step < options.steps; ++step) {
      const auto [a, b, c] = options.coefficients[step];
      gram(r);
      symmetric(c, r, r, b, r, z);
      apply(z, a);
    }
    return;
  }

  // What came together is q + shift I; everything is a polynomial of R, hence symmetric.
  matrix_view<T> q = square(0);
  matrix_view<T> product = square(1);
  const matrix_view<T> r = square(2);
  double shift = 1;
  for (int step = 0; step < options.steps; ++step) {
    const auto [a, b, c] = options.coefficients[step];
    const bool first = step == 0 || detail::gram_restarts(step);
    const bool last = step + 1 == options.steps || detail::gram_restarts(step + 1);
    const matrix_view<T> z = first ? q : square(3);
    if (first) gram(r);
    symmetric(c, r, r, b, r, z);
    if (!last) {  // R <- (Z + a I) R (Z + a I)
      symmetric(1, z, r, a, r, product);
      symmetric(1, product, z, a, product, r);
    }
    if (first) {
      shift = a;
    } else {  // q + shift I <- (q + shift I) (Z + a I)
      symmetric(1, q, z, a, q, product);
      backend.transform(detail::add_scaled<T>{static_cast<T>(shift)}, product.flat(),
                        std::span<const T>(z.flat()));
      std::swap(q, product);
      shift *= a;
    }
    if (last) apply(q, shift);
  }
}

}  // namespace mfsdp::inline MFSDP_ABI
