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
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
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

// A call of MPI under way that writes to a T. What does not end keeps its memory: MPI may still
// write there.
template <class T>
class mpi_result {
 public:
  T& value() { return state_->value; }
  MPI_Request* request() { return &state_->request; }

  mpi_result() = default;
  mpi_result(mpi_result&&) noexcept = default;
  mpi_result& operator=(mpi_result&&) noexcept = default;
  ~mpi_result() {
    if (state_ != nullptr && state_->request != MPI_REQUEST_NULL) (void)state_.release();
  }

  bool test() {
    int done = 0;
    check_mpi(MPI_Test(request(), &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }
  void wait(deadline until) {
    while (!test()) {
      if (std::chrono::steady_clock::now() > until) {
        throw collective_error("reached its deadline waiting for all ranks of the communicator");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

 private:
  struct state {
    T value{};
    MPI_Request request = MPI_REQUEST_NULL;
  };
  std::unique_ptr<state> state_ = std::make_unique<state>();
};

// For each rank of a communicator, the first rank on its node. Nodes are told apart by
// MPI_Get_processor_name.
[[nodiscard]] inline std::vector<int> first_ranks_of_nodes(MPI_Comm comm, deadline until) {
  char name[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  check_mpi(MPI_Get_processor_name(name, &length), "MPI_Get_processor_name");
  int size = 0;
  MPI_Comm_size(comm, &size);
  struct exchange {
    std::uint64_t own = 0;
    std::vector<std::uint64_t> all{};
  };
  mpi_result<exchange> nodes;
  nodes.value().own =
      std::hash<std::string_view>()(std::string_view(name, static_cast<std::size_t>(length)));
  nodes.value().all.resize(static_cast<std::size_t>(size));
  check_mpi(MPI_Iallgather(&nodes.value().own, 1, MPI_UINT64_T, nodes.value().all.data(), 1,
                           MPI_UINT64_T, comm, nodes.request()),
            "MPI_Iallgather");
  nodes.wait(until);
  std::vector<int> firsts;
  for (const std::uint64_t node : nodes.value().all) {
    firsts.push_back(
        static_cast<int>(std::ranges::find(nodes.value().all, node) - nodes.value().all.begin()));
  }
  return firsts;
}

// Errors: spec_error.
inline void require_mpi_threads() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (initialized == 0 || finalized != 0) {
    throw spec_error(
        "MPI is not initialized, or finalized already; an mpi_world initializes it once, for one "
        "world that lives as long as it is needed");
  }
  int provided = MPI_THREAD_SINGLE;
  MPI_Query_thread(&provided);
  if (provided < MPI_THREAD_MULTIPLE) {
    throw spec_error(
        "this MPI runs without MPI_THREAD_MULTIPLE, which the thread that moves transfers along "
        "needs; who initializes it asks MPI_Init_thread for it, and the library must have it");
  }
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
    detail::require_mpi_threads();
    const deadline until = std::chrono::steady_clock::now() + timeout;
    detail::mpi_result<MPI_Comm> duplicate;
    detail::check_mpi(MPI_Comm_idup(of, &duplicate.value(), duplicate.request()), "MPI_Comm_idup");
    duplicate.wait(until);
    comm_ = duplicate.value();
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    nodes_ = detail::first_ranks_of_nodes(comm_, until);
    ranks_.resize(nodes_.size());
    std::iota(ranks_.begin(), ranks_.end(), 0);
    int* largest = nullptr;
    int found = 0;
    MPI_Comm_get_attr(comm_, MPI_TAG_UB, &largest, &found);
    if (found != 0) largest_tag_ = *largest;
  }

  [[nodiscard]] int rank() const { return rank_; }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] std::int64_t largest_tag() const { return largest_tag_; }
  [[nodiscard]] bool one_node() const {
    return std::ranges::all_of(ranks_, [&](int r) { return node_of(r) == node_of(ranks_[0]); });
  }

  handle send(const void* from, std::size_t bytes, int to, std::int64_t tag) {
    handle h = MPI_REQUEST_NULL;
    detail::check_mpi(MPI_Isend(from, static_cast<int>(bytes), MPI_BYTE, in_comm(to),
                                static_cast<int>(tag), comm_, &h),
                      "MPI_Isend");
    return h;
  }
  handle receive(void* to, std::size_t bytes, int from, std::int64_t tag) {
    handle h = MPI_REQUEST_NULL;
    detail::check_mpi(
        MPI_Irecv(to, static_cast<int>(bytes), MPI_BYTE, from < 0 ? MPI_ANY_SOURCE : in_comm(from),
                  static_cast<int>(tag), comm_, &h),
        "MPI_Irecv");
    return h;
  }

  static void poll(std::span<handle> handles, std::vector<message_completion>& done) {
    thread_local std::vector<int> positions;
    thread_local std::vector<MPI_Status> statuses;
    positions.resize(handles.size());
    statuses.resize(handles.size());
    int count = 0;
    const int code = MPI_Testsome(static_cast<int>(handles.size()), handles.data(), &count,
                                  positions.data(), statuses.data());
    if (code != MPI_ERR_IN_STATUS) detail::check_mpi(code, "MPI_Testsome");
    for (int i = 0; i < count; ++i) {  // MPI_UNDEFINED is negative
      const MPI_Status& status = statuses[static_cast<std::size_t>(i)];
      int bytes = 0;
      MPI_Get_count(&status, MPI_BYTE, &bytes);
      done.push_back({static_cast<std::size_t>(positions[static_cast<std::size_t>(i)]), bytes,
                      code == MPI_ERR_IN_STATUS && status.MPI_ERROR != MPI_SUCCESS &&
                          status.MPI_ERROR != MPI_ERR_PENDING});
    }
  }

  static bool cancel(handle& h) {
    if (h == MPI_REQUEST_NULL) return true;
    detail::check_mpi(MPI_Cancel(&h), "MPI_Cancel");
    int done = 0;
    detail::check_mpi(MPI_Test(&h, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  }

  class splitting;
  [[nodiscard]] splitting begin_split(int color, std::span<const int> ranks);

  void free() { MPI_Comm_free(&comm_); }

 private:
  [[nodiscard]] int in_comm(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int node_of(int rank_in_comm) const {
    return nodes_[static_cast<std::size_t>(rank_in_comm)];
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  std::vector<int> ranks_;  // of this group, in comm_
  std::vector<int> nodes_;  // of all ranks of comm_
  std::int64_t largest_tag_ = 32767;
};

// One duplicate serves the groups of all colors.
class mpi_communicator::splitting {
 public:
  std::optional<mpi_communicator> take() {
    if (!duplicate_.test()) return std::nullopt;
    part_.comm_ = duplicate_.value();
    MPI_Comm_set_errhandler(part_.comm_, MPI_ERRORS_RETURN);
    return part_;
  }

 private:
  friend class mpi_communicator;
  splitting(const mpi_communicator& of, std::span<const int> ranks) : part_(of) {
    part_.ranks_.clear();
    for (const int r : ranks) part_.ranks_.push_back(of.in_comm(r));
    part_.rank_ = static_cast<int>(std::ranges::find(ranks, of.rank_) - ranks.begin());
    detail::check_mpi(MPI_Comm_idup(of.comm_, &duplicate_.value(), duplicate_.request()),
                      "MPI_Comm_idup");
  }

  detail::mpi_result<MPI_Comm> duplicate_;
  mpi_communicator part_;
};

inline mpi_communicator::splitting mpi_communicator::begin_split(int, std::span<const int> ranks) {
  return {*this, ranks};
}

// Any number of these may be used at a time; each is one more duplicate and one more thread.
//   mpi_collective comm{mpi_communicator{MPI_COMM_WORLD}};
using mpi_collective = message_collective<mpi_communicator>;

// The ranks of a job. Initializes MPI if nobody has, and then finalizes it at the end.
//
// A failure of a rank becomes an exception on all of them, but nothing can take back messages that
// are under way: MPI is not finalized then, and the process ends with EXIT_FAILURE, whatever main
// returns. Catch what run rethrows: an uncaught exception skips even that.
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
    look_around();
  }
  // Over a caller's communicator, which outlives this world.
  explicit mpi_world(MPI_Comm of, message_options options = {})
      : options_(std::move(options)), of_(of) {
    look_around();
  }
  mpi_world(const mpi_world&) = delete;
  mpi_world& operator=(const mpi_world&) = delete;

  ~mpi_world() {
    // While an exception passes, other ranks may not come to the end.
    if (std::uncaught_exceptions() > exceptions_) failure() = true;
    if (finalizes_ && !failed()) MPI_Finalize();
  }

  // Whether a rank has failed in a world of this process. Then MPI must not be finalized, since
  // that may wait for ever: end the process, or call MPI_Abort.
  [[nodiscard]] static bool failed() { return failure(); }

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
      failure() = true;
      throw;
    }
  }

 private:
  static std::atomic<bool>& failure() {
    static std::atomic<bool> value = false;
    return value;
  }

  // A launcher ends the other ranks as soon as one has ended badly: they have a moment to say what
  // they know.
  static void end_process() {
    if (!failed()) return;
    std::cout.flush();
    std::fflush(nullptr);
    std::this_thread::sleep_for(std::chrono::seconds(2));
    std::_Exit(EXIT_FAILURE);
  }

  void look_around() {
    detail::require_mpi_threads();
    std::atexit(&end_process);
    MPI_Comm_rank(of_, &rank_);
    const std::vector<int> firsts =
        detail::first_ranks_of_nodes(of_, std::chrono::steady_clock::now() + options_.timeout);
    size_ = static_cast<int>(firsts.size());
    const auto mine = firsts.begin() + rank_;
    local_rank_ = static_cast<int>(std::count(firsts.begin(), mine, *mine));
    node_ = 0;  // nodes are numbered by their first ranks
    for (int rank = 0; rank < *mine; ++rank) {
      node_ += firsts[static_cast<std::size_t>(rank)] == rank ? 1 : 0;
    }
  }

  message_options options_;
  MPI_Comm of_ = MPI_COMM_WORLD;
  bool finalizes_ = false;
  int rank_ = 0;
  int size_ = 1;
  int node_ = 0;
  int local_rank_ = 0;
  int exceptions_ = std::uncaught_exceptions();
};

}  // namespace mfsdp::inline MFSDP_ABI
