// nccl_sums: sums over ranks out of sends, receives and one kernel, or by NCCL's own reductions.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <type_traits>
#include <vector>

#include "mfsdp/collective/nccl_start.hpp"
#include "mfsdp/collective/parcels.hpp"
#include "mfsdp/collective/rank_order_terms.hpp"
#include "mfsdp/cuda/launch.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Pieces in parts, so that what a rank takes in at a time has room.
class nccl_rounds {
 public:
  struct stretch {
    int owner = 0;
    index_t full = 0;
    index_t local = 0;
    index_t count = 0;
    index_t at = 0;  // among what this owner gets in the round
  };

  // `room` elements an owner and round.
  nccl_rounds(std::span<const piece> pieces, int ranks, index_t room)
      : pieces_(pieces), room_(room), next_(static_cast<std::size_t>(ranks)) {}

  // The same on every rank; empty when all is done.
  [[nodiscard]] std::vector<stretch> next() {
    std::vector<stretch> round;
    for (std::size_t owner = 0; owner < next_.size(); ++owner) {
      auto& [i, done] = next_[owner];
      for (index_t at = 0; i < pieces_.size() && at < room_;) {
        const piece& p = pieces_[i];
        if (p.rank == static_cast<int>(owner) && done < p.count) {
          const index_t count = std::min(p.count - done, room_ - at);
          round.push_back({p.rank, p.full + done, p.local + done, count, at});
          done += count;
          at += count;
        } else {
          ++i;
          done = 0;
        }
      }
    }
    return round;
  }

  // How many elements fit, if each takes so many bytes.
  [[nodiscard]] static index_t room_for(index_t bytes, std::size_t of_each) {
    const index_t fit = bytes / static_cast<index_t>(std::max<std::size_t>(1, of_each));
    return fit < 64 ? std::max<index_t>(1, fit) : fit / 64 * 64;
  }

 private:
  struct position {
    std::size_t piece = 0;
    index_t done = 0;
  };

  std::span<const piece> pieces_;
  index_t room_;
  std::vector<position> next_;  // by owner
};

using nccl_stretch = nccl_rounds::stretch;

// Terms of each stretch to its owner, where that of rank r lies at terms[place of r * room + at].
template <class From>
void send_terms(nccl_start& now, const From* full, std::span<const nccl_stretch> round, From* terms,
                index_t room) {
  const int me = now.group().rank;
  if (now.group().size == 1) return;
  now.grouped([&](ncclComm_t comm, cudaStream_t stream, const auto& check) {
    for (const nccl_stretch& s : round) {
      const std::size_t bytes = static_cast<std::size_t>(s.count) * sizeof(From);
      if (s.owner != me) {
        check(ncclSend(full + s.full, bytes, ncclInt8, s.owner, comm, stream));
        continue;
      }
      for (int r = 0; r < now.group().size; ++r) {
        if (r == me) continue;
        From* slot = terms + (r < me ? r : r - 1) * room + s.at;
        check(ncclRecv(slot, bytes, ncclInt8, r, comm, stream));
      }
    }
  });
}

template <class From, class To>
void launch_sum(nccl_start& now, const cuda::rank_order_terms<From, To>& body) {
  cuda::kernel<cuda::rank_order_terms<From, To>>::launch(now.stream(), body, nullptr);
}

// out = (out +) what is at `sum`.
template <class T>
void launch_add(nccl_start& now, const T* sum, T* out, index_t count) {
  launch_sum<T, T>(now, {sum, nullptr, 0, 0, 1, out, true, count});
}

template <class From, class To>
void scatter_in_rank_order(nccl_start& now, const From* full, To* shard,
                           std::span<const piece> pieces, reduce_into into) {
  const auto& group = now.group();
  const index_t room = nccl_rounds::room_for(
      now.scratch_bytes(), static_cast<std::size_t>(group.size - 1) * sizeof(From));
  From* terms = reinterpret_cast<From*>(now.scratch());
  nccl_rounds rounds(pieces, group.size, room);
  for (auto round = rounds.next(); !round.empty(); round = rounds.next()) {
    send_terms<From>(now, full, round, terms, room);
    for (const nccl_stretch& s : round) {
      if (s.owner != group.rank) continue;
      launch_sum<From, To>(now, {full + s.full, terms + s.at, room, group.rank, group.size,
                                 shard + s.local, into == reduce_into::add, s.count});
    }
  }
}

// Each rank sums an even share, which then reaches the others.
template <class From, class To>
void all_reduce_in_rank_order(nccl_start& now, const From* full, To* local,
                              std::span<const piece> pieces, reduce_into into) {
  const auto& group = now.group();
  const std::vector<piece> shares = spread(pieces, group.size);
  if (group.size == 1) return scatter_in_rank_order<From, To>(now, full, local, shares, into);
  const bool adds = into == reduce_into::add;
  const auto ranks = static_cast<std::size_t>(group.size);
  const index_t room =
      nccl_rounds::room_for(now.scratch_bytes(), (ranks - 1) * std::max(sizeof(From), sizeof(To)) +
                                                     (adds ? ranks * sizeof(To) : 0));
  To* sums = reinterpret_cast<To*>(now.scratch());
  From* terms = reinterpret_cast<From*>(sums + (adds ? group.size * room : 0));
  nccl_rounds rounds(shares, group.size, room);
  for (auto round = rounds.next(); !round.empty(); round = rounds.next()) {
    const auto sum_of = [&](const nccl_stretch& s) {
      return adds ? sums + s.owner * room + s.at : local + s.local;
    };
    send_terms<From>(now, full, round, terms, room);
    for (const nccl_stretch& s : round) {
      if (s.owner != group.rank) continue;
      launch_sum<From, To>(now, {full + s.full, terms + s.at, room, group.rank, group.size,
                                 sum_of(s), false, s.count});
    }
    now.grouped([&](ncclComm_t comm, cudaStream_t stream, const auto& check) {
      for (const nccl_stretch& s : round) {
        check(ncclBroadcast(sum_of(s), sum_of(s), static_cast<std::size_t>(s.count) * sizeof(To),
                            ncclInt8, s.owner, comm, stream));
      }
    });
    for (const nccl_stretch& s : round) {
      if (adds) launch_add<To>(now, sum_of(s), local + s.local, s.count);
    }
  }
}

// By NCCL: reduce(from, to, stretch, communicator, stream) for each stretch, of which this rank
// gets those that `mine` says.
template <class T, class Reduce, class Mine>
void sum_by_nccl(nccl_start& now, const T* full, T* out, std::span<const piece> pieces,
                 reduce_into into, const Reduce& reduce, const Mine& mine) {
  const bool adds = into == reduce_into::add;
  T* sums = adds ? reinterpret_cast<T*>(now.scratch()) : nullptr;
  const index_t room =
      adds ? nccl_rounds::room_for(now.scratch_bytes(), sizeof(T)) : index_t{1} << 60;
  nccl_rounds rounds(pieces, now.group().size, room);
  for (auto round = rounds.next(); !round.empty(); round = rounds.next()) {
    now.grouped([&](ncclComm_t comm, cudaStream_t stream, const auto& check) {
      for (const nccl_stretch& s : round) {
        T* to = adds ? sums + s.at : out + s.local;
        check(reduce(full + s.full, mine(s) ? to : nullptr, s, comm, stream));
      }
    });
    for (const nccl_stretch& s : round) {
      if (adds && mine(s)) launch_add<T>(now, sums + s.at, out + s.local, s.count);
    }
  }
}

template <class T>
void scatter_by_nccl(nccl_start& now, const T* full, T* shard, std::span<const piece> pieces,
                     reduce_into into) {
  sum_by_nccl<T>(
      now, full, shard, pieces, into,
      [](const T* from, T* to, const nccl_stretch& s, ncclComm_t comm, cudaStream_t stream) {
        return ncclReduce(from, to, static_cast<std::size_t>(s.count), nccl_type<T>(), ncclSum,
                          s.owner, comm, stream);
      },
      [me = now.group().rank](const nccl_stretch& s) { return s.owner == me; });
}

template <class T>
void all_reduce_by_nccl(nccl_start& now, const T* full, T* local, std::span<const piece> pieces,
                        reduce_into into) {
  std::vector<piece> all(pieces.begin(), pieces.end());
  for (piece& p : all) p.rank = 0;  // so that parts lie one after another
  sum_by_nccl<T>(
      now, full, local, all, into,
      [](const T* from, T* to, const nccl_stretch& s, ncclComm_t comm, cudaStream_t stream) {
        return ncclAllReduce(from, to, static_cast<std::size_t>(s.count), nccl_type<T>(), ncclSum,
                             comm, stream);
      },
      [](const nccl_stretch&) { return true; });
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
