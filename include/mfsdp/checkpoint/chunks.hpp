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

// Calls f(first, host copy) for the parts of a span that for_each_held has shown.
template <class Model, class T, class F>
void for_each_host_chunk(Model& model, std::span<const T> values, F&& f) {
  const index_t most = checkpoint_chunk / static_cast<index_t>(sizeof(T));
  std::vector<T> host(static_cast<std::size_t>(std::min(most, std::ssize(values))));
  for_each_part(std::ssize(values), most, [&](index_t at, index_t count) {
    const std::span<T> copy = slice(std::span(host), 0, count);
    model.read(slice(values, at, count), copy);
    f(at, std::span<const T>(copy));
  });
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
