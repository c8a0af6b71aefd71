// counting: any collective, with its operations and bytes counted.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI {

// What one rank moved. Received: bytes of other ranks' data that this rank takes in; sent: bytes of
// its own data that other ranks take in, once for each of them. Summed over ranks both are equal.
// Ranks that an elastic collective lacks count like the others.
struct traffic {
  std::int64_t collectives = 0;
  std::int64_t sent = 0;
  std::int64_t received = 0;

  friend traffic operator-(traffic a, const traffic& b) {
    return {a.collectives - b.collectives, a.sent - b.sent, a.received - b.received};
  }
  traffic& operator+=(const traffic& b) {
    collectives += b.collectives;
    sent += b.sent;
    received += b.received;
    return *this;
  }
  friend bool operator==(const traffic&, const traffic&) = default;
};

// Copies share one counter, as they share one communicator.
template <Collective C>
class counting {
 public:
  using request = typename C::request;

  explicit counting(C inner) : inner_(std::move(inner)) {}

  [[nodiscard]] int rank() const { return inner_.rank(); }
  [[nodiscard]] int size() const { return inner_.size(); }
  [[nodiscard]] const traffic& total() const { return *total_; }

  // A part of the collective; what it moves counts here, too.
  [[nodiscard]] counting split(int color)
    requires requires(C c) { c.split(color); }
  {
    counting part(inner_.split(color));
    part.total_ = total_;
    return part;
  }

  [[nodiscard]] bool joins() const
    requires ElasticCollective<C>
  {
    return inner_.joins();
  }
  [[nodiscard]] admission admit(deadline until)
    requires ElasticCollective<C>
  {
    count(0, 0);
    return inner_.admit(until);
  }

  [[nodiscard]] auto round_timeout() const
    requires requires(const C& c) { c.round_timeout(); }
  {
    return inner_.round_timeout();
  }

  template <class T>
    requires AllGather<C, T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const piece> pieces, std::string_view label) {
    const auto [mine, others] = split<T>(pieces);
    count(mine * (size() - 1), others);
    return inner_.start_all_gather(shard, full, pieces, label);
  }

  template <class From, class To>
    requires ReduceScatter<C, From, To>
  request start_reduce_scatter(std::span<const From> full, std::span<To> shard,
                               std::span<const piece> pieces, reduce_into into,
                               std::string_view label) {
    const auto [mine, others] = split<From>(pieces);
    count(others, mine * (size() - 1));
    return inner_.start_reduce_scatter(full, shard, pieces, into, label);
  }

  template <class From, class To>
    requires AllReduce<C, From, To>
  request start_all_reduce(std::span<const From> full, std::span<To> local,
                           std::span<const piece> pieces, reduce_into into,
                           std::string_view label) {
    const auto [mine, others] = split<From>(pieces);
    count((mine + others) * (size() - 1), (mine + others) * (size() - 1));
    return inner_.start_all_reduce(full, local, pieces, into, label);
  }

 private:
  template <class T>
  std::pair<std::int64_t, std::int64_t> split(std::span<const piece> pieces) const {
    std::int64_t mine = 0;
    std::int64_t others = 0;
    for (const piece& p : pieces) {
      (p.rank == rank() ? mine : others) += p.count * static_cast<std::int64_t>(sizeof(T));
    }
    return {mine, others};
  }

  void count(std::int64_t sent, std::int64_t received) { *total_ += {1, sent, received}; }

  C inner_;
  std::shared_ptr<traffic> total_ = std::make_shared<traffic>();
};

}  // namespace mfsdp::inline MFSDP_ABI
