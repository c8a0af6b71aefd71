// The sum over replicas of what a rank keeps of the gradients: once a step, however many
// micro-batches there were.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "mfsdp/runtime/context.hpp"

namespace mfsdp::inline MFSDP_ABI {

template <class Context>
class replica_sum {
  using element = typename Context::precision::reduce;

 public:
  explicit replica_sum(Context& context)
      : context_(context),
        parts_(parts_of(context)),
        staged_(parts_.empty() ? 0 : std::ranges::max(parts_, {}, &part::elements).elements),
        staging_(context_.template allocate<element>(
            memory_kind::gradient_buffers, std::min<index_t>(2, std::ssize(parts_)) * staged_)) {}

  // Replaces the gradients by their sum over replicas, in the order of replicas; shard(g) views
  // what this rank keeps of those of plan.groups[g]. A sum must not be written where it is read
  // from, so every part is copied first; while one is on its way, the next is copied.
  template <class Shard>
  void run(Shard&& shard) {
    std::array<typename Context::replica_request, 2> sums{};
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const part& now = parts_[i];
      finish(sums[i % 2]);
      const std::span<element> own = shard(now.group);
      const std::span<element> staged =
          slice(staging_.span(), static_cast<index_t>(i % 2) * staged_, now.elements);
      for (const piece& p : now.pieces) {
        context_.backend.copy(std::span<const element>(slice(own, p.local, p.count)),
                              slice(staged, p.full, p.count));
      }
      sums[i % 2] = context_.replicas.start_all_reduce(std::span<const element>(staged), own,
                                                       now.pieces, reduce_into::write,
                                                       context_.plan.groups[now.group].name);
      context_.book(phase::backward);
    }
    for (auto& sum : sums) finish(sum);
  }

 private:
  static constexpr index_t largest_part = 256 * 1024;

  // What one all-reduce takes, from a packed copy to where the gradients are.
  struct part {
    std::size_t group = 0;
    index_t elements = 0;
    std::vector<piece> pieces{};
  };

  // None if there are no replicas.
  [[nodiscard]] static std::vector<part> parts_of(const Context& context) {
    std::vector<part> parts;
    for (std::size_t g = 0; context.replicas.size() > 1 && g < context.plan.groups.size(); ++g) {
      for (const piece& p : context.plan.groups[g].gradients.pieces) {
        if (p.rank != context.rank()) continue;
        for (index_t done = 0; done < p.count;) {
          if (parts.empty() || parts.back().group != g || parts.back().elements == largest_part) {
            parts.push_back({g});
          }
          part& last = parts.back();
          const index_t count = std::min(p.count - done, largest_part - last.elements);
          last.pieces.push_back({0, last.elements, p.local + done, count});
          last.elements += count;
          done += count;
        }
      }
    }
    return parts;
  }

  void finish(typename Context::replica_request& sum) {
    sum.wait(context_.until());
    sum.drain(context_.until());
  }

  Context& context_;
  const std::vector<part> parts_;
  const index_t staged_;  // elements of the largest part
  typename Context::template storage<element> staging_;
};

}  // namespace mfsdp::inline MFSDP_ABI
