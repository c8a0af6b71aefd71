// Communicators, and the tasks that ranks bring to them. With the machine's lock held, like
// machine.hpp.
#pragma once

#include <nccl.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "emulation/machine.hpp"

namespace emulation {

enum class task_kind { broadcast, reduce, all_reduce, send, receive };

struct nccl_launch;

// One call of one rank.
struct nccl_task {
  task_kind kind{};
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t count = 0;
  ncclDataType_t type{};
  ncclRedOp_t sum = ncclSum;
  int peer = 0;  // or root
  bool done = false;
  nccl_launch* launch = nullptr;
  std::pair<int, int> pair{};  // of a message: sender and receiver
  std::size_t place = 0;       // among the collectives, or the messages of its pair

  [[nodiscard]] std::size_t bytes() const;
};

// What a group of calls is on one stream: it ends when all its tasks have met those of the others.
struct nccl_launch {
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  std::vector<std::unique_ptr<nccl_task>> tasks;
  std::uint64_t position = 0;  // among what the stream has issued
  vector_clock host;
  timeline begin;  // valid once started
  bool started = false;
  vector_clock joined;  // of those that its tasks have met
  double microseconds = 0;
};

// All that have come with one id.
struct clique {
  std::vector<ncclComm_t> ranks;                     // null: has not come
  std::vector<std::vector<nccl_task*>> collectives;  // by order, then rank
  std::map<std::pair<int, int>, std::vector<std::pair<nccl_task*, nccl_task*>>> messages;
  [[nodiscard]] bool complete() const;
};

}  // namespace emulation

struct ncclComm {
  int number = 0;
  bool destroyed = false;
  bool aborted = false;
  bool blocking = true;
  bool finalizing = false;
  int rank = 0;
  int device = 0;
  emulation::clique* all = nullptr;
  std::size_t collectives = 0;                                // brought so far
  std::map<std::pair<int, int>, std::size_t> sent, received;  // messages brought so far, by pair
  std::vector<std::shared_ptr<emulation::nccl_launch>> unqueued;  // until the program has asked
  long under_way = 0;                                             // launches that have not ended
  ncclResult_t failed = ncclSuccess;
  std::string last_error;
};

namespace emulation {

std::string describe(ncclComm_t);
std::string describe(const nccl_task&);

// A communicator that can be used now; reports otherwise.
ncclResult_t check(ncclComm_t);

// Brings a task to its communicator, inside a group or as a launch of its own.
ncclResult_t submit(ncclComm_t, cudaStream_t, nccl_task);

// Queues launches on their streams.
void queue_launches(ncclComm_t);

// Adds up `terms` in their order, each sum rounded to the type.
void reduce_in_order(const std::vector<const void*>& terms, std::size_t count, ncclDataType_t,
                     ncclRedOp_t, void* result);
std::size_t bytes_of(ncclDataType_t);  // 0: not emulated

// Groups of the calling thread.
struct nccl_group_calls {
  int depth = 0;
  ncclResult_t failed = ncclSuccess;
  std::vector<std::shared_ptr<nccl_launch>> launches;
};

struct nccl_state {
  objects<ncclComm> communicators;
  std::map<std::string, std::unique_ptr<clique>> cliques;  // by id; null: nobody has come
  std::vector<std::shared_ptr<nccl_launch>> launches;      // all, so that tasks stay
  std::map<std::thread::id, nccl_group_calls> groups;
  struct failure {
    int rank;
    ncclResult_t code;
    int after;
  };
  std::vector<failure> failures;
};
nccl_state& the_nccl();

}  // namespace emulation
