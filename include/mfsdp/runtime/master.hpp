// The owner's parameters in the type that the optimizer updates.
#pragma once

#include <span>
#include <vector>

#include "mfsdp/runtime/context.hpp"
#include "mfsdp/runtime/parameters.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Either the parameter shard itself, or a second shard of the trainable tensors, laid out as that
// of the gradients. Frozen tensors have no second copy.
template <class Context>
class master_parameters {
 public:
  using element = typename Context::precision::master;

  master_parameters(Context& context, unit_parameters<Context>& parameters)
      : context_(context), parameters_(parameters) {
    if constexpr (separate) {
      index_t elements = 0;
      for (const transfer_group& group : context_.plan.groups) {
        begin_.push_back(elements);
        elements += group.gradients.shard_elements[static_cast<std::size_t>(context_.rank())];
      }
      shard_ = context_.template allocate<element>(memory_kind::parameters, elements);
    }
  }

  // Of plan.local_segments[i], which is on this rank and trainable.
  [[nodiscard]] std::span<element> segment(std::size_t i) {
    const local_segment& segment = context_.plan.local_segments[i];
    if constexpr (separate) {
      return slice(shard_.span(), begin_[context_.group_of(segment)] + segment.gradient,
                   segment.count);
    } else {
      return parameters_.segment(i);
    }
  }

  // Brings the parameters up to date: the masters, rounded to nearest.
  void publish(std::size_t i) {
    if constexpr (separate) {
      context_.backend.convert(std::span<const element>(segment(i)), parameters_.segment(i));
    }
  }

 private:
  static constexpr bool separate = Context::precision::has_master;

  Context& context_;
  unit_parameters<Context>& parameters_;
  typename Context::template storage<element> shard_;
  std::vector<index_t> begin_;  // of each group in the shard
};

}  // namespace mfsdp::inline MFSDP_ABI
