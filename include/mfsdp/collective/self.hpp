// self: one rank alone. Every operation completes where it is started.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>

#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI {

class self {
 public:
  class request {
   public:
    bool test() { return true; }
    void wait(deadline) {}
    void drain(deadline) {}
  };

  [[nodiscard]] static constexpr int rank() { return 0; }
  [[nodiscard]] static constexpr int size() { return 1; }
  [[nodiscard]] self split(int) { return {}; }

  template <class T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const piece> pieces, std::string_view) {
    for (const piece& p : pieces) {
      std::ranges::copy(slice(shard, p.local, p.count), slice(full, p.full, p.count).begin());
    }
    return {};
  }

  template <class From, class To>
  request start_reduce_scatter(std::span<const From> full, std::span<To> shard,
                               std::span<const piece> pieces, reduce_into into, std::string_view) {
    for (const piece& p : pieces) {
      const auto in = slice(full, p.full, p.count);
      const auto out = slice(shard, p.local, p.count);
      for (std::size_t i = 0; i < in.size(); ++i) {
        const To sum = static_cast<To>(in[i]);
        out[i] = into == reduce_into::add ? out[i] + sum : sum;
      }
    }
    return {};
  }

  template <class From, class To>
  request start_all_reduce(std::span<const From> full, std::span<To> local,
                           std::span<const piece> pieces, reduce_into into,
                           std::string_view label) {
    return start_reduce_scatter(full, local, pieces, into, label);
  }
};

}  // namespace mfsdp::inline MFSDP_ABI
