// What the members of an elastic_world share: who has which seat, and their operations.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Who holds a seat. Numbers are never used again, so a member that was dropped is not mistaken for
// the one that has taken its seat.
struct elastic_member {
  int seat = 0;
  std::int64_t number = 0;
};

enum class elastic_kind { gather, sum, admission };

// One operation: what each seat has given to it. Once it is decided nothing changes any more and it
// may be read without the lock.
struct elastic_operation {
  elastic_kind kind = elastic_kind::sum;
  std::string what{};
  int first_seat = 0;  // who started it
  deadline until{};    // who has not come by then is dropped
  bool decided = false;
  std::vector<std::optional<std::vector<std::byte>>> inputs{};  // by seat
  admission let_in{};
};
using elastic_pointer = std::shared_ptr<elastic_operation>;

// Inputs are copied when they are given, so that a member may vanish at any time, its memory with
// it, and what it has given still counts. An operation is decided as soon as all members have come
// to it, or at its deadline, when the others are dropped; operations are decided in their order.
// Every public member function may be called from any thread.
class elastic_board {
 public:
  elastic_board(int seats, std::chrono::milliseconds round_timeout)
      : round_timeout_(round_timeout), seats_(at(seats)) {}

  [[nodiscard]] std::chrono::milliseconds round_timeout() const { return round_timeout_; }

  [[nodiscard]] int size() const { return static_cast<int>(seats_.size()); }

  // A member that is there before the first operation.
  [[nodiscard]] elastic_member found(int place) {
    const std::unique_lock guard(mutex_);
    return take(place, presence::member);
  }

  // A member that wants to join. Errors: usage_error if no seat is free or nobody can let it in.
  [[nodiscard]] elastic_member take_seat() {
    const std::unique_lock guard(mutex_);
    if (!anyone()) throw usage_error("join: no member is left that could let another one in");
    for (int place = 0; place < size(); ++place) {
      if (seats_[at(place)].state == presence::none) return take(place, presence::joins);
    }
    throw usage_error(fmt::format(
        "join: all {} seats of the elastic_world are taken; one is free when its member has ended "
        "or was dropped",
        size()));
  }

  // The member makes no more calls; whatever it has given counts.
  void leave(const elastic_member& who) {
    const std::unique_lock guard(mutex_);
    if (!holds_seat(who)) return;
    seats_[at(who.seat)].state = presence::none;
    decide_what_can_be();
    changed_.notify_all();
  }

  [[nodiscard]] bool joins(const elastic_member& who) const {
    const std::unique_lock guard(mutex_);
    return holds_seat(who) && seats_[at(who.seat)].state != presence::member;
  }

  // Gives `input` to the member's next operation. Errors: member_dropped; collective_error if the
  // others have started another operation; usage_error if it has not joined and may only gather.
  [[nodiscard]] elastic_pointer post(const elastic_member& who, elastic_kind kind, std::string what,
                                     std::vector<std::byte> input) {
    const std::unique_lock guard(mutex_);
    require(who);
    seat& own = seats_[at(who.seat)];
    if (own.state != presence::member) {
      if (kind != elastic_kind::gather) {
        throw usage_error(
            fmt::format("{}: the member on seat {} has not joined yet", what, who.seat));
      }
      elastic_pointer answered = begin(who, kind, std::move(what));
      answered->inputs[at(who.seat)] = std::move(input);
      return answered;  // out of the records
    }
    const std::int64_t number = own.next++;
    if (number == oldest_ + std::ssize(open_)) {
      open_.push_back(begin(who, kind, std::move(what)));
    } else if (const elastic_operation& open = *open_[at(number - oldest_)]; open.what != what) {
      drop(who.seat,
           fmt::format("operation {} differs between members: seat {} started {}, seat {} {}; all "
                       "must make the same calls in the same order",
                       number, open.first_seat, open.what, who.seat, what));
      decide_what_can_be();
      require(who);
    }
    const elastic_pointer operation = open_[at(number - oldest_)];
    operation->inputs[at(who.seat)] = std::move(input);
    decide_what_can_be();
    return operation;
  }

  // Whether the operation is decided. Errors: collective_error if it never will be.
  [[nodiscard]] bool poll(elastic_operation& operation) {
    const std::unique_lock guard(mutex_);
    return is_decided(operation);
  }

  // Returns when the operation is decided. Errors: collective_error after `until`.
  void await(elastic_operation& operation, deadline until) {
    std::unique_lock guard(mutex_);
    while (!is_decided(operation)) {
      if (std::chrono::steady_clock::now() >= until) throw collective_error(overdue(operation));
      changed_.wait_until(guard, std::min(until, operation.until));
    }
  }

  // Waits until the members let this one in. Errors: collective_error after the deadline, or when
  // all of them have gone.
  [[nodiscard]] admission await_admission(const elastic_member& who, deadline until) {
    std::unique_lock guard(mutex_);
    require(who);
    seat& own = seats_[at(who.seat)];
    own.state = presence::waits;
    const auto over = [&] {
      return !holds_seat(who) || own.state == presence::member || !anyone();
    };
    const bool in_time = changed_.wait_until(guard, until, over);
    require(who);
    if (own.state == presence::member) return own.let_in_by->let_in;
    own.state = presence::joins;
    throw collective_error(
        fmt::format("the member on seat {} {} before the others let it in, which they do "
                    "where they meet",
                    who.seat, in_time ? "was left alone" : "reached its deadline"));
  }

 private:
  enum class presence { none, joins, waits, member };

  struct seat {
    std::int64_t holder = -1;
    presence state = presence::none;
    std::int64_t next = 0;  // number of the member's next operation
    elastic_pointer let_in_by{};
  };

  static std::size_t at(std::int64_t place) { return static_cast<std::size_t>(place); }

  [[nodiscard]] bool holds_seat(const elastic_member& who) const {
    const seat& s = seats_[at(who.seat)];
    return s.holder == who.number && s.state != presence::none;
  }

  void require(const elastic_member& who) const {
    if (holds_seat(who)) return;
    const auto reason = dropped_.find(who.number);
    if (reason != dropped_.end()) throw member_dropped(reason->second);
    throw usage_error(fmt::format("the member on seat {} has ended", who.seat));
  }

  [[nodiscard]] bool anyone() const {
    return std::ranges::find(seats_, presence::member, &seat::state) != seats_.end();
  }

  elastic_member take(int place, presence state) {
    seats_[at(place)] = {.holder = members_, .state = state};
    return {place, members_++};
  }

  [[nodiscard]] elastic_pointer begin(const elastic_member& who, elastic_kind kind,
                                      std::string what) const {
    auto operation = std::make_shared<elastic_operation>(elastic_operation{
        .kind = kind,
        .what = std::move(what),
        .first_seat = who.seat,
        .until = seats_[at(who.seat)].state == presence::member ? deadline_after(round_timeout_)
                                                                : deadline::max()});
    operation->inputs.resize(seats_.size());
    return operation;
  }

  [[nodiscard]] bool is_decided(elastic_operation& operation) {
    if (operation.until == deadline::max()) answer(operation);
    if (!operation.decided) decide_what_can_be();
    return operation.decided;
  }

  // A gather of a member that has not joined: what the first members gave to the same.
  void answer(elastic_operation& operation) const {
    if (operation.decided) return;
    const auto record = std::ranges::find(records_, operation.what,
                                          [](const elastic_pointer& r) { return r->what; });
    if (record != records_.end()) {
      const auto own = at(operation.first_seat);
      auto input = std::move(operation.inputs[own]);
      operation.inputs = (*record)->inputs;
      operation.inputs[own] = std::move(input);
      operation.decided = true;
    } else if (summed_ || !anyone()) {
      throw collective_error(fmt::format(
          "{}: the member on seat {} has not joined yet, and the first members made no such call "
          "before they met",
          operation.what, operation.first_seat));
    }
  }

  [[nodiscard]] std::string overdue(const elastic_operation& operation) const {
    if (operation.until == deadline::max()) {
      return fmt::format(
          "{}: the member on seat {} reached its deadline before the first ones had "
          "made this call",
          operation.what, operation.first_seat);
    }
    std::string missing;
    for (int place = 0; place < size(); ++place) {
      if (seats_[at(place)].state != presence::member || operation.inputs[at(place)]) continue;
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", place);
    }
    return fmt::format(
        "{}: a member reached its deadline waiting for seat {}, without which the others go on "
        "after {} ms; give it a longer timeout than the world's round_timeout",
        operation.what, missing, round_timeout_.count());
  }

  void decide_what_can_be() {
    const auto now = std::chrono::steady_clock::now();
    for (; !open_.empty(); open_.pop_front(), ++oldest_) {
      const elastic_pointer& next = open_.front();
      const auto missing = [&](int place) {
        return seats_[at(place)].state == presence::member && !next->inputs[at(place)];
      };
      for (int place = 0; place < size(); ++place) {
        if (!missing(place)) continue;
        if (now < next->until) return;
        drop(place, fmt::format("{} (operation {}) went on without the member on seat {}, which "
                                "had not come to it within {} ms; it may join again",
                                next->what, oldest_, place, round_timeout_.count()));
      }
      decide(next);
    }
  }

  void decide(const elastic_pointer& operation) {
    operation->decided = true;
    if (operation->kind == elastic_kind::admission) let_in(operation);
    if (operation->kind == elastic_kind::sum) summed_ = true;
    if (operation->kind == elastic_kind::gather && !summed_) records_.push_back(operation);
    changed_.notify_all();
  }

  // Who waits goes on with the operation after this one, like everybody.
  void let_in(const elastic_pointer& operation) {
    const auto is_in = [](const seat& s) { return s.state == presence::member; };
    const auto giver = std::ranges::find_if(seats_, is_in);
    if (giver == seats_.end()) return;
    operation->let_in.giver = static_cast<int>(giver - seats_.begin());
    for (int place = 0; place < size(); ++place) {
      seat& s = seats_[at(place)];
      if (s.state != presence::waits) continue;
      s.state = presence::member;
      s.next = oldest_ + 1;
      s.let_in_by = operation;
      operation->let_in.joined.push_back(place);
    }
  }

  void drop(int place, std::string why) {
    seats_[at(place)].state = presence::none;
    dropped_[seats_[at(place)].holder] = std::move(why);
    changed_.notify_all();
  }

  const std::chrono::milliseconds round_timeout_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<seat> seats_;
  std::int64_t members_ = 0;                     // so far
  std::deque<elastic_pointer> open_;             // operations that are not decided, by number
  std::int64_t oldest_ = 0;                      // number of the first of them, or of the next
  bool summed_ = false;                          // whether a sum was decided
  std::vector<elastic_pointer> records_;         // gathers before that
  std::map<std::int64_t, std::string> dropped_;  // why, by the number of the member
};

}  // namespace mfsdp::inline MFSDP_ABI::detail
