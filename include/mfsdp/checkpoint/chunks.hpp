// Values of a model on their way through the host, a bounded part at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "mfsdp/runtime/widen.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// What is copied, hashed, and written or read at a time, in bytes: it stays in a core's cache.
inline constexpr index_t checkpoint_chunk = index_t{1} << 20;

// Calls f(first, count) for the chunks of so many elements of so many bytes each.
template <class F>
void for_each_chunk(index_t elements, std::size_t width, F&& f) {
  for_each_part(elements, checkpoint_chunk / static_cast<index_t>(width), f);
}

// Calls f(first, values on the host) for the parts of a span that for_each_held has shown.
template <class Persistence, class T, class F>
void for_each_host_chunk(const Persistence& held, std::span<const T> values, F&& f) {
  std::vector<T> copy;
  for_each_chunk(std::ssize(values), sizeof(T), [&](index_t at, index_t count) {
    std::span<const T> host = slice(values, at, count);
    if constexpr (!Persistence::host_memory) {
      copy.resize(std::max(copy.size(), static_cast<std::size_t>(count)));
      const std::span<T> copied = slice(std::span(copy), 0, count);
      held.read(host, copied);
      host = copied;
    }
    f(at, host);
  });
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
