// routes: how the pieces of one owner travel between ranks that send each other messages. Plain
// data, the same arithmetic on every rank; no engine.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "mfsdp/layout.hpp"

namespace mfsdp::inline MFSDP_ABI {

// With N ranks, S bytes to move and s of them the owner's, the most that one link carries is
//   direct   gathers: the owner sends s to each rank. Sums: each rank sends its terms to the owner,
//            which adds them in rank order. (N - 1) s: best where copies are cheap or s is small
//   ring     gathers: from each rank to the next, starting at the owner. Sums: partial sums from
//            each rank to the next, ending at the owner, so in an order that depends on the owner.
//            S minus the smallest s: the lower bound
//   chain    sums only: partial sums from rank 0 to the last one, so in rank order, then to the
//            owner. S, and the owner takes in S + s
enum class travel { direct, ring, chain };

// One rank's part in the journey of one owner's pieces: what comes from the terms is summed in
// their order and sent on.
struct route {
  int owner = 0;
  std::vector<int> terms{};   // this rank stands for what it holds itself, others for a message
  std::vector<int> to{};      // who receives the result
  bool keep = false;          // the result is part of this rank's output
  bool receives_sum = false;  // messages are sums already, and not what another rank holds
  bool sends_sum = false;
  int receive_leg = 0;  // an all-reduce has a second leg, from the owner to everyone
  int send_leg = 0;
  friend bool operator==(const route&, const route&) = default;
};

namespace detail {

[[nodiscard]] inline std::vector<int> all_ranks_but(int ranks, int one) {
  std::vector<int> others;
  for (int rank = 0; rank < ranks; ++rank) {
    if (rank != one) others.push_back(rank);
  }
  return others;
}

// Who sends on to whom from `rank`, when all have to get what the owner has.
[[nodiscard]] inline std::vector<int> gather_receivers(travel how, int owner, int rank, int ranks) {
  if (how == travel::direct)
    return rank == owner ? all_ranks_but(ranks, owner) : std::vector<int>{};
  const int next = (rank + 1) % ranks;
  return next == owner ? std::vector<int>{} : std::vector{next};
}

}  // namespace detail

// The owner's pieces reach every rank.
[[nodiscard]] inline route gather_route(travel how, int owner, int rank, int ranks) {
  const int from = rank == owner           ? rank
                   : how == travel::direct ? owner
                                           : (rank + ranks - 1) % ranks;
  return {.owner = owner,
          .terms = {from},
          .to = detail::gather_receivers(how, owner, rank, ranks),
          .keep = true};
}

// The sum over ranks of the owner's pieces reaches the owner.
[[nodiscard]] inline std::vector<route> sum_routes(travel how, int owner, int rank, int ranks) {
  if (how == travel::direct || ranks == 1) {
    if (rank != owner) return {{.owner = owner, .terms = {rank}, .to = {owner}}};
    route whole{.owner = owner, .keep = true};
    for (int r = 0; r < ranks; ++r) whole.terms.push_back(r);
    return {whole};
  }
  // The ranks that add, in their order.
  const int first = how == travel::ring ? (owner + 1) % ranks : 0;
  const int last = (first + ranks - 1) % ranks;
  route link{.owner = owner, .receives_sum = true, .sends_sum = true};
  if (rank != first) link.terms.push_back((rank + ranks - 1) % ranks);
  link.terms.push_back(rank);
  if (rank != last) {
    link.to = {(rank + 1) % ranks};
  } else if (rank != owner) {
    link.to = {owner};
  }
  link.keep = rank == last && rank == owner;
  std::vector<route> parts{link};
  if (rank == owner && rank != last) {
    parts.push_back({.owner = owner, .terms = {last}, .keep = true, .receives_sum = true});
  }
  return parts;
}

// The sum over ranks reaches every rank, by way of one rank that stands for the owner.
[[nodiscard]] inline std::vector<route> all_sum_routes(travel how, int owner, int rank, int ranks) {
  std::vector<route> parts = sum_routes(how, owner, rank, ranks);
  const std::vector<int> receivers = detail::gather_receivers(how, owner, rank, ranks);
  if (rank == owner) {
    parts.back().to = receivers;
    parts.back().sends_sum = true;
    parts.back().send_leg = 1;
  } else {
    route gather = gather_route(how, owner, rank, ranks);
    gather.receives_sum = gather.sends_sum = true;
    gather.receive_leg = gather.send_leg = 1;
    parts.push_back(gather);
  }
  return parts;
}

// What a network gives, for choosing between ways to travel and for estimates.
struct fabric {
  double latency = 5e-6;    // seconds a message
  double bandwidth = 11e9;  // bytes a second, each way, of one rank
};

// Estimated seconds of a gather, or of the sum that mirrors it; owned[r] are the bytes of rank r's
// pieces, `chunk` those of the largest message.
[[nodiscard]] inline double travel_seconds(travel how, std::span<const index_t> owned,
                                           index_t chunk, const fabric& net) {
  index_t total = 0;
  for (const index_t bytes : owned) total += bytes;
  if (total == 0 || owned.size() < 2) return 0;
  const auto [smallest, largest] = std::ranges::minmax(owned);
  const double others = static_cast<double>(owned.size() - 1);
  const double bound = static_cast<double>(total - smallest);
  const double fill = net.latency + static_cast<double>(std::min(chunk, largest)) / net.bandwidth;
  switch (how) {
    case travel::direct:
      return net.latency + std::max(others * static_cast<double>(largest), bound) / net.bandwidth;
    case travel::ring:
      return others * fill + bound / net.bandwidth;
    default:
      return (others + 1) * fill + static_cast<double>(total + largest) / net.bandwidth;
  }
}

}  // namespace mfsdp::inline MFSDP_ABI
