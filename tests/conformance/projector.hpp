// Conformance of a Projector, for this library's and for yours: call
// projector_conformance(my_projector) in a doctest case, with a backend of your own if it needs
// one.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "conformance/host_copy.hpp"
#include "lordo/concepts.hpp"
#include "lordo/subspace.hpp"
#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

// One basis for signals of one shape, with guards around everything that a projector may write.
template <class T, class P, class B>
class projector_bench {
 public:
  projector_bench(const P& projector, B& backend, mfsdp::matrix_shape shape, mfsdp::index_t rank)
      : projector_(projector),
        backend_(backend),
        shape_(shape),
        rank_(rank),
        signal_(make(shape.elements())),
        old_(make(lordo::basis_shape(shape, rank).elements())),
        new_(make(lordo::basis_shape(shape, rank).elements())),
        workspace_(make(projector.workspace_size(shape, rank))) {
    const auto basis = old_basis();
    to_backend(backend,
               host_values<T>(basis.size(),
                              [](mfsdp::index_t i) {
                                const double x = static_cast<double>(i);
                                return static_cast<T>(std::sin(0.4 + 1.7 * x + 0.29 * x * x));
                              }),
               basis.flat());
    backend.orthonormalize_rows(basis);
  }

  mfsdp::matrix_view<T> signal() { return {signal_.span().data(), shape_}; }
  mfsdp::matrix_view<T> old_basis() {
    return {old_.span().data(), lordo::basis_shape(shape_, rank_)};
  }

  // The new basis; empty if something else was written.
  std::vector<T> basis(lordo::basis_draw draw = {}, T workspace = T(0)) {
    const auto scratch =
        mfsdp::slice(workspace_.span(), 0, projector_.workspace_size(shape_, rank_));
    backend_.fill(scratch, workspace);
    const std::vector<T> signal_before = on_host(backend_, signal_.span());
    const std::vector<T> old_before = on_host(backend_, old_.span());
    const mfsdp::matrix_view<T> to(new_.span().data(), lordo::basis_shape(shape_, rank_));
    backend_.fill(to.flat(), std::numeric_limits<T>::quiet_NaN());
    projector_.basis(
        backend_,
        P::needs_signal ? mfsdp::matrix_view<const T>(signal()) : mfsdp::matrix_view<const T>(),
        draw, mfsdp::matrix_view<const T>(old_basis()), to, scratch);
    const bool contained = signal_before == on_host(backend_, signal_.span()) &&
                           old_before == on_host(backend_, old_.span()) && guarded(new_) &&
                           guarded(workspace_);
    return contained ? on_host(backend_, to.flat()) : std::vector<T>{};
  }

 private:
  static constexpr mfsdp::index_t guard = 64;
  static constexpr T mark = T(12345);

  auto make(mfsdp::index_t size) const {
    auto buffer = backend_.template allocate<T>(size + guard);
    backend_.fill(buffer.span(), mark);
    return buffer;
  }
  template <class Buffer>
  bool guarded(Buffer& buffer) const {
    return std::ranges::all_of(on_host(backend_, buffer.span().last(guard)),
                               [](T x) { return x == mark; });
  }

  using memory = decltype(std::declval<B&>().template allocate<T>(1));
  P projector_;
  B& backend_;
  mfsdp::matrix_shape shape_;
  mfsdp::index_t rank_;
  memory signal_, old_, new_, workspace_;
};

// The largest entry of |a a^T - I|; infinite if there are not `rows` rows, or one is not finite.
template <class T>
double orthonormality_error(const std::vector<T>& a, mfsdp::index_t rows) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (a.empty()) return infinity;
  const auto count = static_cast<std::size_t>(rows);
  const std::size_t cols = a.size() / count;
  double error = 0;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      double sum = i == j ? -1 : 0;
      for (std::size_t k = 0; k < cols; ++k) {
        sum += static_cast<double>(a[i * cols + k]) * static_cast<double>(a[j * cols + k]);
      }
      if (!std::isfinite(sum)) return infinity;
      error = std::max(error, std::abs(sum));
    }
  }
  return error;
}

// Signals of full and lower rank, of zeros, and of sizes whose squares no float holds.
template <class T, class P, class B>
void projector_conformance_on(const P& projector, B& backend, mfsdp::matrix_shape shape,
                              mfsdp::index_t rank) {
  CAPTURE(shape.rows);
  CAPTURE(shape.cols);
  CAPTURE(rank);
  CHECK(projector.flops(shape, rank) >= 0);
  CHECK(projector.workspace_size(shape, rank) >= 0);
  const double tolerance =
      20 * static_cast<double>(shape.rows + shape.cols) * std::numeric_limits<T>::epsilon();
  for (const mfsdp::index_t signal_rank : {mfsdp::index_t{0}, mfsdp::index_t{1}, rank + 1}) {
    for (const double scale : {1.0, 1e-30, 1e15}) {
      CAPTURE(signal_rank);
      CAPTURE(scale);
      const auto prepared = [&] {
        projector_bench<T, P, B> bench(projector, backend, shape, rank);
        std::vector<T> signal;
        for (mfsdp::index_t i = 0; i < shape.rows; ++i) {
          for (mfsdp::index_t j = 0; j < shape.cols; ++j) {
            double sum = 0;
            for (mfsdp::index_t k = 0; k < signal_rank; ++k) {
              sum += std::sin(0.7 + 1.3 * static_cast<double>(i * i + i * k + k)) *
                     std::cos(0.2 + 0.9 * static_cast<double>(j * j + 2 * j * k + k));
            }
            signal.push_back(static_cast<T>(scale * sum));
          }
        }
        to_backend(backend, signal, bench.signal().flat());
        return bench;
      };
      auto first = prepared();
      auto again = prepared();
      const std::vector<T> basis = first.basis({3, 7});
      CHECK(orthonormality_error(basis, rank) <= tolerance);
      CHECK(again.basis({3, 7}, std::numeric_limits<T>::quiet_NaN()) == basis);
      if (signal_rank == 0 && P::needs_signal) {
        CHECK(basis == on_host(backend, first.old_basis().flat()));
      }
    }
  }
}

template <class P, class B = mfsdp::eigen_backend>
void projector_conformance(P projector, B backend = {}) {
  static_assert(lordo::ProjectsOn<P, B>);
  CHECK_FALSE(std::string_view(P::name).empty());
  const std::string options = projector.options();
  CHECK(options.find('\n') == std::string::npos);
  const auto in = [&]<class T>(T) {
    projector_conformance_on<T>(projector, backend, {2, 2}, 1);
    projector_conformance_on<T>(projector, backend, {3, 40}, 2);
    projector_conformance_on<T>(projector, backend, {40, 3}, 2);
    projector_conformance_on<T>(projector, backend, {16, 16}, 15);
    projector_conformance_on<T>(projector, backend, {70, 33}, 8);
    projector_conformance_on<T>(projector, backend, {33, 70}, 8);
  };
  in(float{});
  in(double{});
}

}  // namespace mfsdp_test
