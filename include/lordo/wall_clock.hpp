// wall_clock: how long a run takes over a slow link, by a model.
#pragma once

#include <string_view>

#include "mfsdp/config.hpp"

namespace lordo::inline MFSDP_ABI {

// What joins sites: bandwidth of one site's connection in each direction, and what every
// synchronisation takes on top.
struct site_link {
  std::string_view name;
  double bits_per_second = 0;
  double latency_seconds = 0;
};

// An all-reduce of this many bytes of each site: 2 b (1 - 1/S) / W + latency, a ring's.
[[nodiscard]] constexpr double all_reduce_seconds(double bytes, int sites, const site_link& link) {
  if (sites == 1) return 0;
  return 2 * 8 * bytes * (1 - 1.0 / sites) / link.bits_per_second + link.latency_seconds;
}

// The forward and backward of a transformer of this many parameters: 6 N tokens / (flops mfu), for
// all chips of a site together.
[[nodiscard]] constexpr double compute_seconds(double parameters, double tokens,
                                               double flops_per_second, double utilization) {
  return 6 * parameters * tokens / (flops_per_second * utilization);
}

// Seconds of a step on average, nothing overlapped: each step computes, and every `period` steps
// sites exchange what makes up `numbers` of four bytes a step, in `rounds` that wait for each
// other.
[[nodiscard]] constexpr double step_seconds(double compute, double numbers, double period,
                                            int rounds, int sites, const site_link& link) {
  const double transfer = all_reduce_seconds(4 * numbers, sites, {link.name, link.bits_per_second});
  return compute + transfer + (sites == 1 ? 0 : rounds * link.latency_seconds / period);
}

}  // namespace lordo::inline MFSDP_ABI
