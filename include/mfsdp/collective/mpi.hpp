// mpi_world: ranks as processes, on one machine or on many. The only includer of mpi.h.
#pragma once

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "mfsdp/collective/messages.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

inline void check_mpi(int code, std::string_view call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw collective_error(fmt::format("{}: {}", call, std::string_view(text, std::size_t(length))));
}

}  // namespace detail

// A duplicate of a caller's communicator. The caller's own is neither kept nor freed.
// Errors: spec_error if MPI does not run or does not allow several threads; collective_error if a
// rank does not come before the timeout.
class mpi_communicator {
 public:
  using handle = MPI_Request;

  explicit mpi_communicator(MPI_Comm of,
                            std::chrono::milliseconds timeout = std::chrono::minutes(2)) {
    require_threads();
    MPI_Request request = MPI_REQUEST_NULL;
    detail::check_mpi(MPI_Comm_idup(of, &comm_, &request), "MPI_Comm_idup");
    const auto until = std::chrono::steady_clock::now() + timeout;
    for (int done = 0; done == 0;) {
      detail::check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      if (done != 0) break;
      if (std::chrono::steady_clock::now() > until) {
        throw collective_error("reached its deadline waiting for all ranks of the communicator");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    describe();
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  [[nodiscard]] std::int64_t tags() const { return tags_; }
  [[nodiscard]] bool one_node() const { return one_node_; }

  handle send(const void* from, std::size_t bytes, int to, std::int64_t tag) {
    handle h = MPI_REQUEST_NULL;
    detail::check_mpi(
        MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, to, static_cast<int>(tag), comm_, &h),
        "MPI_Isend");
    return h;
  }
  handle receive(void* to, std::size_t bytes, int from, std::int64_t tag) {
    handle h = MPI_REQUEST_NULL;
    detail::check_mpi(MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE,
                                from < 0 ? MPI_ANY_SOURCE : from, static_cast<int>(tag), comm_, &h),
                      "MPI_Irecv");
    return h;
  }

  static void poll(std::span<handle> handles, std::vector<std::size_t>& done) {
    thread_local std::vector<int> positions;
    positions.resize(handles.size());
    int count = 0;
    detail::check_mpi(MPI_Testsome(static_cast<int>(handles.size()), handles.data(), &count,
                                   positions.data(), MPI_STATUSES_IGNORE),
                      "MPI_Testsome");
    for (int i = 0; i < count; ++i) {  // MPI_UNDEFINED is negative
      done.push_back(static_cast<std::size_t>(positions[static_cast<std::size_t>(i)]));
    }
  }

  static bool cancel(handle& h) {
    if (h == MPI_REQUEST_NULL) return true;
    detail::check_mpi(MPI_Cancel(&h), "MPI_Cancel");
    int done = 0;
    detail::check_mpi(MPI_Test(&h, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }

  [[nodiscard]] mpi_communicator split(int color, std::span<const int>) {
    mpi_communicator part;
    detail::check_mpi(MPI_Comm_split(comm_, color, rank_, &part.comm_), "MPI_Comm_split");
    part.describe();
    return part;
  }

  void free() { MPI_Comm_free(&comm_); }

 private:
  mpi_communicator() = default;

  static void require_threads() {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized == 0) {
      throw spec_error("MPI is not initialized; call MPI_Init_thread, or use mpi_world");
    }
    int provided = MPI_THREAD_SINGLE;
    MPI_Query_thread(&provided);
    if (provided < MPI_THREAD_MULTIPLE) {
      throw spec_error(
          "MPI was initialized without MPI_THREAD_MULTIPLE, which the thread that moves transfers "
          "along needs; initialize it with MPI_Init_thread(..., MPI_THREAD_MULTIPLE, ...)");
    }
  }

  void describe() {
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    int* largest_tag = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comm_, MPI_TAG_UB, &largest_tag, &found);
    if (found != 0) tags_ = *largest_tag;
    MPI_Comm node = MPI_COMM_NULL;
    detail::check_mpi(MPI_Comm_split_type(comm_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
                      "MPI_Comm_split_type");
    int on_node = 0;
    MPI_Comm_size(node, &on_node);
    MPI_Comm_free(&node);
    one_node_ = on_node == size_;
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 1;
  std::int64_t tags_ = 32767;
  bool one_node_ = true;
};

// Any number of these may be used at a time; each is one more duplicate and one more thread.
//   mpi_collective comm{mpi_communicator{MPI_COMM_WORLD}};
using mpi_collective = message_collective<mpi_communicator>;

// The ranks of a job. Initializes MPI if nobody has, and then finalizes it at the end.
//
// A failure of a rank becomes an exception on all of them, but nothing can take back messages that
// are under way: MPI is not finalized then, and the process ends with a code that is not zero,
// whatever main returns.
class mpi_world {
 public:
  // Over all ranks. Errors: as mpi_communicator.
  explicit mpi_world(message_options options = {}) : options_(std::move(options)) {
    int initialized = 0;
    MPI_Initialized(&initialized);
    if (initialized == 0) {
      int provided = 0;
      detail::check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided),
                        "MPI_Init_thread");
      finalizes_ = true;
    }
    std::atexit(&end_process);
    look_around();
  }
  // Over a caller's communicator, which outlives this world.
  explicit mpi_world(MPI_Comm of, message_options options = {})
      : options_(std::move(options)), of_(of) {
    std::atexit(&end_process);
    look_around();
  }
  mpi_world(const mpi_world&) = delete;
  mpi_world& operator=(const mpi_world&) = delete;

  ~mpi_world() {
    if (finalizes_ && !failed()) MPI_Finalize();
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return size_; }
  // Ranks that share memory: which of these groups this is, and the position in it.
  [[nodiscard]] int node() const { return node_; }
  [[nodiscard]] int local_rank() const { return local_rank_; }

  // Calls body(mpi_collective) on every rank, and returns when all have ended. If a rank throws,
  // its exception leaves its own run; the others throw rank_failure out of their next or current
  // collective.
  template <class Body>
  void run(Body&& body) {
    try {
      mpi_collective(mpi_communicator(of_, options_.timeout), options_)
          .run(std::forward<Body>(body));
    } catch (...) {
      failed() = true;
      throw;
    }
  }

 private:
  static std::atomic<bool>& failed() {
    static std::atomic<bool> value = false;
    return value;
  }

  // A launcher ends the other ranks as soon as one has ended badly: they have a moment to say what
  // they know.
  static void end_process() {
    if (!failed()) return;
    std::cout.flush();
    std::fflush(nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    std::_Exit(EXIT_FAILURE);
  }

  void look_around() {
    MPI_Comm_rank(of_, &rank_);
    MPI_Comm_size(of_, &size_);
    MPI_Comm node = MPI_COMM_NULL;
    detail::check_mpi(MPI_Comm_split_type(of_, MPI_COMM_TYPE_SHARED, rank_, MPI_INFO_NULL, &node),
                      "MPI_Comm_split_type");
    MPI_Comm_rank(node, &local_rank_);
    int first = rank_;  // of this node
    MPI_Bcast(&first, 1, MPI_INT, 0, node);
    MPI_Comm_free(&node);
    std::vector<int> firsts(static_cast<std::size_t>(size_));
    MPI_Allgather(&first, 1, MPI_INT, firsts.data(), 1, MPI_INT, of_);
    std::ranges::sort(firsts);
    firsts.erase(std::ranges::unique(firsts).begin(), firsts.end());
    node_ = static_cast<int>(std::ranges::lower_bound(firsts, first) - firsts.begin());
  }

  message_options options_;
  MPI_Comm of_ = MPI_COMM_WORLD;
  bool finalizes_ = false;
  int rank_ = 0;
  int size_ = 1;
  int node_ = 0;
  int local_rank_ = 0;
};

}  // namespace mfsdp::inline MFSDP_ABI
