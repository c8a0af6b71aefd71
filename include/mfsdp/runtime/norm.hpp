// Sums of squares of gradients for the global norm: double sums over fixed blocks, combined in
// order, so that they have the same bits for every placement that cuts tensors at block boundaries
// only.
#pragma once

#include <algorithm>
#include <span>
#include <string_view>
#include <vector>

#include "mfsdp/runtime/context.hpp"

namespace mfsdp::inline MFSDP_ABI {

template <class Context>
class global_norm {
 public:
  // An item that is whole somewhere contributes one number, one that is cut a number for each
  // block.
  explicit global_norm(Context& context) : context_(context) {
    const plan& plan = context_.plan;
    const bool resident = plan.replicated || plan.ranks == 1;
    std::vector<index_t> filled(static_cast<std::size_t>(plan.ranks), 0);
    index_t total = 0;
    for (std::size_t i = 0; i < plan.local_segments.size(); ++i) {
      const local_segment& segment = plan.local_segments[i];
      const placement_item& item = plan.items[segment.item];
      if (plan.tensors[item.tensor].optimizer < 0) continue;
      if (resident && segment.rank != context_.rank()) continue;
      const index_t block = static_cast<index_t>(block_elements);
      const bool whole = segment.count == item.elements();
      const index_t sums =
          whole ? 1 : (segment.offset + segment.count - 1) / block - segment.offset / block + 1;
      if (segment.rank == context_.rank()) mine_.push_back({i, whole});
      index_t& local = filled[static_cast<std::size_t>(segment.rank)];
      pieces_.push_back({segment.rank, total, local, sums});
      local += sums;
      total += sums;
      if (items_.empty() || items_.back().item != segment.item) {
        items_.push_back({segment.item, 0});
        counts_.push_back(0);
      }
      counts_.back() += static_cast<std::size_t>(sums);
    }
    local_.resize(static_cast<std::size_t>(filled[static_cast<std::size_t>(context_.rank())]));
    all_.resize(static_cast<std::size_t>(total));
    exchange_ = !resident && total > 0;
  }

  // The gradient of one item.
  struct item_sum {
    std::size_t item;
    double sum_of_squares;
  };

  // Of all items that have elements, in spec order and equal on all ranks; `gradient(i)` views the
  // gradient of plan.local_segments[i]. One gather of doubles, none if every rank holds everything.
  template <class Gradient>
  [[nodiscard]] std::span<const item_sum> compute(Gradient&& gradient) {
    std::size_t next = 0;
    for (const auto& [i, whole] : mine_) {
      const std::span<const typename Context::precision::reduce> values = gradient(i);
      if (whole) {
        local_[next++] = context_.backend.sum_of_squares(values);
        continue;
      }
      const index_t block = static_cast<index_t>(block_elements);
      const index_t begin = context_.plan.local_segments[i].offset;
      const index_t end = begin + context_.plan.local_segments[i].count;
      for (index_t from = begin; from < end;) {
        const index_t to = std::min(end, (from / block + 1) * block);
        local_[next++] = context_.backend.sum_of_squares(slice(values, from - begin, to - from));
        from = to;
      }
    }
    std::span<const double> sums = local_;
    if (exchange_) {
      auto request = context_.collective.start_all_gather(std::span<const double>(local_),
                                                          std::span<double>(all_), pieces_, label);
      context_.book(phase::clip);
      request.wait(context_.until());
      request.drain(context_.until());
      sums = all_;
    }
    for (std::size_t i = 0; i < counts_.size(); ++i) {
      double& sum = items_[i].sum_of_squares;
      sum = 0;
      for (const double block : sums.first(counts_[i])) sum += block;
      sums = sums.subspan(counts_[i]);
    }
    return items_;
  }

 private:
  static constexpr std::string_view label = "gradient norms";

  struct own_segment {
    std::size_t segment;
    bool whole;
  };

  Context& context_;
  std::vector<own_segment> mine_;
  std::vector<item_sum> items_;
  std::vector<std::size_t> counts_;  // how many sums are gathered for each item
  std::vector<piece> pieces_;
  std::vector<double> local_;
  std::vector<double> all_;
  bool exchange_ = false;
};

}  // namespace mfsdp::inline MFSDP_ABI
