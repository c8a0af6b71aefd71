// background_saver: copies, returns, and writes behind the training.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint/chunks.hpp"
#include "mfsdp/checkpoint/save.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Saves as mfsdp::save does, but in two parts. save() copies this rank's share to host memory and
// returns; a thread hashes, writes and syncs it. The checkpoint is complete, and has its name, only
// when poll() has returned its path, or wait(), or the next save() has returned. All of these are
// collective calls of all ranks of the site, in the trainer's thread; the errors of writing are
// theirs: checkpoint_error, the same on all ranks. The model must outlive what is pending. Cost:
// host memory for this rank's share while it is pending.
class background_saver {
 public:
  explicit background_saver(std::string root) : root_(std::move(root)) {}
  // Waits for the thread; what is pending is given up, since completing it takes all ranks.
  ~background_saver() { join(); }
  background_saver(const background_saver&) = delete;
  background_saver& operator=(const background_saver&) = delete;

  // Completes the former checkpoint if it is pending, as wait() does, and starts this one. Errors:
  // as mfsdp::save; those of the former one mean that this one has not begun.
  template <class Model>
  void save(Model& model, const save_options& options = {}) {
    const auto held = model.persistence();
    held.require_step_boundary("save");
    wait();
    auto fresh = std::make_unique<pending_save>(detail::set_up_writer(model), root_, options);
    const std::string fault = detail::fault_of([&] {
      detail::for_each_written(
          held, fresh->writer.share(),
          [&]<class T>(const held_part& part, std::span<const T> values) {
            copy& next = fresh->copies.emplace_back(copy{part, sizeof(T), values.size_bytes(), {}});
            next.bytes = std::make_unique_for_overwrite<std::byte[]>(next.size);
            held.read(values, std::span(reinterpret_cast<T*>(next.bytes.get()), values.size()));
          });
      pending_save& task = *fresh;
      thread_ = std::thread([&task] { task.write(); });
    });
    // Once the thread runs, it alone writes what it has met.
    if (!thread_.joinable()) fresh->fault = fault;
    pending_ = std::move(fresh);
  }

  // Completes the pending checkpoint if all ranks have written their shares, without waiting, and
  // returns its path; nothing if there is none or some rank still writes. Cost: one small gather
  // while one is pending.
  std::optional<std::string> poll() {
    if (!pending_) return std::nullopt;
    const bool done = !thread_.joinable() || pending_->done;
    const auto all = pending_->writer.gather({done ? std::uint64_t{1} : 0}, "poll of a save");
    if (std::ranges::find(all, std::uint64_t{0}) != all.end()) return std::nullopt;
    return wait();
  }

  // Waits for this rank's thread, then for the other ranks, and completes the pending checkpoint.
  std::optional<std::string> wait() {
    if (!pending_) return std::nullopt;
    join();
    const std::unique_ptr<pending_save> last = std::move(pending_);
    return last->writer.commit(last->fault);
  }

 private:
  struct copy {
    held_part part;
    std::size_t width;
    std::size_t size;
    std::unique_ptr<std::byte[]> bytes;
  };

  struct pending_save {
    pending_save(detail::writer_setup setup, const std::string& root, const save_options& options)
        : writer(std::move(setup), root, options) {}

    // On the thread.
    void write() {
      fault = detail::fault_of([&] {
        writer.unlink_earlier();
        detail::rank_share& share = writer.share();
        share.open(writer.partial());
        for (copy& each : copies) {
          const std::span<const std::byte> all(each.bytes.get(), each.size);
          const auto width = static_cast<index_t>(each.width);
          detail::for_each_chunk(std::ssize(all) / width, each.width,
                                 [&](index_t at, index_t count) {
                                   share.put(each.part.array, each.part.first + at,
                                             slice(all, at * width, count * width), each.width);
                                 });
          each.bytes.reset();
        }
        share.finish();
      });
      done = true;
    }

    detail::checkpoint_writer writer;
    std::vector<copy> copies{};
    std::string fault{};
    std::atomic<bool> done = false;
  };

  void join() {
    if (thread_.joinable()) thread_.join();
  }

  std::string root_;
  std::unique_ptr<pending_save> pending_;
  std::thread thread_;  // of what is pending
};

}  // namespace mfsdp::inline MFSDP_ABI
