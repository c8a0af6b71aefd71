// exchange: in what form a matrix is averaged over the sites.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "lordo/concepts.hpp"
#include "lordo/projector/random.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/workspace.hpp"

namespace lordo::inline MFSDP_ABI {

// As it is, in one round: rows x cols numbers.
struct exchange_full {
  static constexpr bool low_rank = false;

  void check(std::string_view) const {}
  [[nodiscard]] std::string options() const { return "full"; }
  [[nodiscard]] constexpr bool factors(mfsdp::matrix_shape) const { return false; }
  [[nodiscard]] constexpr mfsdp::index_t flops(mfsdp::matrix_shape) const { return 0; }
};

// By two factors of rank r, in two rounds: r (rows + cols) numbers. For A (rows x cols) of each
// site, with factors kept by rows, L (r x rows) and R (r x cols):
//
//   A <- A + E                       what earlier exchanges of this site left out
//   R <- orthonormalised R           of the last exchange; pseudo-random at the start
//   L <- orthonormalised mean(R A^T)
//   R <- mean(L A)
//   E <- A - L^T L A                 with this site's own L A
//   result: L^T R                    equal bits on all sites
//
// It is the projection of the mean of A + E to the span of L, one step of power iteration on it; so
// mean(A + E) = L^T R + mean(E), and what is left out comes later. A zero A gives zero, and R
// then starts anew.
// A matrix with a side of at most r is averaged as it is, by the rule that owns this policy.
// Keeps r (rows + cols) numbers, and rows x cols for E.
// Cost: 6 r rows cols + 4 r^2 (rows + cols) operations an exchange, and 2 r rows cols for the
// result. Source: PowerSGD (Vogels et al., arXiv 1905.13727), algorithms 1 and 2, with R
// orthonormalised too, which changes nothing but the size of its numbers.
struct exchange_low_rank {
  mfsdp::index_t rank = 0;  // r; must be given
  bool feedback = true;     // whether E is kept

  static constexpr bool low_rank = true;

  void check(std::string_view owner) const {
    if (rank < 1) {
      throw mfsdp::spec_error(fmt::format(
          "{}: the rank {} of the exchange is not positive; set exchange_low_rank::rank", owner,
          rank));
    }
  }
  [[nodiscard]] std::string options() const { return fmt::format("rank {} {}", rank, feedback); }

  // Whether a matrix of this shape is sent by factors.
  [[nodiscard]] constexpr bool factors(mfsdp::matrix_shape shape) const {
    return rank < std::min(shape.rows, shape.cols);
  }
  [[nodiscard]] constexpr mfsdp::index_t flops(mfsdp::matrix_shape shape) const {
    if (!factors(shape)) return 0;
    return 8 * rank * shape.elements() + 4 * rank * rank * (shape.rows + shape.cols);
  }

  // The states: E, L, R.
  static constexpr std::size_t residual = 0;
  static constexpr std::size_t left = 1;
  static constexpr std::size_t right = 2;
  static constexpr std::size_t state_count = 3;
  [[nodiscard]] constexpr std::array<mfsdp::state_spec, state_count> states(
      mfsdp::matrix_shape shape) const {
    const mfsdp::index_t r = factors(shape) ? rank : 0;
    return {{{"exchange_feedback", r > 0 && feedback ? shape.elements() : 0, true},
             {"exchange_left", r * shape.rows, true},
             {"exchange_right", r * shape.cols, true}}};
  }
  // The state that is averaged in round 0 or 1.
  [[nodiscard]] static constexpr std::size_t sent(int round) { return round == 0 ? left : right; }

  // Scratch of contribute().
  [[nodiscard]] constexpr mfsdp::index_t workspace_size(mfsdp::matrix_shape shape) const {
    return factors(shape) && !feedback ? mfsdp::detail::workspace_part(shape.elements()) : 0;
  }

  // The first R, equal on all sites.
  template <mfsdp::DecomposingBackend B, class T>
  void start(B& backend, const std::array<std::span<T>, state_count>& state,
             mfsdp::matrix_shape shape, std::size_t item) const {
    random_projection{}.basis<B, T>(backend, {}, {.item = item}, {},
                                    {state[right].data(), rank, shape.cols});
  }

  // `add(span)` adds this site's A to what is there; it is called in one round or in both.
  template <mfsdp::DecomposingBackend B, class T, class Add>
  void contribute(B& backend, const std::array<std::span<T>, state_count>& state,
                  mfsdp::matrix_shape shape, std::span<T> workspace, int round,
                  const Add& add) const {
    assert(std::ssize(workspace) >= workspace_size(shape));
    mfsdp::matrix_view<T> a(feedback ? state[residual].data() : workspace.data(), shape);
    const mfsdp::matrix_view<T> l(state[left].data(), rank, shape.rows);
    const mfsdp::matrix_view<T> r(state[right].data(), rank, shape.cols);
    if (!feedback) backend.fill(a.flat(), T(0));
    if (round == 0 || !feedback) add(a.flat());
    using enum mfsdp::transpose;
    if (round == 0) {
      backend.orthonormalize_rows(r);
      backend.multiply(T(1), r, no, a, yes, T(0), l, l);
    } else {
      backend.multiply(T(1), l, no, a, no, T(0), r, r);
      if (feedback) backend.multiply(T(-1), l, yes, r, no, T(1), a, a);
    }
  }

  template <mfsdp::DecomposingBackend B, class T>
  void adopt(B& backend, const std::array<std::span<T>, state_count>& state,
             mfsdp::matrix_shape shape, int round) const {
    if (round == 0) {
      backend.orthonormalize_rows(mfsdp::matrix_view<T>(state[left].data(), rank, shape.rows));
    }
  }

  // After both rounds: the mean, to an aligned matrix.
  template <mfsdp::Backend B, class T>
  void result(B& backend, const std::array<std::span<T>, state_count>& state,
              mfsdp::matrix_view<T> mean) const {
    const mfsdp::matrix_view<T> l(state[left].data(), rank, mean.rows());
    const mfsdp::matrix_view<T> r(state[right].data(), rank, mean.cols());
    backend.multiply(T(1), l, mfsdp::transpose::yes, r, mfsdp::transpose::no, T(0), mean, mean);
  }
};

}  // namespace lordo::inline MFSDP_ABI
