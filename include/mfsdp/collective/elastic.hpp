// elastic_world: members as threads of one process that may vanish, and be followed by others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "mfsdp/collective/elastic_collective.hpp"

namespace mfsdp::inline MFSDP_ABI {

struct elastic_options {
  // How many members run() starts, on the first seats; 0: one on each.
  int founders = 0;
  // How long the members that have come to an operation wait for the others, from the first of
  // them on. Well above what members differ in speed, and below the timeout of the model.
  std::chrono::milliseconds round_timeout = std::chrono::seconds(10);
};

// A member whose function threw.
struct member_failure {
  int seat = 0;
  std::string what;
};

// Runs one function on every member, and on those that join.
class elastic_world {
 public:
  // Errors: spec_error unless seats and the timeout are positive and there are seats for the
  // founders.
  explicit elastic_world(int seats, elastic_options options = {})
      : seats_(seats), options_(options) {
    if (seats < 1) {
      throw spec_error(fmt::format("elastic_world: {} seats; give it at least one", seats));
    }
    if (options.founders < 0 || options.founders > seats) {
      throw spec_error(
          fmt::format("elastic_world: {} founders for {} seats; give it at most one a seat, or 0 "
                      "for one on each",
                      options.founders, seats));
    }
    if (options.round_timeout <= std::chrono::milliseconds::zero()) {
      throw spec_error(fmt::format("elastic_world: round_timeout is {} ms; it must be positive",
                                   options.round_timeout.count()));
    }
    if (options_.founders == 0) options_.founders = seats;
  }
  elastic_world(const elastic_world&) = delete;
  elastic_world& operator=(const elastic_world&) = delete;

  [[nodiscard]] int size() const { return seats_; }

  // Calls body(elastic_collective) for every founder, each in a thread of its own, and returns when
  // these and all that have joined since have ended, those that were dropped included. A member
  // whose body returns or throws leaves its seat, and the others go on at once. Returns who threw;
  // rethrows the first exception if nobody returned. Errors: usage_error while another run goes on.
  template <class Body>
  [[nodiscard]] std::vector<member_failure> run(Body&& body) {
    {
      const std::unique_lock guard(mutex_);
      if (board_ != nullptr) throw usage_error("run: this elastic_world runs already");
      board_ = std::make_shared<detail::elastic_board>(seats_, options_.round_timeout);
      returned_ = 0;
      failures_.clear();
      std::vector<detail::elastic_member> founders;
      for (int seat = 0; seat < options_.founders; ++seat) founders.push_back(board_->found(seat));
      for (const auto& founder : founders) {
        start(founder, [&body](elastic_collective self) { body(std::move(self)); });
      }
    }
    std::unique_lock guard(mutex_);
    ended_.wait(guard, [&] { return active_ == 0; });
    board_.reset();
    for (std::thread& thread : std::exchange(threads_, {})) thread.join();
    if (returned_ == 0) std::rethrow_exception(first_failure_);
    return std::exchange(failures_, {});
  }

  // Starts a member on the lowest free seat, one that was never taken or whose member has left or
  // was dropped, while run() goes on; returns the seat. May be called from any thread, from that of
  // a dropped member, say. The new one counts as soon as the others let it in:
  // sharded_model::join(). Errors: usage_error if all seats are taken or no member is left.
  template <class Body>
  int join(Body body) {
    const std::unique_lock guard(mutex_);
    if (board_ == nullptr) throw usage_error("join: this elastic_world does not run");
    const detail::elastic_member joiner = board_->take_seat();
    start(joiner, std::move(body));
    return joiner.seat;
  }

 private:
  // With the lock. A thread that cannot be started is a member that has failed.
  void start(detail::elastic_member member, std::function<void(elastic_collective)> body) {
    ++active_;
    try {
      threads_.emplace_back([this, board = board_, member, body = std::move(body)] {
        run_member(board, member, body);
      });
    } catch (const std::system_error& e) {
      board_->leave(member);
      end(member, std::current_exception(), e.what());
    }
  }

  void run_member(const std::shared_ptr<detail::elastic_board>& board,
                  const detail::elastic_member& member,
                  const std::function<void(elastic_collective)>& body) {
    std::exception_ptr thrown;
    std::string what;
    try {
      body(elastic_collective(board, member));
    } catch (const std::exception& e) {
      thrown = std::current_exception();
      what = e.what();
    } catch (...) {
      thrown = std::current_exception();
      what = "an exception of unknown type";
    }
    board->leave(member);
    const std::unique_lock guard(mutex_);
    end(member, std::move(thrown), std::move(what));
  }

  // With the lock.
  void end(const detail::elastic_member& member, std::exception_ptr thrown, std::string what) {
    if (thrown == nullptr) {
      ++returned_;
    } else {
      if (failures_.empty()) first_failure_ = std::move(thrown);
      failures_.push_back({member.seat, std::move(what)});
    }
    if (--active_ == 0) ended_.notify_all();
  }

  const int seats_;
  elastic_options options_;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::shared_ptr<detail::elastic_board> board_;  // while run() goes on
  std::vector<std::thread> threads_;
  int active_ = 0;
  int returned_ = 0;
  std::vector<member_failure> failures_;
  std::exception_ptr first_failure_;
};

}  // namespace mfsdp::inline MFSDP_ABI
