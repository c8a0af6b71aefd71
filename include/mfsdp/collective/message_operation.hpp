// message_operation: one collective operation of one rank, from its first message to its last.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mfsdp/collective/message_wire.hpp"
#include "mfsdp/collective/parcels.hpp"
#include "mfsdp/collective/routes.hpp"
#include "mfsdp/concepts.hpp"
#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// The first message of every operation, from each rank to the next.
struct operation_header {
  std::array<char, 24> kind{};
  std::array<char, 88> label{};  // shortened
  std::int64_t elements = 0;
  std::int64_t element_size = 0;
  std::int64_t way = 0;
  std::int64_t parcel_bytes = 0;

  static operation_header of(std::string_view kind, std::string_view label) {
    operation_header header;
    kind.copy(header.kind.data(), header.kind.size() - 1);
    label.copy(header.label.data(), header.label.size() - 1);
    return header;
  }
  [[nodiscard]] std::string text(int rank) const {
    return fmt::format("rank {} started {} '{}' of {} elements of {} bytes", rank, kind.data(),
                       label.data(), elements, element_size);
  }
  // The same call, made with other message_options.
  [[nodiscard]] bool differs_in_options(const operation_header& other) const {
    operation_header same = other;
    same.way = way;
    same.parcel_bytes = parcel_bytes;
    return same == *this;
  }
  friend bool operator==(const operation_header&, const operation_header&) = default;
};

// A group of ranks: the world of an engine or a part of it.
template <MessageWire Wire>
struct message_group {
  Wire wire;
  std::int64_t id = 0;         // equal on all of its ranks
  std::vector<int> members{};  // as ranks of the world
  std::int64_t started = 0;    // operations
  std::deque<bool> over{};     // of the last operations, from the oldest that is not over
  std::int64_t bytes_sent = 0;

  [[nodiscard]] int world_rank(int rank) const { return members[static_cast<std::size_t>(rank)]; }
};

template <MessageWire Wire>
class message_engine;

// One collective operation of one rank.
template <MessageWire Wire>
class message_operation {
 public:
  using engine = message_engine<Wire>;
  using group = message_group<Wire>;

  struct description {
    std::string_view kind;
    std::string_view label;
    bool gathers = false;
    reduce_into into = reduce_into::write;
    travel way = travel::direct;
    const void* input = nullptr;
    void* output = nullptr;
    message_arithmetic arithmetic{};
  };

  // `routes` are this rank's, of owners that have pieces.
  message_operation(engine& e, group& g, const description& what, std::span<const piece> pieces,
                    std::vector<route> routes)
      : engine_(e), group_(g), label_(what.label), what_(what), routes_(std::move(routes)) {
    what_.label = label_;
    index_t elements = 0;
    for (const piece& p : pieces) elements += p.count;
    header_ = operation_header::of(what.kind, what.label);
    header_.elements = elements;
    header_.element_size = what.arithmetic.term_size;
    header_.way = static_cast<std::int64_t>(what.way);
    header_.parcel_bytes = e.options().parcel_bytes;
    const index_t largest =
        std::max<index_t>(1, e.options().parcel_bytes /
                                 std::max(what.arithmetic.term_size, what.arithmetic.sum_size));
    parcels_.resize(static_cast<std::size_t>(g.wire.size()));
    for (const route& r : routes_) {
      std::vector<parcel>& parcels = parcels_[at(r.owner)];
      if (parcels.empty()) parcels = parcels_of(pieces, r.owner, what.gathers, largest);
      const auto count = std::ssize(parcels);
      if (r.keep) output_pending_ += count;
      if (reads_input(r)) input_pending_ += count;
      pending_ += count;
    }
    lanes_.resize(routes_.size());
  }

  // Everything below with the engine's lock.

  void begin() {
    const int ranks = group_.wire.size();
    const int rank = group_.wire.rank();
    const std::int64_t window = group_.wire.largest_tag() / (2 * ranks + 1);
    number_ = group_.started;
    if (std::ssize(group_.over) >= window) {
      throw collective_error(describe("is one of too many at a time; wait for earlier ones first"));
    }
    ++group_.started;
    group_.over.push_back(false);
    first_tag_ = 1 + number_ % window * (2 * ranks + 1);
    if (ranks > 1) {
      pending_ += 2;
      ++output_pending_;
      engine_.receive(group_, &other_header_, sizeof other_header_, (rank + ranks - 1) % ranks,
                      first_tag_, {this, header_slot, 0});
      engine_.send(group_, &header_, sizeof header_, (rank + 1) % ranks, first_tag_,
                   {this, header_slot, sent});
    }
    for (std::size_t l = 0; l < lanes_.size(); ++l) move_on(l);
    retire();
  }

  // A message is complete.
  void advance(std::size_t which, int part) {
    if (stopped_) return;
    if (which == header_slot) {
      --pending_;
      if (part != sent) {
        if (other_header_ != header_) disagree();
        --output_pending_;
      }
    } else if (part == sent) {
      if (--slots_[which].sends == 0) finish(which);
      move_on(slots_[which].lane);
    } else {
      slots_[which].arrived[static_cast<std::size_t>(part)] = true;
      move_on(slots_[which].lane);
    }
    retire();
  }

  // The output is complete and no longer used.
  [[nodiscard]] bool output_complete() const { return output_pending_ == 0; }
  [[nodiscard]] bool input_free() const { return input_pending_ == 0; }
  [[nodiscard]] bool over() const { return pending_ == 0 || stopped_; }
  void stop() { stopped_ = true; }

  [[nodiscard]] std::int64_t number() const { return number_; }
  [[nodiscard]] const group& of() const { return group_; }

  [[nodiscard]] std::string describe(const std::string& what) const {
    return fmt::format("{} '{}' (collective {}): rank {} {}", what_.kind, label_, number_,
                       group_.world_rank(group_.wire.rank()), what);
  }

 private:
  static constexpr std::size_t header_slot = static_cast<std::size_t>(-1);
  static constexpr int sent = -1;  // instead of the position of a term

  struct lane {
    std::size_t next = 0;  // parcel
    int active = 0;
    std::deque<std::size_t> unsent{};  // slots, in order
  };

  // One parcel on one route.
  struct slot {
    bool holds_input = false;
    bool holds_output = false;
    std::size_t lane = 0;
    const parcel* what = nullptr;
    std::vector<bool> arrived{};         // by term
    std::vector<std::byte*> messages{};  // by term; null for this rank's own
    std::vector<std::byte*> blocks{};    // to give back
    std::size_t added = 0;               // terms
    std::byte* sum = nullptr;
    int sends = 0;
  };

  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

  [[nodiscard]] bool own(int term) const { return term == group_.wire.rank(); }
  [[nodiscard]] bool reads_input(const route& r) const {
    return std::ranges::any_of(r.terms, [this](int term) { return own(term); });
  }
  // One term that needs no sum is passed on as it is.
  [[nodiscard]] bool passes(const route& r) const {
    return r.terms.size() == 1 &&
           (!own(r.terms[0]) || what_.arithmetic.same || (!r.sends_sum && !r.keep));
  }

  // Whether a sum can grow in the output.
  [[nodiscard]] bool in_place(const route& r, const parcel& p) const {
    return r.keep && what_.into == reduce_into::write && p.stretches.size() == 1;
  }

  [[nodiscard]] const std::byte* input(index_t element) const {
    return static_cast<const std::byte*>(what_.input) + element * what_.arithmetic.term_size;
  }
  [[nodiscard]] std::byte* output(index_t element) const {
    return static_cast<std::byte*>(what_.output) + element * what_.arithmetic.sum_size;
  }

  std::byte* block_for(slot& s) {
    s.blocks.push_back(engine_.take_block());
    return s.blocks.back();
  }

  // Messages between two ranks match in the order in which they are started, so the parcels of a
  // route are sent in their order, however they arrive.
  void move_on(std::size_t l) {
    const std::vector<parcel>& parcels = parcels_[at(routes_[l].owner)];
    lane& way = lanes_[l];
    for (;;) {
      while (way.next < parcels.size() && way.active < engine_.options().parcels_ahead) {
        ++way.active;
        way.unsent.push_back(open(l, parcels[way.next++]));
      }
      if (way.unsent.empty() || !process(way.unsent.front())) return;
      way.unsent.pop_front();
    }
  }

  // Starts what a parcel needs from other ranks.
  std::size_t open(std::size_t l, const parcel& p) {
    if (free_slots_.empty()) {
      free_slots_.push_back(slots_.size());
      slots_.emplace_back();
    }
    const std::size_t i = free_slots_.back();
    free_slots_.pop_back();
    slot& s = slots_[i];
    const route& r = routes_[l];
    s.holds_input = reads_input(r);
    s.holds_output = r.keep;
    s.lane = l;
    s.what = &p;
    s.added = 0;
    s.sum = nullptr;
    s.arrived.assign(r.terms.size(), false);
    s.messages.assign(r.terms.size(), nullptr);
    const index_t bytes =
        p.count * (r.receives_sum ? what_.arithmetic.sum_size : what_.arithmetic.term_size);
    for (std::size_t t = 0; t < r.terms.size(); ++t) {
      if (own(r.terms[t])) {
        s.arrived[t] = true;
        continue;
      }
      // The first term is where the sum grows.
      const bool direct = t == 0 && in_place(r, p) && (r.receives_sum || what_.arithmetic.same);
      s.messages[t] = direct ? output(p.stretches[0].out) : block_for(s);
      engine_.receive(group_, s.messages[t], bytes, r.terms[t],
                      first_tag_ + 1 + 2 * r.owner + r.receive_leg, {this, i, static_cast<int>(t)});
    }
    return i;
  }

  // Adds what has arrived, in order; when all has, keeps the result and sends it on. Whether that
  // is done.
  bool process(std::size_t i) {
    slot& s = slots_[i];
    const route& r = routes_[s.lane];
    if (passes(r)) {
      if (s.arrived[0]) pass_on(i);
      return s.arrived[0];
    }
    for (; s.added < r.terms.size() && s.arrived[s.added]; ++s.added) add_term(s, r, s.added);
    if (s.added < r.terms.size()) return false;
    if (r.keep) keep(s, s.sum);
    s.holds_input = false;
    s.holds_output = s.holds_output && in_place(r, *s.what);
    send(i, s.sum, what_.arithmetic.sum_size);
    return true;
  }

  void add_term(slot& s, const route& r, std::size_t t) {
    const message_arithmetic& a = what_.arithmetic;
    if (t == 0) {
      if (s.messages[0] != nullptr && (r.receives_sum || a.same)) {
        s.sum = s.messages[0];
        return;
      }
      s.sum = in_place(r, *s.what) ? output(s.what->stretches[0].out) : block_for(s);
    }
    const auto combine = t == 0 ? a.begin : a.add;
    if (s.messages[t] != nullptr) {
      combine(s.messages[t], s.sum, s.what->count);
      return;
    }
    std::byte* sum = s.sum;
    for (const parcel::stretch& part : s.what->stretches) {
      combine(input(part.in), sum, part.count);
      sum += part.count * a.sum_size;
    }
  }

  // A term as it is: from this rank's input, or from a message.
  void pass_on(std::size_t i) {
    slot& s = slots_[i];
    const route& r = routes_[s.lane];
    const message_arithmetic& a = what_.arithmetic;
    if (s.messages[0] != nullptr) {
      if (r.keep) keep(s, s.messages[0]);
      s.holds_output = s.holds_output && in_place(r, *s.what);
      send(i, s.messages[0], r.receives_sum ? a.sum_size : a.term_size);
      return;
    }
    const std::vector<parcel::stretch>& parts = s.what->stretches;
    if (r.keep) {
      for (const parcel::stretch& part : parts) {
        a.put(input(part.in), output(part.out), part.count, what_.into);
      }
      s.holds_output = false;
    }
    const std::byte* data = input(parts[0].in);
    if (parts.size() > 1 && !r.to.empty()) {
      std::byte* end = block_for(s);
      data = end;
      for (const parcel::stretch& part : parts) {
        end = std::copy_n(input(part.in), part.count * a.term_size, end);
      }
      s.holds_input = false;
    }
    send(i, data, a.term_size);
  }

  void keep(const slot& s, const std::byte* sum) {
    for (const parcel::stretch& part : s.what->stretches) {
      if (sum != output(part.out))
        what_.arithmetic.put(sum, output(part.out), part.count, what_.into);
      sum += part.count * what_.arithmetic.sum_size;
    }
  }

  void send(std::size_t i, const std::byte* data, index_t element_size) {
    slot& s = slots_[i];
    const route& r = routes_[s.lane];
    if (!s.holds_input && reads_input(r)) --input_pending_;
    if (!s.holds_output && r.keep) --output_pending_;
    const index_t bytes = s.what->count * element_size;
    s.sends = static_cast<int>(r.to.size());
    for (const int to : r.to) {
      engine_.send(group_, data, bytes, to, first_tag_ + 1 + 2 * r.owner + r.send_leg,
                   {this, i, sent});
      group_.bytes_sent += bytes;
    }
    if (r.to.empty()) finish(i);
  }

  void finish(std::size_t i) {
    slot& s = slots_[i];
    for (std::byte* memory : s.blocks) engine_.give_block(memory);
    s.blocks.clear();
    free_slots_.push_back(i);
    if (s.holds_input) --input_pending_;
    if (s.holds_output) --output_pending_;
    --pending_;
    --lanes_[s.lane].active;
  }

  // Tags are free again when all operations before are over, too.
  void retire() {
    if (pending_ > 0) return;
    const auto oldest = group_.started - std::ssize(group_.over);
    group_.over[static_cast<std::size_t>(number_ - oldest)] = true;
    while (!group_.over.empty() && group_.over.front()) group_.over.pop_front();
  }

  [[noreturn]] void disagree() {
    const int ranks = group_.wire.size();
    const int rank = group_.wire.rank();
    const int other = group_.world_rank((rank + ranks - 1) % ranks);
    if (header_.differs_in_options(other_header_)) {
      throw collective_error(describe(fmt::format(
          "uses other message_options, or another net, than rank {}; they must be equal", other)));
    }
    throw collective_error(fmt::format(
        "collective {} differs between ranks: {}, {}; all ranks must make the same calls in the "
        "same order",
        number_, other_header_.text(other), header_.text(group_.world_rank(rank))));
  }

  engine& engine_;
  group& group_;
  const std::string label_;
  description what_;
  std::int64_t number_ = 0;
  std::int64_t first_tag_ = 0;
  operation_header header_;
  operation_header other_header_;
  std::vector<route> routes_;
  std::vector<std::vector<parcel>> parcels_;  // by owner
  std::vector<lane> lanes_;                   // by route
  std::deque<slot> slots_;
  std::vector<std::size_t> free_slots_;
  std::int64_t output_pending_ = 0;  // parcels that still need the output
  std::int64_t input_pending_ = 0;
  std::int64_t pending_ = 0;  // parcels, and the header's two messages
  bool stopped_ = false;
};

}  // namespace mfsdp::inline MFSDP_ABI::detail
