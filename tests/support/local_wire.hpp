// A message wire between threads, for tests: messages match as MPI's do, and ranks can be cut off.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "mfsdp/collective/messages.hpp"

namespace mfsdp_test {

class post_office {
 public:
  // Messages up to this size are complete when they are sent, others when they are received.
  static constexpr std::size_t eager = 256;

  struct message {
    int group = 0;
    int from = 0;  // -1 in a receive: any
    int to = 0;
    std::int64_t tag = 0;
    std::vector<std::byte> copy{};  // of a small message
    const void* source = nullptr;
    void* target = nullptr;
    std::size_t bytes = 0;  // received, once it is done
    bool done = false;
    bool cut_off = false;  // larger than what it was received into
  };
  using handle = std::shared_ptr<message>;

  // A rank whose process is gone: nothing comes from it any more, nothing reaches it.
  void kill(int world_rank) {
    const std::unique_lock lock(mutex_);
    dead_.insert(world_rank);
  }
  [[nodiscard]] bool is_dead(int world_rank) {
    const std::unique_lock lock(mutex_);
    return dead_.contains(world_rank);
  }

  handle send(message m, int from_world, int to_world) {
    const std::unique_lock lock(mutex_);
    const auto h = std::make_shared<message>(std::move(m));
    if (h->bytes <= eager) {
      const auto* begin = static_cast<const std::byte*>(h->source);
      h->copy.assign(begin, begin + h->bytes);
      h->done = true;
    }
    if (dead_.contains(from_world) || dead_.contains(to_world)) return h;
    const auto receive =
        std::ranges::find_if(receives_, [&](const handle& r) { return matches(*r, *h); });
    if (receive == receives_.end()) {
      sends_.push_back(h);
    } else {
      deliver(*h, **receive);
      receives_.erase(receive);
    }
    return h;
  }

  handle receive(message m) {
    const std::unique_lock lock(mutex_);
    const auto h = std::make_shared<message>(std::move(m));
    const auto send =
        std::ranges::find_if(sends_, [&](const handle& s) { return matches(*h, *s); });
    if (send == sends_.end()) {
      receives_.push_back(h);
    } else {
      deliver(**send, *h);
      sends_.erase(send);
    }
    return h;
  }

  void poll(std::span<handle> handles, std::vector<mfsdp::message_completion>& done) {
    const std::unique_lock lock(mutex_);
    for (std::size_t i = 0; i < handles.size(); ++i) {
      const message& m = *handles[i];
      if (m.done) done.push_back({i, static_cast<std::int64_t>(m.bytes), m.cut_off});
    }
  }

  bool cancel(const handle& h) {
    const std::unique_lock lock(mutex_);
    std::erase(receives_, h);
    std::erase(sends_, h);
    return true;
  }

  // The name of a new group, whichever of its ranks asks first.
  int split(int group, int nth, int color) {
    const std::unique_lock lock(mutex_);
    ++arrived_[{group, nth}];
    const auto [place, fresh] = splits_.try_emplace({group, nth, color}, groups_ + 1);
    if (fresh) ++groups_;
    return place->second;
  }
  [[nodiscard]] int arrived(int group, int nth) {
    const std::unique_lock lock(mutex_);
    return arrived_[{group, nth}];
  }

 private:
  static bool matches(const message& receive, const message& send) {
    return receive.group == send.group && receive.to == send.to && receive.tag == send.tag &&
           (receive.from < 0 || receive.from == send.from);
  }
  static void deliver(message& send, message& receive) {
    receive.cut_off = send.bytes > receive.bytes;
    receive.bytes = std::min(send.bytes, receive.bytes);
    if (receive.bytes > 0) {
      std::memcpy(receive.target, send.copy.empty() ? send.source : send.copy.data(),
                  receive.bytes);
    }
    send.done = receive.done = true;
  }

  std::mutex mutex_;
  std::list<handle> sends_;
  std::list<handle> receives_;
  std::set<int> dead_;
  std::map<std::array<int, 3>, int> splits_;
  std::map<std::array<int, 2>, int> arrived_;
  int groups_ = 0;
};

class local_wire {
 public:
  struct handle {
    post_office::handle message{};
    post_office* office = nullptr;
  };

  local_wire(post_office& office, int rank, int size) : office_(&office), rank_(rank) {
    for (int r = 0; r < size; ++r) members_.push_back(r);
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(members_.size()); }
  [[nodiscard]] std::int64_t largest_tag() const { return 32767; }
  [[nodiscard]] bool one_node() const { return true; }

  handle send(const void* from, std::size_t bytes, int to, std::int64_t tag) {
    return {
        office_->send(
            {.group = group_, .from = rank_, .to = to, .tag = tag, .source = from, .bytes = bytes},
            world_rank(rank_), world_rank(to)),
        office_};
  }
  handle receive(void* to, std::size_t bytes, int from, std::int64_t tag) {
    return {
        office_->receive(
            {.group = group_, .from = from, .to = rank_, .tag = tag, .target = to, .bytes = bytes}),
        office_};
  }
  static void poll(std::span<handle> handles, std::vector<mfsdp::message_completion>& done) {
    if (handles.empty()) return;
    std::vector<post_office::handle> messages;
    for (const handle& h : handles) messages.push_back(h.message);
    handles[0].office->poll(messages, done);
  }
  static bool cancel(handle& h) { return h.office->cancel(h.message); }

  // Complete when all ranks of the group have come.
  struct splitting;
  [[nodiscard]] splitting begin_split(int color, std::span<const int> ranks);
  void free() {}

 private:
  [[nodiscard]] int world_rank(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  post_office* office_;
  int group_ = 0;
  int splits_ = 0;
  int rank_;
  std::vector<int> members_;
};

struct local_wire::splitting {
  local_wire part;
  int parent;
  int nth;
  int parent_size;

  std::optional<local_wire> take() {
    if (part.office_->arrived(parent, nth) < parent_size) return std::nullopt;
    return part;
  }
};

inline local_wire::splitting local_wire::begin_split(int color, std::span<const int> ranks) {
  local_wire part = *this;
  part.group_ = office_->split(group_, ++splits_, color);
  part.splits_ = 0;
  part.members_.clear();
  for (const int r : ranks) part.members_.push_back(world_rank(r));
  part.rank_ = static_cast<int>(std::ranges::find(ranks, rank_) - ranks.begin());
  return {part, group_, splits_, size()};
}

// Ranks as threads that send each other messages.
class message_world {
 public:
  explicit message_world(int ranks, mfsdp::message_options options = {})
      : ranks_(ranks), options_(std::move(options)) {}

  [[nodiscard]] int size() const { return ranks_; }

  // As a process would be killed: to be called by the rank itself, which then returns.
  void kill(int rank) { office_->kill(rank); }

  // What each rank's run threw, null for none.
  template <class Body>
  std::vector<std::exception_ptr> outcomes(const Body& body) {
    office_ = std::make_shared<post_office>();
    std::vector<std::exception_ptr> thrown(static_cast<std::size_t>(ranks_));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks_; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          mfsdp::message_collective<local_wire>(local_wire(*office_, rank, ranks_), options_)
              .run(body);
        } catch (...) {
          thrown[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    return thrown;
  }

  template <class Body>
  void run(const Body& body) {
    for (const std::exception_ptr& e : outcomes(body)) {
      if (e != nullptr) std::rethrow_exception(e);
    }
  }

 private:
  int ranks_;
  mfsdp::message_options options_;
  std::shared_ptr<post_office> office_;
};

}  // namespace mfsdp_test
