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
#include "mfsdp/optimizer/workspace.hpp"

namespace mfsdp::inline MFSDP_ABI {

// One iteration: X <- a X + b (X X^T) X + c (X X^T)^2 X, an odd polynomial of the singular values.
struct newton_schulz_row {
  double a = 0;
  double b = 0;
  double c = 0;
};

// Keller Jordan's, the same for every iteration: lifts small singular values fast and leaves all of
// them within about [0.68, 1.14] rather than at one. Source: github.com/KellerJordan/Muon.
inline constexpr std::array<newton_schulz_row, 1> keller_coefficients{{{3.4445, -4.7750, 2.0315}}};

enum class epsilon_rule { add, clamp };

// What is iterated, and on what: x / (safety |x|_F + epsilon) or x / max(safety |x|_F, epsilon).
struct newton_schulz_options {
  std::span<const newton_schulz_row> coefficients = keller_coefficients;  // the last row repeats
  int steps = 5;
  double safety = 1;      // above one: keeps rounded singular values inside the polynomial's range
  double epsilon = 1e-7;  // positive
  epsilon_rule rule = epsilon_rule::add;
};

// Scratch elements of one call.
[[nodiscard]] constexpr index_t newton_schulz_workspace(matrix_shape shape) {
  const index_t n = std::min(shape.rows, shape.cols);
  return detail::workspace_part(shape.elements()) + 2 * detail::workspace_part(n * n);
}

// Operations of one call: 4 n^2 m + 2 n^3 for each iteration, n the smaller side of the matrix and
// m the larger.
[[nodiscard]] constexpr index_t newton_schulz_flops(matrix_shape shape, int steps) {
  const index_t n = std::min(shape.rows, shape.cols);
  return steps * (4 * n * shape.elements() + 2 * n * n * n);
}

// Replaces x (rows x cols) by U V^T of its singular value decomposition, approximately: normalised,
// then iterated as the options say. The norm is taken in double. A zero matrix stays zero; no
// finite float overflows.
// The workspace has newton_schulz_workspace(x.shape()) elements. Results depend on the alignment of
// x and workspace only if they are not aligned to storage_alignment.
// Source: Bernstein & Newhouse, arXiv 2409.20325; github.com/KellerJordan/Muon.
template <Backend B, class T>
void newton_schulz(B& backend, matrix_view<T> x, const newton_schulz_options& options,
                   std::span<T> workspace) {
  assert(std::ssize(workspace) >= newton_schulz_workspace(x.shape()));
  if (x.size() == 0) return;

  // As a root applied twice, since the inverse itself may be too small for T.
  const double norm = options.safety * std::sqrt(backend.sum_of_squares(x.flat()));
  const double divisor =
      options.rule == epsilon_rule::add ? norm + options.epsilon : std::max(norm, options.epsilon);
  const T root = static_cast<T>(std::sqrt(1 / divisor));
  backend.transform([root](auto& e) { e = (e * root) * root; }, x.flat());

  // A tall matrix is iterated from the right, so that the Gram matrix is always the smaller one.
  const bool tall = x.rows() > x.cols();
  const index_t n = std::min(x.rows(), x.cols());
  const index_t part = detail::workspace_part(n * n);
  const matrix_view<T> gram(workspace.data(), n, n);
  const matrix_view<T> polynomial(workspace.data() + part, n, n);
  matrix_view<T> now = x;
  matrix_view<T> next(workspace.data() + 2 * part, x.shape());

  for (int step = 0; step < options.steps; ++step) {
    const auto row = std::min(static_cast<std::size_t>(step), options.coefficients.size() - 1);
    const auto [a, b, c] = options.coefficients[row];
    backend.multiply_symmetric(T(1), now, tall ? transpose::yes : transpose::no, now,
                               tall ? transpose::no : transpose::yes, T(0), gram, gram);
    backend.multiply_symmetric(static_cast<T>(c), gram, transpose::no, gram, transpose::no,
                               static_cast<T>(b), gram, polynomial);
    backend.multiply(T(1), tall ? now : polynomial, transpose::no, tall ? polynomial : now,
                     transpose::no, static_cast<T>(a), now, next);
    std::swap(now, next);
  }
  if (now.data() != x.data()) backend.copy(now.flat(), x.flat());
}

}  // namespace mfsdp::inline MFSDP_ABI
