// figures: what a low-rank rule tells of itself, as numbers in a state.
#pragma once

#include <array>
#include <cstddef>
#include <span>

#include "mfsdp/concepts.hpp"

namespace lordo::inline MFSDP_ABI {

// Places in the state "figures" of a rule of low rank. Zero until first measured, at the end of a
// round.
namespace figure {
// Share of the new basis outside the old one at the last change, 1 - |R|_F^2 / r: 0 for the same
// span, 1 for one orthogonal to it.
inline constexpr std::size_t movement = 0;
// Frobenius norm of the full-rank term over that of the low-rank term in the last update of a
// round; 0 where one of them is absent.
inline constexpr std::size_t ratio = 1;
// |project(G)|^2 / |G|^2 of the gradient in that update.
inline constexpr std::size_t captured = 2;
// Changes of basis in a row with a movement below still_movement: the rule stagnates.
inline constexpr std::size_t still = 3;
inline constexpr std::size_t count = 4;
}  // namespace figure

inline constexpr double still_movement = 0.01;

namespace detail {

// Reads the figures into the host, lets f change them, and writes them back.
template <class B, class T, class F>
void change_figures(B& backend, std::span<T> state, F f) {
  std::array<T, figure::count> host{};
  backend.copy(std::span<const T>(state), std::span<T>(host));
  f(host);
  backend.copy(std::span<const T>(host), state);
}

}  // namespace detail

}  // namespace lordo::inline MFSDP_ABI
