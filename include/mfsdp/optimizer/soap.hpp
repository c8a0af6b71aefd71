// soap: Adam in the slowly turning eigenbasis of Shampoo's factors.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/kernel.hpp"
#include "mfsdp/optimizer/kronecker.hpp"
#include "mfsdp/workspace.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

struct product_of {
  MFSDP_HOST_DEVICE void operator()(auto& to, const auto& a, const auto& b) const { to = a * b; }
};

// x gets a copy of the average.
template <class T>
struct average_twice {
  T keep, take;
  MFSDP_HOST_DEVICE void operator()(auto& m, auto& x, const auto& g) const {
    m = keep * m + take * g;
    x = m;
  }
};

template <class T>
struct divide_by_size {
  T floor;
  MFSDP_HOST_DEVICE void operator()(auto& x, const auto& g) const {
    using std::abs;
    x = x / (abs(g) + floor);
  }
};

template <class T>
struct divide_by_root {
  T scale, floor;
  MFSDP_HOST_DEVICE void operator()(auto& x, const auto& v) const {
    using std::sqrt;
    x = x / (scale * sqrt(v) + floor);
  }
};

}  // namespace detail

// In which order a step does its parts, and how a basis follows its factor.
enum class soap_form {
  // The gradient enters the factors after its own step, so that the basis does not know it. Every
  // `frequency` steps a basis takes one step of orthogonal iteration from its vectors in falling
  // order of their Rayleigh quotients, and V is put into the same order. Epsilon is added before
  // the bias correction of V; W decays after it has moved. The first call makes the factors and
  // their eigenbases, nothing else, and does not count as a step.
  reference,
  // The gradient enters first. Every `frequency` steps the eigenbasis is computed anew, in rising
  // order of eigenvalues, and V stays as it is; until then the basis is that of W, so that steps
  // are Adam's. With a frequency of one the first gradient is diagonal in a basis that knows
  // nothing else, and V would divide rounding errors by their own size: that step is Adam's, too.
  eigenvalue_corrected,
  // The gradient enters first; orthogonal iteration, then the sort, and V stays as it is. The first
  // call is as that of `reference`, for the reason just given.
  current_gradient,
};

// SOAP on a matrix W (m x n, outputs x inputs) with gradient G; here the reference at step s, one
// less than the number of the call:
//
//   M <- b1 M + (1 - b1) G
//   V <- b2 V + (1 - b2) (P G Q^T)^2                    element by element
//   X <- P^T [ P M Q^T / (sqrt(V) + epsilon) ] Q        the rows of P and Q are eigenvectors
//   W <- (1 - lr wd) (W - lr sqrt(1 - b2^s) / (1 - b1^s) X)
//   L <- b L + (1 - b) G G^T,   R <- b R + (1 - b) G^T G
//   every `frequency` steps, P follows L and Q follows R
//
// M is kept in the basis of W, where a change of P and Q does not touch it; turning it with them,
// as the source does, is the same but for rounding. A side above max_preconditioner_dimension has
// no factor and no basis: one-sided, or plain Adam. b2 or b of one sums instead of averaging.
//
// Zero gradients from the start only decay W. If a decomposition fails, the last basis stays.
// Gradients must have squares that are finite. The gradient is never written, alignment does not
// matter.
// Memory: 2 (m^2 + n^2) + 2 m n, 6 per weight if square, 10.5 if 768 x 3072, 2.5 if only the 768
// has a factor. Cost: 8 m n (m + n), and for bases 6 (m^3 + n^3), or 25 if computed anew, every
// `frequency` steps; a workspace of three matrices and two of the larger factor.
// Source: Vyas et al., arXiv 2409.11321, github.com/nikhilvyas/SOAP, whose defaults these are.
struct soap {
  double learning_rate = 3e-3;
  double beta1 = 0.95;
  double beta2 = 0.95;
  std::optional<double> factor_beta{};  // if not given, beta2
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  index_t frequency = 10;
  index_t max_preconditioner_dimension = 10000;
  soap_form form = soap_form::reference;

  static constexpr std::string_view name = "soap";
  static constexpr bool whole_matrix = true;
  static constexpr bool squares_gradient = true;

  // The eigenvalue-corrected Shampoo of github.com/facebookresearch/optimizers:
  // W <- (1 - lr wd) W - lr X with unbiased M and V.
  [[nodiscard]] static constexpr soap eigenvalue_corrected() {
    return {.learning_rate = 0.01,
            .beta1 = 0.9,
            .beta2 = 1,
            .epsilon = 1e-12,
            .weight_decay = 0,
            .frequency = 1,
            .form = soap_form::eigenvalue_corrected};
  }
  // SOAP of github.com/NVIDIA-NeMo/Emerging-Optimizers, except that its first step is left out:
  // W <- (1 - lr wd) W - lr X with unbiased M and V. Its factors are these, unbiased.
  [[nodiscard]] static constexpr soap current_gradient() {
    return {.beta1 = 0.9, .frequency = 1, .form = soap_form::current_gradient};
  }

  void check() const {
    if (frequency < 1 || max_preconditioner_dimension < 0) {
      throw spec_error(fmt::format(
          "soap: frequency {} must be positive, max_preconditioner_dimension {} not negative",
          frequency, max_preconditioner_dimension));
    }
  }
  // For the check that all ranks use the same.
  [[nodiscard]] std::string options() const {
    return fmt::format("soap {} {} {} {} {} {} {} {} {}", learning_rate, beta1, beta2,
                       factor_beta.value_or(beta2), epsilon, weight_decay, frequency,
                       max_preconditioner_dimension, static_cast<int>(form));
  }

  // Bases count with their share of one step.
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const {
    const auto [m, n] = sides(shape);
    const auto basis = [this](index_t side) {
      return form == soap_form::eigenvalue_corrected
                 ? detail::symmetric_eigen_flops(side)
                 : 2 * side * side * side + detail::orthonormalize_flops(side);
    };
    return (8 * (m + n) + 20) * shape.elements() + (basis(m) + basis(n)) / frequency;
  }

  [[nodiscard]] constexpr std::array<state_spec, 6> states(matrix_shape shape) const {
    const auto [m, n] = sides(shape);
    return {{{"left_factor", m * m, true},
             {"right_factor", n * n, true},
             {"left_basis", m * m, true},
             {"right_basis", n * n, true},
             {"first_moment", shape.elements()},
             {"second_moment", shape.elements()}}};
  }

  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    const auto [m, n] = sides(shape);
    const index_t side = std::max(m, n);
    return 3 * detail::workspace_part(shape.elements()) + 2 * detail::workspace_part(side * side) +
           2 * detail::workspace_part(side);
  }

  template <DecomposingBackend B, class T>
  void update(B& backend, const std::array<std::span<T>, 6>& state, matrix_view<T> parameter,
              std::type_identity_t<matrix_view<const T>> gradient,
              const update_context<T>& context) const {
    if (parameter.size() == 0) return;
    call<B, T> now(*this, backend, state, parameter, context);
    backend.copy(gradient.flat(), now.gradient.flat());

    const std::int64_t t = context.step;
    const bool due = (t - 1) % frequency == 0;
    switch (form) {
      case soap_form::reference:
        if (t > 1) now.move(t - 1);
        now.take_gradient();
        if (t == 1) now.compute_bases(order::falling);
        if (t > 1 && due) now.iterate_bases(sorting::before);
        break;
      case soap_form::eigenvalue_corrected:
        now.take_gradient();
        if (t % frequency == 0) now.compute_bases(order::rising);
        now.move(t);
        break;
      case soap_form::current_gradient:
        now.take_gradient();
        if (t == 1) now.compute_bases(order::falling);
        if (t > 1 && due) now.iterate_bases(sorting::after);
        if (t > 1) now.move(t - 1);
        break;
    }
  }

 private:
  enum class order { rising, falling };
  enum class sorting { before, after };  // the step of orthogonal iteration

  // The sides that have a factor and a basis; 0 for one that has none.
  [[nodiscard]] constexpr matrix_shape sides(matrix_shape shape) const {
    if (shape.elements() == 0) return {};
    const auto side = [this](index_t n) { return n <= max_preconditioner_dimension ? n : 0; };
    return {side(shape.rows), side(shape.cols)};
  }

  // One update, its views and its parts.
  template <class B, class T>
  class call {
   public:
    call(const soap& rule, B& backend, const std::array<std::span<T>, 6>& state,
         matrix_view<T> parameter, const update_context<T>& context)
        : rule_(rule), backend_(backend), parameter_(parameter) {
      const matrix_shape shape = parameter.shape();
      const auto [m, n] = rule.sides(shape);
      left_ = {{state[0].data(), m, m}, {state[2].data(), m, m}};
      right_ = {{state[1].data(), n, n}, {state[3].data(), n, n}};
      first_moment_ = {state[4].data(), shape};
      second_moment_ = {state[5].data(), shape};
      rate_ = rule.learning_rate * context.learning_rate_scale;

      const index_t side = std::max(m, n);
      detail::workspace_cutter<T> workspace(context.workspace);
      gradient = workspace.take(shape);
      x_ = workspace.take(shape);
      scratch_ = workspace.take(shape);
      square_ = workspace.take(side * side);
      other_square_ = workspace.take(side * side);
      values_ = workspace.take(side);
      ones_ = workspace.take(side);
    }

    matrix_view<T> gradient;  // aligned

    void take_gradient() {
      detail::add_to_factors<B, T>(backend_, rule_.factor_beta.value_or(rule_.beta2), gradient,
                                   left_.factor, right_.factor);
    }

    void compute_bases(order in) {
      compute_basis(left_, in);
      compute_basis(right_, in);
    }

    void iterate_bases(sorting when) {
      const std::vector<index_t> rows = iterate_basis(left_, when);
      const std::vector<index_t> cols = iterate_basis(right_, when);
      if (when == sorting::before) {
        backend_.permute(second_moment_, rows, cols, scratch_);
        backend_.copy(scratch_.flat(), second_moment_.flat());
      }
    }

    // Moments and parameter, at step s.
    void move(std::int64_t s) {
      const bool reference = rule_.form == soap_form::reference;
      const bool corrected = rule_.form == soap_form::eigenvalue_corrected;
      const bool turned = !corrected || s >= rule_.frequency;
      const matrix_view<T> left = turned ? left_.basis : matrix_view<T>{};
      const matrix_view<T> right = turned ? right_.basis : matrix_view<T>{};

      backend_.copy(gradient.flat(), x_.flat());
      detail::multiply_sides(backend_, left, transpose::no, x_, right, transpose::yes, scratch_);
      const detail::average_square<T> average_square{
          static_cast<T>(rule_.beta2), static_cast<T>(detail::new_weight(rule_.beta2))};
      backend_.transform(average_square, second_moment_.flat(), std::span<const T>(x_.flat()));
      const detail::average_twice<T> average{static_cast<T>(rule_.beta1),
                                             static_cast<T>(1 - rule_.beta1)};
      backend_.transform(average, first_moment_.flat(), x_.flat(),
                         std::span<const T>(gradient.flat()));

      const double unbias1 = 1 / detail::bias_correction(rule_.beta1, s);
      const double unbias2 = 1 / std::sqrt(detail::bias_correction(rule_.beta2, s));
      const T floor = static_cast<T>(rule_.epsilon);
      if (corrected && s == 1) {
        backend_.transform(detail::divide_by_size<T>{floor}, x_.flat(),
                           std::span<const T>(gradient.flat()));
      } else {
        const T scale = static_cast<T>(reference ? 1 : unbias2);
        detail::multiply_sides(backend_, left, transpose::no, x_, right, transpose::yes, scratch_);
        backend_.transform(detail::divide_by_root<T>{scale, floor}, x_.flat(),
                           std::span<const T>(second_moment_.flat()));
        detail::multiply_sides(backend_, left, transpose::yes, x_, right, transpose::no, scratch_);
      }

      const double decay = 1 - rate_ * rule_.weight_decay;
      const double step = rate_ * unbias1 * (reference ? decay / unbias2 : 1);
      backend_.transform(detail::descend<T>{static_cast<T>(decay), static_cast<T>(step)},
                         parameter_.flat(), std::span<const T>(x_.flat()));
    }

   private:
    struct axis {
      matrix_view<T> factor;
      matrix_view<T> basis;  // by rows
    };

    void compute_basis(const axis& of, order in) {
      const index_t n = of.factor.rows();
      const matrix_view<T> vectors(square_.data(), n, n);
      backend_.copy(of.factor.flat(), vectors.flat());
      if (!backend_.symmetric_eigen(vectors, slice(values_, 0, n))) return;
      std::vector<index_t> rows(static_cast<std::size_t>(n));
      std::iota(rows.begin(), rows.end(), index_t{0});
      if (in == order::falling) std::reverse(rows.begin(), rows.end());
      backend_.permute(vectors, rows, {}, of.basis);
    }

    // One step of orthogonal iteration; the order in which the vectors were taken.
    std::vector<index_t> iterate_basis(const axis& of, sorting when) {
      const index_t n = of.factor.rows();
      const matrix_view<T> product(square_.data(), n, n);
      const matrix_view<T> other(other_square_.data(), n, n);
      backend_.multiply(T(1), of.basis, transpose::no, of.factor, transpose::no, T(0), product,
                        product);
      std::vector<index_t> rows;
      if (when == sorting::before) {
        rows = falling_quotients(of.basis, product, other);
        backend_.permute(product, rows, {}, of.basis);
        backend_.orthonormalize_rows(of.basis);
      } else {
        backend_.orthonormalize_rows(product);
        backend_.multiply(T(1), product, transpose::no, of.factor, transpose::no, T(0), other,
                          other);
        rows = falling_quotients(product, other, other);
        backend_.permute(product, rows, {}, of.basis);
      }
      return rows;
    }

    // The rows b of a basis in falling order of their Rayleigh quotients b A b^T, given the rows of
    // b A. `terms` may be the latter.
    std::vector<index_t> falling_quotients(matrix_view<const T> basis,
                                           matrix_view<const T> products, matrix_view<T> terms) {
      const index_t n = basis.rows();
      const matrix_view<T> sums(values_.data(), n, 1);
      const matrix_view<T> ones(ones_.data(), n, 1);
      backend_.fill(ones.flat(), T(1));
      backend_.transform(detail::product_of{}, terms.flat(), basis.flat(), products.flat());
      backend_.multiply(T(1), terms, transpose::no, ones, transpose::no, T(0), sums, sums);

      std::vector<T> quotients(static_cast<std::size_t>(n));
      backend_.copy(sums.flat(), std::span<T>(quotients));
      for (T& quotient : quotients) {  // an order needs numbers
        if (std::isnan(quotient)) quotient = std::numeric_limits<T>::lowest();
      }
      std::vector<index_t> rows(quotients.size());
      std::iota(rows.begin(), rows.end(), index_t{0});
      std::sort(rows.begin(), rows.end(), [&quotients](index_t a, index_t b) {
        const T qa = quotients[static_cast<std::size_t>(a)];
        const T qb = quotients[static_cast<std::size_t>(b)];
        return qa > qb || (qa == qb && a < b);
      });
      return rows;
    }

    const soap& rule_;
    B& backend_;
    matrix_view<T> parameter_;
    axis left_{};
    axis right_{};
    matrix_view<T> first_moment_;
    matrix_view<T> second_moment_;
    double rate_ = 0;
    matrix_view<T> x_;
    matrix_view<T> scratch_;
    std::span<T> square_;
    std::span<T> other_square_;
    std::span<T> values_;
    std::span<T> ones_;
  };
};

static_assert(Optimizer<soap>);

}  // namespace mfsdp::inline MFSDP_ABI
