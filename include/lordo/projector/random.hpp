// random_projection: bases that know nothing and cost nothing to agree on.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>

#include "lordo/concepts.hpp"
#include "lordo/subspace.hpp"
#include "mfsdp/precision.hpp"

namespace lordo::inline MFSDP_ABI {

// Orthonormalised rows of random numbers, a function of seed, item and step: sites agree without
// sending anything, and the mean of B^T B over draws is r / min(p, q) I. The numbers are integers
// out of a hash, the same on every machine.
// The signal is not read; every draw is apart from the old basis.
// Cost: 4 min(p, q) r^2 operations and one pass on the host, no workspace.
struct random_projection {
  std::uint64_t seed = 0;

  static constexpr std::string_view name = "random";
  static constexpr bool needs_signal = false;

  [[nodiscard]] std::string options() const { return fmt::format("random {}", seed); }
  [[nodiscard]] constexpr index_t flops(matrix_shape shape, index_t rank) const {
    return 4 * rank * basis_shape(shape, rank).elements();
  }
  [[nodiscard]] constexpr index_t workspace_size(matrix_shape, index_t) const { return 0; }

  template <mfsdp::DecomposingBackend B, class T>
  void basis(B& backend, std::type_identity_t<matrix_view<const T>>, basis_draw draw,
             std::type_identity_t<matrix_view<const T>>, matrix_view<T> new_basis,
             std::span<T> = {}) const {
    const std::uint64_t key =
        mfsdp::rounding_stream{.seed = seed, .item = draw.item, .value = 0, .step = draw.step}
            .key();
    // In parts, since the backend's memory may be out of the host's reach.
    std::array<T, 1024> part{};
    for (index_t at = 0; at < new_basis.size(); at += std::ssize(part)) {
      const index_t count = std::min(std::ssize(part), new_basis.size() - at);
      for (index_t i = 0; i < count; ++i) {
        const std::uint64_t bits = mfsdp::detail::mix(key + mfsdp::detail::golden_gamma *
                                                                static_cast<std::uint64_t>(at + i));
        // Odd, hence never zero and as often negative as positive; a float holds 24 bits.
        part[static_cast<std::size_t>(i)] =
            static_cast<T>(2 * static_cast<std::int64_t>(bits >> 40) + 1 - (std::int64_t{1} << 24));
      }
      backend.copy(mfsdp::slice(std::span<const T>(part), 0, count),
                   mfsdp::slice(new_basis.flat(), at, count));
    }
    backend.orthonormalize_rows(new_basis);
  }
};

static_assert(Projector<random_projection>);

namespace detail {

// Before a rule knows better: any basis, the same on all sites. Empty where it has none.
template <mfsdp::DecomposingBackend B, class T>
void start_basis(B& backend, std::span<T> basis, matrix_shape shape, std::size_t item) {
  if (basis.empty()) return;
  const index_t side = std::min(shape.rows, shape.cols);
  random_projection{}.basis<B, T>(backend, {}, {.item = item}, {},
                                  {basis.data(), std::ssize(basis) / side, side});
}

}  // namespace detail

}  // namespace lordo::inline MFSDP_ABI
