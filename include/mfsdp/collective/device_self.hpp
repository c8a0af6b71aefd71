// device_self: one rank alone, whose model is in the memory of a device.
#pragma once

#include <concepts>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>

#include "mfsdp/collective/self.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/kernel.hpp"

namespace mfsdp::inline MFSDP_ABI {

// A backend that can tell its memory from that of the host.
template <class B>
concept DeviceMemory = Backend<B> && requires(const B& backend, const void* p) {
  { backend.on_device(p) } -> std::same_as<bool>;
};

// What self does, on the stream of a backend and so without a wait: one GPU needs no NCCL. Messages
// in host memory are left to self. Copies of gradients in 16 bits into sums take scratch memory of
// the backend.
template <DeviceMemory B>
class device_self {
 public:
  using request = self::request;

  explicit device_self(B backend) : backend_(std::move(backend)) {}

  [[nodiscard]] static constexpr int rank() { return 0; }
  [[nodiscard]] static constexpr int size() { return 1; }
  [[nodiscard]] device_self split(int) const { return *this; }

  template <class T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const piece> pieces, std::string_view label) {
    if (!backend_.on_device(shard.data())) {
      return self{}.start_all_gather(shard, full, pieces, label);
    }
    for (const piece& p : pieces) {
      backend_.template copy<T>(slice(shard, p.local, p.count), slice(full, p.full, p.count));
    }
    return {};
  }

  template <class From, class To>
  request start_reduce_scatter(std::span<const From> full, std::span<To> shard,
                               std::span<const piece> pieces, reduce_into into,
                               std::string_view label) {
    if constexpr (StoredElement<From> && StoredElement<To>) {
      if (backend_.on_device(full.data())) {
        for (const piece& p : pieces) {
          take(slice(full, p.full, p.count), slice(shard, p.local, p.count), into);
        }
        return {};
      }
    }
    return self{}.start_reduce_scatter(full, shard, pieces, into, label);
  }

  template <class From, class To>
  request start_all_reduce(std::span<const From> full, std::span<To> local,
                           std::span<const piece> pieces, reduce_into into,
                           std::string_view label) {
    return start_reduce_scatter(full, local, pieces, into, label);
  }

 private:
  template <class From, class To>
  void take(std::span<const From> in, std::span<To> out, reduce_into into) {
    if (in.empty()) return;
    if constexpr (!std::same_as<To, float>) {
      static_assert(std::same_as<From, To>, "mfsdp: 16-bit sums are of gradients of their type");
      if (into == reduce_into::write) return backend_.template copy<To>(in, out);
      auto sum = backend_.template allocate<float>(std::ssize(out));
      backend_.convert(std::span<const To>(out), sum.span());
      take(in, sum.span(), into);
      backend_.convert(std::span<const float>(sum.span()), out);
    } else if constexpr (std::same_as<From, float>) {
      if (into == reduce_into::write) return backend_.template copy<float>(in, out);
      backend_.transform(detail::add{}, out, in);
    } else {
      if (into == reduce_into::write) return backend_.convert(in, out);
      auto wide = backend_.template allocate<float>(std::ssize(in));
      backend_.convert(in, wide.span());
      backend_.transform(detail::add{}, out, std::span<const float>(wide.span()));
    }
  }

  B backend_;
};

}  // namespace mfsdp::inline MFSDP_ABI
