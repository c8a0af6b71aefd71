// moments: what a rule of low rank keeps of the gradients that it saw through its basis.
//
// A type of moments has
//   rule, learning_rate   the name of the rule with these moments, and its default rate
//   has_second            whether there is a second moment
//   divides_by_norm       whether divide() reads the norms of a subspace_step
//   check(name), options(), flops(shape), workspace_size(shape)   of projected (or whole) shapes
//   scale(shape)          what multiplies the whole update of a matrix of this shape
//   take(...)             the moments take a gradient, which becomes a step
//   divide(...)           the full-rank term in the size of such steps
//   rotate(...)           the moments in a new basis
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "lordo/optimizer/adam_options.hpp"
#include "lordo/subspace.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/optimizer/muon_form.hpp"
#include "mfsdp/workspace.hpp"

namespace lordo::inline MFSDP_ABI {

// With the coordinates g of a gradient, as take() and divide() see them: r x q on the left side,
// p x r on the right.
template <class T>
struct subspace_step {
  matrix_view<T> g;      // becomes the step
  matrix_view<T> first;  // the moments; the second is empty if there is none
  matrix_view<T> second;
  matrix_view<T> denominator;  // scratch like g, kept from take() to divide()
  double norm = 0;        // of the gradient's coordinates without feedback, if divide() reads norms
  double whole_norm = 0;  // of the gradient
};

// The momentum m of a step and the gradient itself enter it as momentum m + gradient g.
struct step_mix {
  double momentum = 1;
  double gradient = 0;
};

namespace detail {

// max(x, bound); x and bound are scalars or arrays with the interface of Eigen's.
template <class X, class T>
[[nodiscard]] MFSDP_HOST_DEVICE auto at_least(const X& x, const T& bound) {
  if constexpr (std::is_arithmetic_v<X>) {
    return x < bound ? bound : x;
  } else {
    return (x.max)(bound);
  }
}

template <class T>
struct at_least_part_of {
  T part;
  MFSDP_HOST_DEVICE void operator()(auto& x, const auto& whole) const {
    x = at_least(x, part * whole);
  }
};

template <class T>
struct inverse_times {
  T factor;
  MFSDP_HOST_DEVICE void operator()(auto& x) const { x = factor / x; }
};

struct multiply_by {
  MFSDP_HOST_DEVICE void operator()(auto& x, const auto& y) const { x = x * y; }
};

// The momentum takes g, which becomes a mix of both.
template <class T>
struct mixed_momentum {
  T keep, take, momentum, fresh;
  MFSDP_HOST_DEVICE void operator()(auto& g, auto& u) const {
    u = keep * u + take * g;
    g = momentum * u + fresh * g;
  }
};

template <class T>
struct scaled_by_root {
  T root;
  MFSDP_HOST_DEVICE void operator()(auto& to, const auto& from) const { to = (root * from) * root; }
};

}  // namespace detail

// One number for each column (left side; row on the right), or one for the matrix.
enum class denominator_mean { axis, full };

// Adam's. At step t, elementwise, with x = momentum u' + gradient g of the mix:
//
//   u <- b1 u + (1 - b1) g,   v <- b2 v + (1 - b2) g^2
//   D = sqrt(v') + epsilon,   the step is x / D
//
// where u' = u / (1 - b1^t) and v' = v / (1 - b2^t), or u and v without bias correction. The
// full-rank term S becomes S / d, d the mean of D over the rank axis, but at least
// denominator_floor of the mean over all entries; or that mean. Where the basis sees nothing of a
// column, D is epsilon there, and the floor is all that bounds the term: no entry of S counts more
// than 1 / denominator_floor times what denominator_mean::full makes of it. 0 for the bare mean.
struct adam_moments {
  double beta1 = 0.9;
  double beta2 = 0.99;
  double epsilon = 1e-8;  // positive
  bool bias_correction = true;
  denominator_mean denominator = denominator_mean::axis;
  double denominator_floor = 0.01;  // from 0 to 1

  static constexpr std::string_view rule = "low_rank_adam";
  static constexpr double learning_rate = 2e-3;
  static constexpr bool has_second = true;
  static constexpr bool divides_by_norm = false;

  void check(std::string_view name) const {
    detail::check_adam(name, beta1, beta2, epsilon);
    if (!(denominator_floor >= 0 && denominator_floor <= 1)) {
      throw mfsdp::spec_error(fmt::format(
          "{}: moments.denominator_floor is {}; it is a fraction of a mean, from 0 to 1", name,
          denominator_floor));
    }
  }
  [[nodiscard]] std::string options() const {
    return fmt::format("{} {} {} {} {} {}", beta1, beta2, epsilon, bias_correction,
                       static_cast<int>(denominator), denominator_floor);
  }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const { return 14 * shape.elements(); }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape) const { return 0; }
  [[nodiscard]] constexpr double scale(matrix_shape) const { return 1; }

  template <mfsdp::Backend B, class T>
  void take(B& backend, std::int64_t t, step_mix mix, const subspace_step<T>& x,
            std::span<T>) const {
    auto kernel = detail::adam_kernel<T>::of(beta1, beta2, epsilon);
    kernel.momentum = static_cast<T>(mix.momentum / correction(beta1, t));
    kernel.gradient = static_cast<T>(mix.gradient);
    kernel.unbias = static_cast<T>(1 / std::sqrt(correction(beta2, t)));
    backend.transform(kernel, x.first.flat(), x.second.flat(), x.g.flat(), x.denominator.flat());
  }

  // to = weight term / d; the workspace holds 2 divide_vector(to.shape()).
  template <mfsdp::Backend B, class T>
  void divide(B& backend, double weight, const subspace_step<T>& x,
              std::type_identity_t<matrix_view<const T>> term, matrix_view<T> to,
              std::span<T> workspace) const {
    mfsdp::detail::workspace_cutter<T> cutter(workspace);
    const index_t longest = std::max(to.rows(), to.cols());
    const std::span<T> ones = cutter.take(longest);
    const bool left = side_of(to.shape()) == projection_side::left;
    const index_t axis = left ? to.cols() : to.rows();
    const index_t rank = x.g.size() / axis;
    const matrix_view<T> d(cutter.take(longest).data(), left ? 1 : axis, left ? axis : 1);
    const auto row = [&](index_t n) { return matrix_view<const T>(ones.data(), 1, n); };
    const auto col = [&](index_t n) { return matrix_view<const T>(ones.data(), n, 1); };
    const auto product = [&](double alpha, matrix_view<const T> a, matrix_view<const T> b,
                             matrix_view<T> c) {
      backend.multiply(static_cast<T>(alpha), a, transpose::no, b, transpose::no, T(0), c, c);
    };

    backend.fill(ones, T(1));
    product(1.0 / static_cast<double>(rank), left ? row(rank) : x.denominator,
            left ? x.denominator : col(rank), d);
    const bool full = denominator == denominator_mean::full;
    if (full || denominator_floor > 0) {
      // The mean of the means, in `to` as long as nothing else is there, and as often as d is long.
      const matrix_view<T> mean(to.data(), 1, 1);
      const matrix_view<T> means(to.data() + axis, axis, 1);
      product(1.0 / static_cast<double>(axis), row(axis), {d.data(), axis, 1}, mean);
      product(1, col(axis), mean, means);
      if (full) {
        backend.copy(means.flat(), d.flat());
      } else {
        backend.transform(detail::at_least_part_of<T>{static_cast<T>(denominator_floor)}, d.flat(),
                          means.flat());
      }
    }
    backend.transform(detail::inverse_times<T>{static_cast<T>(weight)}, d.flat());
    product(1, left ? col(to.rows()) : d, left ? d : row(to.cols()), to);
    backend.transform(detail::multiply_by{}, to.flat(), term.flat());
  }

  template <mfsdp::Backend B, class T>
  void rotate(B& backend, projection_side side, std::type_identity_t<matrix_view<const T>> r,
              std::int64_t t, matrix_view<T> first, matrix_view<T> second,
              std::span<T> workspace) const {
    rotate_moments(backend, side, r, correction(beta1, t), correction(beta2, t), first, second,
                   workspace);
  }

 private:
  [[nodiscard]] double correction(double beta, std::int64_t t) const {
    return bias_correction ? 1 - std::pow(beta, static_cast<double>(t)) : 1.0;
  }
};

// Muon's: one moment, orthogonalised where it lives, in the subspace. With x as above but
// without bias correction
//
//   u <- b1 u + (1 - b1) g,   the step is newton_schulz(x)
//
// with r singular values near one. The full-rank term S becomes S sqrt(r) / |project(G)|_F: of the
// size that the step has where the basis holds all of S. Where it holds next to nothing,
// |project(G)|_F is at least a tenth of |G|_F sqrt(r / n), n = min(p, q), the norm that a random
// basis would see: the term has at most 10 times the norm sqrt(n) of a step of full-rank Muon.
struct orthogonal_moments {
  double beta1 = 0.95;
  mfsdp::newton_schulz_options orthogonalization{};
  mfsdp::update_scale shape_scale = mfsdp::update_scale::tall;

  static constexpr std::string_view rule = "low_rank_muon";
  static constexpr double learning_rate = 0.02;
  static constexpr bool has_second = false;
  static constexpr bool divides_by_norm = true;

  void check(std::string_view name) const {
    mfsdp::detail::check_muon(name, beta1, {.orthogonalization = orthogonalization});
  }
  [[nodiscard]] std::string options() const {
    return fmt::format("{} {}", beta1,
                       mfsdp::detail::options_text(mfsdp::muon_form{
                           .orthogonalization = orthogonalization, .scale = shape_scale}));
  }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape) const {
    return mfsdp::newton_schulz_flops(shape, orthogonalization.steps, orthogonalization.form) +
           6 * shape.elements();
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape shape) const {
    return mfsdp::newton_schulz_workspace(shape, orthogonalization.form);
  }
  [[nodiscard]] double scale(matrix_shape shape) const {
    return mfsdp::scale_factor(shape_scale, shape);
  }

  template <mfsdp::Backend B, class T>
  void take(B& backend, std::int64_t, step_mix mix, const subspace_step<T>& x,
            std::span<T> workspace) const {
    const detail::mixed_momentum<T> step{.keep = static_cast<T>(beta1),
                                         .take = static_cast<T>(1 - beta1),
                                         .momentum = static_cast<T>(mix.momentum),
                                         .fresh = static_cast<T>(mix.gradient)};
    backend.transform(step, x.g.flat(), x.first.flat());
    mfsdp::newton_schulz(backend, x.g, orthogonalization, workspace);
  }

  // to = weight sqrt(r) / norm term, zero for a zero gradient. A root applied twice, since the
  // factor itself may be too large for T.
  template <mfsdp::Backend B, class T>
  void divide(B& backend, double weight, const subspace_step<T>& x,
              std::type_identity_t<matrix_view<const T>> term, matrix_view<T> to,
              std::span<T>) const {
    const double rank = static_cast<double>(std::min(x.g.rows(), x.g.cols()));
    const double side = static_cast<double>(std::min(to.rows(), to.cols()));
    const double norm = std::max(x.norm, 0.1 * x.whole_norm * std::sqrt(rank / side));
    const T root = static_cast<T>(norm > 0 ? std::sqrt(weight * std::sqrt(rank) / norm) : 0.0);
    backend.transform(detail::scaled_by_root<T>{root}, to.flat(), term.flat());
  }

  template <mfsdp::Backend B, class T>
  void rotate(B& backend, projection_side side, std::type_identity_t<matrix_view<const T>> r,
              std::int64_t, matrix_view<T> first, matrix_view<T>, std::span<T> workspace) const {
    rotate_first_moment(backend, side, r, first, workspace);
  }
};

}  // namespace lordo::inline MFSDP_ABI
