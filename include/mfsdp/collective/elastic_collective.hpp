// elastic_collective: a group of threads that goes on without who has vanished.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "mfsdp/collective/elastic_board.hpp"
#include "mfsdp/collective/rank_order_sum.hpp"

namespace mfsdp::inline MFSDP_ABI {

// One member's view of an elastic_world, an ElasticCollective: rank() is its seat. Copies are the
// same member; use it from that member's thread only.
//
// An operation is complete when all members have come to it. Who has not come when round_timeout
// has passed since the first one is dropped, and the rest complete it: the same members count for
// all of them, decided once. Sums are over those who have come, in the order of seats; gathered
// pieces of the others are zeros. A dropped member gets member_dropped from its next call.
// Inputs are copied when an operation starts, so that they may be written at once, and destroying a
// request costs the others nothing.
class elastic_collective {
  struct started {
    std::shared_ptr<detail::elastic_board> board{};
    detail::elastic_pointer operation{};  // null when the output is complete
    void (*transfer)(const started&) = nullptr;
    void* output = nullptr;
    std::span<const piece> pieces{};
    reduce_into into = reduce_into::write;
  };

 public:
  class request {
   public:
    request() = default;
    request(request&& other) noexcept : op_(std::exchange(other.op_, {})) {}
    request& operator=(request&& other) noexcept {
      op_ = std::exchange(other.op_, {});
      return *this;
    }

    bool test() {
      if (op_.operation != nullptr && op_.board->poll(*op_.operation)) finish();
      return op_.operation == nullptr;
    }
    void wait(deadline until) {
      if (op_.operation == nullptr) return;
      op_.board->await(*op_.operation, until);
      finish();
    }
    void drain(deadline until) { wait(until); }

   private:
    friend class elastic_collective;
    explicit request(started op) : op_(std::move(op)) {}
    void finish() {
      op_.transfer(op_);
      op_ = {};
    }
    started op_;
  };

  [[nodiscard]] int rank() const { return member_.seat; }
  [[nodiscard]] int size() const { return board_->size(); }

  template <class T>
  request start_all_gather(std::span<const T> shard, std::span<T> full,
                           std::span<const piece> pieces, std::string_view label) {
    index_t given = 0;
    for (const piece& p : pieces) {
      if (p.rank == rank()) given = std::max(given, p.local + p.count);
    }
    return start(detail::elastic_kind::gather, "all-gather", label, slice(shard, 0, given),
                 full.data(), pieces, reduce_into::write, &gather<T>);
  }

  template <class From, class To>
  request start_all_reduce(std::span<const From> full, std::span<To> local,
                           std::span<const piece> pieces, reduce_into into,
                           std::string_view label) {
    index_t given = 0;
    for (const piece& p : pieces) given = std::max(given, p.full + p.count);
    return start(detail::elastic_kind::sum,
                 into == reduce_into::add ? "adding all-reduce" : "all-reduce", label,
                 slice(full, 0, given), local.data(), pieces, into, &reduce<From, To>);
  }

  [[nodiscard]] std::chrono::milliseconds round_timeout() const { return board_->round_timeout(); }

  // See ElasticCollective.
  [[nodiscard]] bool joins() const { return board_->joins(member_); }
  [[nodiscard]] admission admit(deadline until) {
    if (joins()) return board_->await_admission(member_, until);
    const auto call = board_->post(member_, detail::elastic_kind::admission, "admission", {});
    board_->await(*call, until);
    return call->let_in;
  }

 private:
  friend class elastic_world;
  elastic_collective(std::shared_ptr<detail::elastic_board> board, detail::elastic_member member)
      : board_(std::move(board)), member_(member) {}

  template <class T>
  request start(detail::elastic_kind kind, std::string_view name, std::string_view label,
                std::span<const T> input, void* output, std::span<const piece> pieces,
                reduce_into into, void (*transfer)(const started&)) {
    static_assert(std::is_trivially_copyable_v<T>);
    index_t elements = 0;
    for (const piece& p : pieces) elements += p.count;
    std::vector<std::byte> copy(input.size_bytes());
    std::ranges::copy(std::as_bytes(input), copy.begin());
    auto operation = board_->post(
        member_, kind,
        fmt::format("{} '{}' of {} elements of {} bytes", name, label, elements, sizeof(T)),
        std::move(copy));
    return request({board_, std::move(operation), transfer, output, pieces, into});
  }

  template <class T>
  static void gather(const started& op) {
    for (const piece& p : op.pieces) {
      if (p.count == 0) continue;
      T* to = static_cast<T*>(op.output) + p.full;
      const auto& from = op.operation->inputs[static_cast<std::size_t>(p.rank)];
      if (from) {
        std::memcpy(to, from->data() + p.local * index_t{sizeof(T)},
                    static_cast<std::size_t>(p.count) * sizeof(T));
      } else {
        std::fill_n(to, p.count, T{});
      }
    }
  }

  template <class From, class To>
  static void reduce(const started& op) {
    std::vector<const void*> given;
    for (const auto& input : op.operation->inputs) {
      if (input) given.push_back(input->data());
    }
    for (const piece& p : op.pieces) {
      detail::add_in_rank_order<From>(std::span<const void* const>(given), p,
                                      static_cast<To*>(op.output) + p.local, op.into);
    }
  }

  std::shared_ptr<detail::elastic_board> board_;
  detail::elastic_member member_;
};

}  // namespace mfsdp::inline MFSDP_ABI
