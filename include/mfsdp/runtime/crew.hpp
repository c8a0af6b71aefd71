// Threads of one rank that share out independent updates.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "mfsdp/config.hpp"

namespace mfsdp::inline MFSDP_ABI {

// The calling thread and count - 1 others, which sleep between runs and never spin.
class crew {
 public:
  // Errors: std::system_error if a thread cannot be started.
  explicit crew(int count) {
    try {
      for (int w = 1; w < count; ++w) threads_.emplace_back([this, w] { serve(w); });
    } catch (...) {
      stop();
      throw;
    }
  }
  ~crew() { stop(); }
  crew(const crew&) = delete;
  crew& operator=(const crew&) = delete;

  [[nodiscard]] int count() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls task(i, member) for each i < tasks, member < count(), in any order and at the same time;
  // returns when all are done. Rethrows the first exception; tasks that had not begun are then left
  // out.
  void run(std::size_t tasks, const std::function<void(std::size_t, int)>& task) {
    {
      const std::lock_guard lock(mutex_);
      task_ = &task;
      tasks_ = tasks;
      next_ = 0;
      busy_ = static_cast<int>(threads_.size());
      ++round_;
    }
    begun_.notify_all();
    work(0);
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [this] { return busy_ == 0; });
    task_ = nullptr;
    if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  }

 private:
  void serve(int member) {
    for (std::size_t seen = 0;;) {
      {
        std::unique_lock lock(mutex_);
        begun_.wait(lock, [&] { return stopping_ || round_ != seen; });
        if (stopping_) return;
        seen = round_;
      }
      work(member);
      const std::lock_guard lock(mutex_);
      if (--busy_ == 0) ended_.notify_one();
    }
  }

  void work(int member) {
    for (std::size_t i = next_++; i < tasks_; i = next_++) {
      try {
        (*task_)(i, member);
      } catch (...) {
        next_ = tasks_;
        const std::lock_guard lock(mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    begun_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  std::mutex mutex_;
  std::condition_variable begun_;
  std::condition_variable ended_;
  const std::function<void(std::size_t, int)>* task_ = nullptr;
  std::size_t tasks_ = 0;
  std::atomic<std::size_t> next_{0};
  std::size_t round_ = 0;
  int busy_ = 0;
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace mfsdp::inline MFSDP_ABI
