// messages: a Collective out of messages between ranks, for engines that can send and receive.
//
// Each owner's pieces travel along a route (routes.hpp), cut into parcels that follow one another,
// so that a rank passes on one parcel while it receives the next. Inputs and outputs are not
// copied, but for small pieces, which share a parcel. Operations move on whenever a rank of this
// process waits or tests, and between that by a thread that does nothing else.
//
// Every operation begins with a small message to the next rank that says what was started, so that
// ranks that make different calls learn it at once. A rank that fails tells all others; one that
// finds a deadline passed first asks who is still there.
#pragma once

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <exception>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mfsdp/collective/message_engine.hpp"
#include "mfsdp/collective/message_operation.hpp"
#include "mfsdp/collective/message_wire.hpp"
#include "mfsdp/collective/parcels.hpp"
#include "mfsdp/collective/routes.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp::inline MFSDP_ABI {

// A rank's view of a group. Copies are the same rank; use it from that rank's thread only. The last
// copy waits for the other ranks to let go of theirs.
template <MessageWire Wire>
class message_collective {
  using engine = detail::message_engine<Wire>;
  using group = detail::message_group<Wire>;
  using operation = detail::message_operation<Wire>;

 public:
  class request {
   public:
    request() = default;
    request(request&& other) noexcept
        : engine_(std::move(other.engine_)),
          group_(std::move(other.group_)),
          op_(std::move(other.op_)),
          waited_(other.waited_) {}
    request& operator=(request&& other) noexcept {
      request moved(std::move(other));
      std::swap(engine_, moved.engine_);
      std::swap(group_, moved.group_);
      std::swap(op_, moved.op_);
      std::swap(waited_, moved.waited_);
      return *this;
    }
    ~request() {
      if (op_ != nullptr) engine_->settle(*op_, waited_);
    }

    bool test() {
      if (op_ == nullptr || waited_) return true;
      const auto lock = engine_->lock();
      engine_->throw_if_failed();
      if (!op_->output_complete()) engine_->poll();
      waited_ = op_->output_complete();
      return waited_;
    }
    void wait(deadline until) {
      if (op_ == nullptr || waited_) return;
      auto lock = engine_->lock();
      engine_->await(lock, *op_, until, [this] { return op_->output_complete(); });
      waited_ = true;
    }
    void drain(deadline until) {
      if (op_ == nullptr) return;
      wait(until);
      {
        auto lock = engine_->lock();
        engine_->await(lock, *op_, until, [this] { return op_->input_free(); });
      }
      op_.reset();
    }

   private:
    friend class message_collective;
    request(std::shared_ptr<engine> e, std::shared_ptr<group> g, std::shared_ptr<operation> op)
        : engine_(std::move(e)), group_(std::move(g)), op_(std::move(op)) {}

    std::shared_ptr<engine> engine_;
    std::shared_ptr<group> group_;
    std::shared_ptr<operation> op_;
    bool waited_ = false;
  };

  explicit message_collective(Wire wire, message_options options = {})
      : message_collective(std::make_shared<engine>(std::move(wire), std::move(options))) {}

  [[nodiscard]] int rank() const { return group_->wire.rank(); }
  [[nodiscard]] int size() const { return group_->wire.size(); }

  // What this rank has sent in this group so far, not counting the small messages that begin an
  // operation.
  [[nodiscard]] std::int64_t bytes_sent() const {
    const auto lock = engine_->lock();
    return group_->bytes_sent;
  }

  template <class T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const piece> pieces, std::string_view label) {
    const travel how = choose_gather(pieces, sizeof(T));
    std::vector<route> routes;
    for (const int owner : owners(pieces)) {
      routes.push_back(gather_route(how, owner, rank(), size()));
    }
    return start({"all-gather", label, true, reduce_into::write, how, shard.data(), full.data(),
                  detail::arithmetic_of<T, T>()},
                 pieces, std::move(routes));
  }

  template <class From, class To>
  request start_reduce_scatter(std::span<const From> full, std::span<To> shard,
                               std::span<const piece> pieces, reduce_into into,
                               std::string_view label) {
    const travel how = choose_sum(pieces, sizeof(From), sizeof(To));
    std::vector<route> routes;
    for (const int owner : owners(pieces)) {
      std::ranges::move(sum_routes(how, owner, rank(), size()), std::back_inserter(routes));
    }
    return start({into == reduce_into::add ? "adding reduce-scatter" : "reduce-scatter", label,
                  false, into, how, full.data(), shard.data(), detail::arithmetic_of<From, To>()},
                 pieces, std::move(routes));
  }

  // Each rank sums an even share, which then reaches the others.
  template <class From, class To>
  request start_all_reduce(std::span<const From> full, std::span<To> local,
                           std::span<const piece> pieces, reduce_into into,
                           std::string_view label) {
    const std::vector<piece> shares = detail::spread(pieces, size());
    const travel how = choose_sum(shares, sizeof(From), sizeof(To));
    std::vector<route> routes;
    for (const int owner : owners(shares)) {
      std::ranges::move(all_sum_routes(how, owner, rank(), size()), std::back_inserter(routes));
    }
    return start({into == reduce_into::add ? "adding all-reduce" : "all-reduce", label, false, into,
                  how, full.data(), local.data(), detail::arithmetic_of<From, To>()},
                 shares, std::move(routes));
  }

  // The ranks of one color, in the order of ranks. A collective call. Errors: as an operation with
  // the deadline message_options.timeout.
  [[nodiscard]] message_collective split(int color) {
    // Of each rank its color, and how often it has split.
    const std::array<std::int64_t, 2> mine{color, engine_->splits()};
    std::vector<std::int64_t> all(2 * static_cast<std::size_t>(size()));
    std::vector<piece> pieces;
    for (int r = 0; r < size(); ++r) pieces.push_back({r, 2 * r, 0, 2});
    const deadline until = std::chrono::steady_clock::now() + engine_->options().timeout;
    request exchange = start_all_gather(std::span<const std::int64_t>(mine),
                                        std::span<std::int64_t>(all), pieces, "split");
    exchange.wait(until);
    exchange.drain(until);
    std::vector<int> ranks;
    std::int64_t id = 0;
    for (std::size_t r = 0; r < all.size() / 2; ++r) {
      id = std::max(id, all[2 * r + 1] + 1);
      if (all[2 * r] == color) ranks.push_back(static_cast<int>(r));
    }
    return message_collective(engine_, engine_->split(*group_, color, ranks, id, until));
  }

  // Calls body(message_collective) as one rank of all, and returns when every rank has returned. An
  // exception of the body is told to the other ranks, and leaves. Errors: collective_error if a
  // rank has failed, or does not return before the timeout.
  template <class Body>
  void run(Body&& body) {
    engine_->manage();
    try {
      body(message_collective(*this));
    } catch (const std::exception& e) {
      engine_->report(e.what());
      throw;
    } catch (...) {
      engine_->report("an exception of unknown type");
      throw;
    }
    engine_->leave();
    const auto lock = engine_->lock();
    engine_->throw_if_failed();
  }

 private:
  explicit message_collective(std::shared_ptr<engine> e) : engine_(e), group_(e, &e->world()) {}
  message_collective(std::shared_ptr<engine> e, std::shared_ptr<group> g)
      : engine_(std::move(e)), group_(std::move(g)) {}

  [[nodiscard]] std::vector<int> owners(std::span<const piece> pieces) const {
    std::vector<bool> owns(static_cast<std::size_t>(size()), false);
    for (const piece& p : pieces) owns[static_cast<std::size_t>(p.rank)] = true;
    std::vector<int> ranks;
    for (int r = 0; r < size(); ++r) {
      if (owns[static_cast<std::size_t>(r)]) ranks.push_back(r);
    }
    return ranks;
  }

  [[nodiscard]] travel choose_gather(std::span<const piece> pieces, std::size_t size) const {
    if (engine_->options().gathers) return *engine_->options().gathers;
    return quicker(pieces, travel::direct, size, travel::ring, size);
  }
  // Terms travel direct, partial sums by chain.
  [[nodiscard]] travel choose_sum(std::span<const piece> pieces, std::size_t term_size,
                                  std::size_t sum_size) const {
    if (engine_->options().sums) return *engine_->options().sums;
    return quicker(pieces, travel::direct, term_size, travel::chain, sum_size);
  }
  [[nodiscard]] travel quicker(std::span<const piece> pieces, travel near, std::size_t near_size,
                               travel far, std::size_t far_size) const {
    if (group_->wire.one_node()) return near;
    std::vector<index_t> elements(static_cast<std::size_t>(size()), 0);
    for (const piece& p : pieces) elements[static_cast<std::size_t>(p.rank)] += p.count;
    const auto seconds = [&](travel how, std::size_t element_size) {
      std::vector<index_t> bytes = elements;
      for (index_t& b : bytes) b *= static_cast<index_t>(element_size);
      return travel_seconds(how, bytes, engine_->options().parcel_bytes, engine_->options().net);
    };
    return seconds(far, far_size) < seconds(near, near_size) ? far : near;
  }

  request start(const typename operation::description& what, std::span<const piece> pieces,
                std::vector<route> routes) {
    // The request first: it takes back what has begun if the rest fails.
    request started(
        engine_, group_,
        std::make_shared<operation>(*engine_, *group_, what, pieces, std::move(routes)));
    const auto lock = engine_->lock();
    engine_->add(started.op_);
    return started;
  }

  std::shared_ptr<engine> engine_;
  std::shared_ptr<group> group_;
};

}  // namespace mfsdp::inline MFSDP_ABI
