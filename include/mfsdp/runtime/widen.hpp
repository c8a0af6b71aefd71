// Floats for the arithmetic of optimizers, whatever type their operands are stored in. What is
// stored as float is used where it is.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>
#include <span>
#include <type_traits>

#include "mfsdp/concepts.hpp"
#include "mfsdp/workspace.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Long tensors are converted in parts of this size, so that scratch stays small.
inline constexpr index_t widened_part = 64 * static_cast<index_t>(block_elements);

// Of a buffer for one part of so many elements at a time.
[[nodiscard]] constexpr std::size_t part_of(index_t elements) {
  return static_cast<std::size_t>(std::min(widened_part, elements));
}

// Calls f(first, count) for the parts of a range.
template <class F>
void for_each_part(index_t elements, index_t part, F&& f) {
  for (index_t first = 0; first < elements; first += part) {
    f(first, std::min(part, elements - first));
  }
}

using scratch_space = aligned_parts<float>;

template <class T>
inline constexpr bool is_float = std::same_as<std::remove_const_t<T>, float>;

// Values as floats.
template <class B, class T>
void load(B& backend, std::span<T> stored, std::span<float> values) {
  if constexpr (is_float<T>) {
    backend.copy(stored, values);
  } else {
    backend.convert(std::span<const T>(stored), values);
  }
}

// Back into storage; rounded stochastically, with the bits of elements first, first + 1, ...
template <class B, class T>
void store(B& backend, std::span<const float> values, std::span<T> stored, std::uint64_t key,
           index_t first) {
  if constexpr (is_float<T>) {
    backend.copy(values, stored);
  } else {
    backend.round_stochastically(values, stored, key, first);
  }
}

// The same, rounded to nearest.
template <class B, class T>
void store_nearest(B& backend, std::span<const float> values, std::span<T> stored) {
  if constexpr (is_float<T>) {
    backend.copy(values, stored);
  } else {
    backend.convert(values, stored);
  }
}

// Stored values as floats to read and write: themselves, or a copy in scratch.
template <class B, class T>
[[nodiscard]] auto widened(B& backend, std::span<T> stored, scratch_space& scratch) {
  if constexpr (is_float<T>) {
    return stored;
  } else {
    const std::span<float> copy = scratch.take(std::ssize(stored));
    load(backend, stored, copy);
    return copy;
  }
}

// The scratch that `widened` takes.
template <class T>
[[nodiscard]] index_t widened_size(index_t elements) {
  return is_float<T> ? 0 : scratch_space::size(elements);
}

// What was changed through `widened` goes back to where it is stored.
template <class B, class T>
void write_back(B& backend, std::span<float> values, std::span<T> stored, std::uint64_t key,
                index_t first) {
  if constexpr (!is_float<T>) store(backend, std::span<const float>(values), stored, key, first);
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
