// What ranks tell each other beside their data: a few words of each, on an axis or on all of a
// site.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "mfsdp/runtime/context.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// What the ranks of an axis give, in their order.
template <class T, class Context, class Axis>
[[nodiscard]] std::vector<T> gather_over(Context& context, Axis& axis, const std::vector<T>& own,
                                         std::string_view label, phase where) {
  const auto count = static_cast<index_t>(own.size());
  std::vector<piece> pieces;
  for (int r = 0; r < axis.size(); ++r) pieces.push_back({r, r * count, 0, count});
  std::vector<T> all(own.size() * pieces.size());
  auto request = axis.start_all_gather(std::span<const T>(own), std::span<T>(all), pieces, label);
  context.book(where);
  request.wait(context.until());
  request.drain(context.until());
  return all;
}

// What every rank of a site gives, in rank order: of each shard group, then of all of them.
template <class T, class Context>
[[nodiscard]] std::vector<T> gather_from_all(Context& context, const std::vector<T>& own,
                                             std::string_view label, phase where) {
  const std::vector<T> of_group = gather_over<T>(context, context.collective, own, label, where);
  if (context.replicas.size() == 1) return of_group;
  return gather_over<T>(context, context.replicas, of_group, label, where);
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
