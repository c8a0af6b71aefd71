// shampoo: gradients divided by the roots of their second moments along rows and columns.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/kernel.hpp"
#include "mfsdp/optimizer/kronecker.hpp"
#include "mfsdp/workspace.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

// The direction is a mix of the gradient and the average before it takes the gradient.
template <class T>
struct filter_gradient {
  T keep, take, ahead_keep, ahead_take;
  MFSDP_HOST_DEVICE void operator()(auto& f, auto& d, const auto& g) const {
    d = ahead_keep * f + ahead_take * g;
    f = keep * f + take * g;
  }
};

template <class T>
struct adam_direction {
  T unbias, floor;
  MFSDP_HOST_DEVICE void operator()(auto& y, const auto& d, const auto& v) const {
    using std::sqrt;
    y = d / (unbias * sqrt(v) + floor);
  }
};

// An eigenvalue becomes the square root of that of the root.
template <class T>
struct root_of_eigenvalue {
  T by, least, floor, power;
  MFSDP_HOST_DEVICE void operator()(auto& e) const {
    using std::pow;
    e = pow(by * (e - least) + floor, power);
  }
};

}  // namespace detail

// Shampoo's directions with the norms of Adam's steps, block by block; b2 and epsilon of the
// latter.
struct adam_graft {
  double beta2 = 0.999;
  double epsilon = 1e-10;
};

// Distributed Shampoo on a matrix W (m x n, outputs x inputs) with gradient G, at step t = 1, 2,
// ...
//
//   L <- b2 L + (1 - b2) G G^T,   R <- b2 R + (1 - b2) G^T G       sums if b2 = 1
//   A <- (L / c + epsilon)^-e,    B <- (R / c + epsilon)^-e        c = 1 - b2^t, or 1 if b2 = 1
//   D <- b3 F + (1 - b3) G,       F <- b1 F + (1 - b1) G
//   X <- A D B / (1 - b3 b1^(t-1))
//   X <- X |Y| / (|X| + 1e-16)       if grafted, Y being Adam's step from D and averages of G^2
//   W <- (1 - lr wd) W - lr X
//
// The exponent e is 1/4, so that without history X is the polar factor of G. The roots A and B are
// of step `start` and of later multiples of `frequency`; before `start` X is Y, or D if not
// grafted. If an eigenvalue is negative from rounding, all are raised by it. If a decomposition
// fails, the last roots stay; until a first one succeeds W only decays.
//
// Blocks: a matrix with a side above max_preconditioner_dimension is cut into blocks, each with
// factors of its own, and the states are in the order of blocks. Dimensions are never merged. A
// matrix of one row or column has one factor, along its elements, and e = 1/2: full-matrix AdaGrad.
//
// Zero gradients from the start only decay W. Gradients must have squares that are finite. The
// gradient is never written, alignment does not matter.
// Memory for a block: 2 (m^2 + n^2), + m n if b1 is not 0, + m n if grafted: 5 per weight if
// square, 6 grafted. Cost: 4 m n (m + n), and 27 (m^3 + n^3) for roots; a workspace of about two
// matrices and a factor.
//
// Source: Gupta et al., arXiv 1802.09568; Shi et al., arXiv 2309.06497, whose defaults these are
// (github.com/facebookresearch/optimizers, which does merge dimensions).
struct shampoo {
  double learning_rate = 0.01;
  double beta1 = 0.9;
  double beta2 = 1;
  std::optional<double> beta3{};  // if not given, beta1
  double epsilon = 1e-12;         // positive, as are frequency and dimension
  double weight_decay = 0;
  std::optional<double> exponent{};  // if not given, 1/4, or 1/2 for one row or column
  index_t frequency = 1;
  std::optional<index_t> start{};  // if not given, frequency
  index_t max_preconditioner_dimension = 1024;
  std::optional<adam_graft> graft{};

  static constexpr std::string_view name = "shampoo";
  static constexpr bool whole_matrix = true;
  static constexpr bool squares_gradient = true;

  void check() const {
    if (frequency < 1 || first_root() < 1 || max_preconditioner_dimension < 1) {
      throw spec_error(
          fmt::format("shampoo: frequency {}, start {} and max_preconditioner_dimension {} must be "
                      "positive",
                      frequency, first_root(), max_preconditioner_dimension));
    }
    if (!(epsilon > 0)) throw spec_error(fmt::format("shampoo: epsilon is {}", epsilon));
  }
  // For the check that all ranks use the same.
  [[nodiscard]] std::string options() const {
    std::string text =
        fmt::format("shampoo {} {} {} {} {} {} {} {} {} {}", learning_rate, beta1, beta2,
                    beta3.value_or(beta1), epsilon, weight_decay, exponent.value_or(0), frequency,
                    first_root(), max_preconditioner_dimension);
    if (graft) text += fmt::format(" graft {} {}", graft->beta2, graft->epsilon);
    return text;
  }

 private:
  // A part of the matrix with factors of its own. Offsets are in the packed matrix and in the
  // states; a side without a factor has 0.
  struct block {
    matrix_shape shape;
    index_t row = 0;
    index_t col = 0;
    index_t begin = 0;
    index_t left = 0;
    index_t right = 0;
    index_t left_begin = 0;
    index_t right_begin = 0;
  };

  template <class F>
  constexpr void for_each_block(matrix_shape shape, F f) const {
    block b;
    for (b.row = 0; b.row < shape.rows; b.row += max_preconditioner_dimension) {
      for (b.col = 0; b.col < shape.cols; b.col += max_preconditioner_dimension) {
        b.shape = {std::min(max_preconditioner_dimension, shape.rows - b.row),
                   std::min(max_preconditioner_dimension, shape.cols - b.col)};
        b.left = shape.rows > 1 || shape.cols == 1 ? b.shape.rows : 0;
        b.right = shape.cols > 1 ? b.shape.cols : 0;
        f(b);
        b.begin += b.shape.elements();
        b.left_begin += b.left * b.left;
        b.right_begin += b.right * b.right;
      }
    }
  }

 public:
  // Roots count with their share of one step.
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const {
    index_t products = 0;
    index_t roots = 0;
    for_each_block(shape, [&](const block& b) {
      products += 4 * b.shape.elements() * (b.left + b.right);
      for (const index_t n : {b.left, b.right}) {
        roots += detail::symmetric_eigen_flops(n) + 2 * n * n * n;
      }
    });
    return products + roots / frequency + (graft ? 30 : 16) * shape.elements();
  }

  [[nodiscard]] constexpr std::array<state_spec, 6> states(matrix_shape shape) const {
    index_t left = 0;
    index_t right = 0;
    for_each_block(shape, [&](const block& b) {
      left += b.left * b.left;
      right += b.right * b.right;
    });
    return {{{"left_factor", left, true},
             {"right_factor", right, true},
             {"left_root", left, true},
             {"right_root", right, true},
             {"filtered_gradient", beta1 == 0 ? 0 : shape.elements()},
             {"graft_second_moment", graft ? shape.elements() : 0}}};
  }

  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    const index_t side = largest_side(shape);
    return 2 * detail::workspace_part(shape.elements()) + detail::workspace_part(side * side) +
           detail::workspace_part(side);
  }

  template <DecomposingBackend B, class T>
  void update(B& backend, const std::array<std::span<T>, 6>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient,
              const update_context<T>& context) const {
    const auto& [left_factor, right_factor, left_root, right_root, filtered, second_moment] = state;
    const matrix_shape shape = parameter.shape();
    const std::int64_t t = context.step;
    const bool preconditions = t >= first_root();
    const bool roots_due = t == first_root() || (t > first_root() && t % frequency == 0);

    // Block after block, so that each is a matrix and has its place in the states.
    detail::workspace_cutter<T> workspace(context.workspace);
    const std::span<T> packed = workspace.take(shape.elements());
    const std::span<T> direction = workspace.take(shape.elements());
    const index_t side = largest_side(shape);
    const root_scratch<T> scratch{workspace.take(side * side), workspace.take(side)};
    for_each_run(shape, [&](index_t at, index_t to, index_t count) {
      backend.copy(slice(gradient.flat(), at, count), slice(packed, to, count));
    });

    filter(backend, t, packed, filtered, direction);
    if (graft) {
      const detail::average_square<T> average{static_cast<T>(graft->beta2),
                                              static_cast<T>(detail::new_weight(graft->beta2))};
      backend.transform(average, second_moment, std::span<const T>(packed));
    }

    for_each_block(shape, [&](const block& b) {
      const auto square = [](std::span<T> all, index_t begin, index_t n) {
        return matrix_view<T>(slice(all, begin, n * n).data(), n, n);
      };
      const matrix_view<T> g(slice(packed, b.begin, b.shape.elements()).data(), b.shape);
      const matrix_view<T> x(slice(direction, b.begin, b.shape.elements()).data(), b.shape);
      const matrix_view<T> l = square(left_factor, b.left_begin, b.left);
      const matrix_view<T> r = square(right_factor, b.right_begin, b.right);
      const matrix_view<T> l_root = square(left_root, b.left_begin, b.left);
      const matrix_view<T> r_root = square(right_root, b.right_begin, b.right);

      detail::add_to_factors<B, T>(backend, beta2, g, l, r);
      if (roots_due) {
        const double e = exponent.value_or(b.left > 0 && b.right > 0 ? 0.25 : 0.5);
        const double scale = 1 / detail::bias_correction(beta2, t);
        take_root(backend, l, scale, e, l_root, scratch);
        take_root(backend, r, scale, e, r_root, scratch);
      }

      // The gradient has been used; its memory is scratch from here on.
      double norm = 0;
      if (graft) {
        const std::span<const T> v = slice(second_moment, b.begin, b.shape.elements());
        adam_step<B, T>(backend, t, x.flat(), v, g.flat());
        norm = std::sqrt(backend.sum_of_squares(g.flat()));
      }
      if (preconditions) {
        detail::multiply_sides(backend, l_root, transpose::no, x, r_root, transpose::no, g);
        if (graft) {
          const T factor =
              static_cast<T>(norm / (std::sqrt(backend.sum_of_squares(x.flat())) + 1e-16));
          backend.transform(detail::scale_by<T>{factor}, x.flat());
        }
      } else if (graft) {
        backend.copy(g.flat(), x.flat());
      }
    });

    for_each_run(shape, [&](index_t at, index_t from, index_t count) {
      backend.copy(slice(direction, from, count), slice(packed, at, count));
    });
    const double rate = learning_rate * context.learning_rate_scale;
    const detail::descend<T> step{static_cast<T>(1 - rate * weight_decay), static_cast<T>(rate)};
    backend.transform(step, parameter.flat(), std::span<const T>(packed));
  }

 private:
  template <class T>
  struct root_scratch {
    std::span<T> vectors;
    std::span<T> values;
  };

  [[nodiscard]] constexpr index_t first_root() const { return start.value_or(frequency); }

  [[nodiscard]] constexpr index_t largest_side(matrix_shape shape) const {
    return std::min(max_preconditioner_dimension, std::max(shape.rows, shape.cols));
  }

  // f(offset in the matrix, offset in the packed matrix, elements) for what is contiguous in both.
  template <class F>
  void for_each_run(matrix_shape shape, F f) const {
    for_each_block(shape, [&](const block& b) {
      if (b.shape.cols == shape.cols) {
        f(b.row * shape.cols, b.begin, b.shape.elements());
        return;
      }
      for (index_t i = 0; i < b.shape.rows; ++i) {
        f((b.row + i) * shape.cols + b.col, b.begin + i * b.shape.cols, b.shape.cols);
      }
    });
  }

  template <class B, class T>
  void filter(B& backend, std::int64_t t, std::type_identity_t<std::span<const T>> gradient,
              std::span<T> filtered, std::span<T> direction) const {
    if (beta1 == 0) {
      backend.copy(gradient, direction);
      return;
    }
    const double ahead = beta3.value_or(beta1);
    const double unbias = 1 / (1 - ahead * std::pow(beta1, static_cast<double>(t - 1)));
    const detail::filter_gradient<T> step{.keep = static_cast<T>(beta1),
                                          .take = static_cast<T>(1 - beta1),
                                          .ahead_keep = static_cast<T>(unbias * ahead),
                                          .ahead_take = static_cast<T>(unbias * (1 - ahead))};
    backend.transform(step, filtered, direction, gradient);
  }

  template <class B, class T>
  void adam_step(B& backend, std::int64_t t, std::span<const T> direction,
                 std::span<const T> second_moment, std::span<T> step) const {
    const T unbias = static_cast<T>(1 / std::sqrt(detail::bias_correction(graft->beta2, t)));
    const T floor = static_cast<T>(graft->epsilon);
    backend.transform(detail::adam_direction<T>{unbias, floor}, step, direction, second_moment);
  }

  // root <- (scale factor + epsilon)^-exponent, as S^T S of S = V with its rows, the eigenvectors,
  // times the square root of what the eigenvalues become. Unchanged if that fails.
  template <class B, class T>
  void take_root(B& backend, matrix_view<T> factor, double scale, double exponent_of_root,
                 matrix_view<T> root, const root_scratch<T>& scratch) const {
    if (factor.size() == 0) return;
    const matrix_view<T> vectors(scratch.vectors.data(), factor.shape());
    const std::span<T> values = slice(scratch.values, 0, factor.rows());
    backend.copy(factor.flat(), vectors.flat());
    if (!backend.symmetric_eigen(vectors, values)) return;

    T least;
    backend.copy(values.first(1), std::span<T>(&least, 1));
    least = std::min(least, T(0));
    const detail::root_of_eigenvalue<T> power{.by = static_cast<T>(scale),
                                              .least = least,
                                              .floor = static_cast<T>(epsilon),
                                              .power = static_cast<T>(-exponent_of_root / 2)};
    backend.transform(power, values);
    backend.scale_rows(values, vectors);
    backend.multiply_symmetric(T(1), vectors, transpose::yes, vectors, transpose::no, T(0), root,
                               root);
  }
};

static_assert(Optimizer<shampoo>);

}  // namespace mfsdp::inline MFSDP_ABI
