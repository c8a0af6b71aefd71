// Collectives and messages of NCCL: a task is done when all ranks that it is for have come to it.
#include <algorithm>
#include <cstring>

#include "emulation/communicators.hpp"

namespace emulation {

std::size_t nccl_task::bytes() const {
  return count * bytes_of(type);
}

std::string describe(const nccl_task& task) {
  constexpr const char* names[] = {"ncclBroadcast", "ncclReduce", "ncclAllReduce", "ncclSend",
                                   "ncclRecv"};
  constexpr const char* roles[] = {", root", ", root", "", " to", " from"};
  const auto kind = static_cast<std::size_t>(task.kind);
  return fmt::format("{} of {} elements of type {}{}{}, by {} in {}", names[kind], task.count,
                     static_cast<int>(task.type), roles[kind],
                     task.kind == task_kind::all_reduce ? "" : fmt::format(" {}", task.peer),
                     describe(task.launch->comm), describe(task.launch->stream));
}

namespace {

bool is_message(const nccl_task& task) {
  return task.kind == task_kind::send || task.kind == task_kind::receive;
}

bool reads(const nccl_task& task) {
  const bool root = task.launch->comm->rank == task.peer;
  return task.kind == task_kind::broadcast ? root : task.kind != task_kind::receive;
}

bool writes(const nccl_task& task) {
  const bool root = task.launch->comm->rank == task.peer;
  return task.kind == task_kind::reduce ? root : task.kind != task_kind::send;
}

std::vector<access> accesses_of(const nccl_task& task) {
  std::vector<access> all;
  const bool sums = task.kind == task_kind::reduce || task.kind == task_kind::all_reduce;
  if (reads(task)) all.push_back({task.from, task.bytes(), sums ? use::read : use::read_any});
  if (writes(task)) all.push_back({task.to, task.bytes(), use::write});
  return all;
}

bool agree(const nccl_task& a, const nccl_task& b) {
  return a.kind == b.kind && a.count == b.count && a.type == b.type && a.peer == b.peer &&
         (a.kind == task_kind::broadcast || a.sum == b.sum);
}

// The tasks that this one is done with, by rank, or sender and receiver; null: has not come.
std::vector<nccl_task*> partners(const nccl_task& task) {
  clique& all = *task.launch->comm->all;
  if (!is_message(task)) return all.collectives[task.place];
  const auto& [send, receive] = all.messages[task.pair][task.place];
  return {send, receive};
}

// Enters a task at its place in the order of its communicator, and compares it with what the others
// have brought there. What does not match is reported once, and then done without moving anything.
void enter_order(nccl_task& task) {
  ncclComm& comm = *task.launch->comm;
  if (is_message(task)) {
    const bool sends = task.kind == task_kind::send;
    task.pair = sends ? std::pair(comm.rank, task.peer) : std::pair(task.peer, comm.rank);
    auto& messages = comm.all->messages[task.pair];
    const std::size_t place = task.place = (sends ? comm.sent : comm.received)[task.pair]++;
    if (place >= messages.size()) messages.resize(place + 1);
    auto& [send, receive] = messages[place];
    (sends ? send : receive) = &task;
    if (send == nullptr || receive == nullptr || send->bytes() == receive->bytes()) return;
    report(describe(*send), "does not match " + describe(*receive));
    send->done = receive->done = true;
    return;
  }
  const std::size_t place = task.place = comm.collectives++;
  auto& all = comm.all->collectives;
  if (place >= all.size()) all.resize(place + 1, std::vector<nccl_task*>(comm.all->ranks.size()));
  all[place][static_cast<std::size_t>(comm.rank)] = &task;
  for (nccl_task* const other : all[place]) {
    if (other == nullptr || other == &task || agree(*other, task)) continue;
    report(describe(task),
           fmt::format("does not match {} (collective {})", describe(*other), place));
    for (nccl_task* const each : all[place]) {
      if (each != nullptr) each->done = true;
    }
    return;
  }
}

using bytes = std::vector<char>;

bytes copy_of(const void* from, std::size_t size) {
  const char* const first = view(static_cast<const char*>(from));
  return bytes(first, first + size);
}

// The sum of a range of elements of all ranks, beginning after `last`.
void sum_after(std::size_t last, const std::vector<nccl_task*>& all, std::size_t first,
               std::size_t count, char* result) {
  const std::size_t element = bytes_of(all[0]->type);
  std::vector<const void*> terms;
  for (std::size_t i = 1; i <= all.size(); ++i) {
    const void* const from = view(all[(last + i) % all.size()]->from);
    terms.push_back(static_cast<const char*>(from) + first * element);
  }
  reduce_in_order(terms, count, all[0]->type, all[0]->sum, result);
}

void move_data(const std::vector<nccl_task*>& all) {
  const nccl_task& one = *all[0];
  const auto root = static_cast<std::size_t>(one.peer);
  switch (one.kind) {
    case task_kind::send:
      std::memmove(view(all[1]->to), view(one.from), one.bytes());
      break;
    case task_kind::broadcast: {
      const bytes data = copy_of(all[root]->from, one.bytes());
      for (nccl_task* const each : all) std::memcpy(view(each->to), data.data(), data.size());
      break;
    }
    case task_kind::reduce: {
      bytes sum(one.bytes());
      sum_after(root, all, 0, one.count, sum.data());
      std::memcpy(view(all[root]->to), sum.data(), sum.size());
      break;
    }
    case task_kind::all_reduce: {
      bytes sum(one.bytes());
      for (std::size_t part = 0; part < all.size();
           ++part) {  // each has its own way round the ring
        const std::size_t first = one.count * part / all.size();
        const std::size_t end = one.count * (part + 1) / all.size();
        sum_after(part, all, first, end - first, sum.data() + first * bytes_of(one.type));
      }
      for (nccl_task* const each : all) std::memcpy(view(each->to), sum.data(), sum.size());
      break;
    }
    case task_kind::receive:
      break;  // the sender does it
  }
}

bool touch_memory_of(const nccl_task& task) {
  operation what;
  what.name = shared_name(describe(task));
  what.device = task.launch->comm->device;
  what.accesses = accesses_of(task);
  return touch_memory(what, task.launch->begin);
}

// True if the task is done: all its partners have come, each to the head of its stream.
bool meet(nccl_task& task) {
  if (task.done) return true;
  const std::vector<nccl_task*> all = partners(task);
  for (const nccl_task* const each : all) {
    if (each == nullptr || each->launch->comm->aborted || each->launch->comm->failed) return false;
    if (!each->launch->started) advance(each->launch->stream, each->launch->position);
    if (task.done) return true;  // one of the others has done it meanwhile
    if (!each->launch->started) return false;
  }
  bool there = true;
  for (nccl_task* const each : all) there = touch_memory_of(*each) && there;
  if (there) move_data(all);
  for (nccl_task* const each : all) {
    each->done = true;
    for (const nccl_task* const other : all) {
      each->launch->joined.join(other->launch->begin.clock);
      each->launch->microseconds =
          std::max(each->launch->microseconds, other->launch->begin.microseconds);
    }
  }
  return true;
}

// At the head of its stream. True: it has ended.
bool progress(nccl_launch& launch) {
  if (!launch.started) {
    launch.started = true;
    launch.begin = launch.stream->line;
    launch.begin.clock.join(launch.host);
    launch.begin.clock.tick(launch.begin.lane, launch.begin.clock[launch.begin.lane] + 1);
  }
  if (launch.comm->aborted) return true;
  bool all = true;
  for (const auto& task : launch.tasks) all = meet(*task) && all;
  return all;
}

std::string names_of(const nccl_launch& launch) {
  std::string all = describe(*launch.tasks[0]);
  if (launch.tasks.size() > 1) all += fmt::format(", and {} more", launch.tasks.size() - 1);
  return all;
}

ncclResult_t check_operands(const nccl_task& task) {
  for (const access& each : accesses_of(task)) {
    const allocation* const a = find(each.address);
    if (a != nullptr && a->pinned) {
      return refuse(ncclInvalidArgument, "operands in pinned memory are not emulated: " + a->name);
    }
  }
  if (!emulation::check(the_caller().function, task.launch->comm->device, accesses_of(task))) {
    return ncclInvalidArgument;
  }
  const char* const from = static_cast<const char*>(task.from);
  const char* const to = static_cast<const char*>(task.to);
  if (reads(task) && writes(task) && from != to && from < to + task.bytes() &&
      to < from + task.bytes()) {
    return refuse(ncclInvalidArgument, "the buffers overlap, and are not the same");
  }
  return ncclSuccess;
}

}  // namespace

void queue_launches(ncclComm_t comm) {
  for (const auto& launch : std::exchange(comm->unqueued, {})) {
    for (const auto& task : launch->tasks) enter_order(*task);
    launch->host = the_machine().host;
    launch->position = launch->stream->issued + 1;
    the_nccl().launches.push_back(launch);
    ++comm->under_way;
    operation meeting;
    meeting.name = shared_name(names_of(*launch));
    meeting.ready = [launch] { return progress(*launch); };
    meeting.body = [launch](timeline& now) {
      now.clock.join(launch->joined);
      now.microseconds = std::max(now.microseconds, launch->microseconds);
      --launch->comm->under_way;
    };
    (void)issue(launch->stream, std::move(meeting));
  }
}

ncclResult_t submit(ncclComm_t comm, cudaStream_t stream, nccl_task task) {
  if (const ncclResult_t code = check(comm); code != ncclSuccess) return code;
  if (emulation::check(stream) != cudaSuccess) return ncclInvalidArgument;
  const int size = static_cast<int>(comm->all->ranks.size());
  if (task.peer < 0 || task.peer >= size) {
    return refuse(ncclInvalidArgument, fmt::format("rank {} of {}", task.peer, size));
  }
  if (stream->device != comm->device) {
    return refuse(ncclInvalidUsage, fmt::format("{} is of device {}, and it is to run in {}",
                                                describe(comm), comm->device, describe(stream)));
  }
  if (stream->captured) {
    invalidate(*stream->captured);
    return refuse(ncclInvalidUsage, "collectives in a graph are not emulated");
  }
  if (bytes_of(task.type) == 0 || task.sum < ncclSum || task.sum > ncclMin) {
    return refuse(ncclInvalidArgument,
                  fmt::format("type {} or operation {} is not emulated",
                              static_cast<int>(task.type), static_cast<int>(task.sum)));
  }
  ++the_machine().counts.nccl_calls;
  if (task.count == 0) return ncclSuccess;

  nccl_group_calls& group = the_nccl().groups[std::this_thread::get_id()];
  std::shared_ptr<nccl_launch> launch;
  for (const auto& each : group.launches) {
    if (each->comm == comm) launch = each;
  }
  if (!launch) {
    launch = std::make_shared<nccl_launch>();
    launch->comm = comm;
    launch->stream = stream;
  }
  if (launch->stream != stream) {
    return refuse(ncclInvalidUsage,
                  "several streams for one communicator in a group are not emulated");
  }
  task.launch = launch.get();
  if (const ncclResult_t code = check_operands(task); code != ncclSuccess) return code;
  const bool fresh = launch->tasks.empty();
  launch->tasks.push_back(std::make_unique<nccl_task>(task));
  if (group.depth > 0) {
    if (fresh) group.launches.push_back(launch);
    return ncclSuccess;
  }
  comm->unqueued.push_back(launch);
  if (!comm->blocking) return ncclInProgress;
  queue_launches(comm);
  return ncclSuccess;
}

namespace {

ncclResult_t task_call(const char* function, ncclComm_t comm, cudaStream_t stream,
                       const nccl_task& task) {
  const ncclResult_t code =
      enter(function, ncclInvalidUsage, [&](auto&) { return submit(comm, stream, task); });
  if (code == ncclSuccess || code == ncclInProgress) return code;
  const std::lock_guard guard(the_machine().lock);
  nccl_group_calls& group = the_nccl().groups[std::this_thread::get_id()];
  if (group.depth > 0 && group.failed == ncclSuccess) group.failed = code;
  return code;
}

}  // namespace

}  // namespace emulation

// ------------------------------------------------------------------------------------ entry points

using namespace emulation;

ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return task_call("ncclBroadcast", comm, stream,
                   {.kind = task_kind::broadcast,
                    .from = from,
                    .to = to,
                    .count = count,
                    .type = type,
                    .peer = root});
}

ncclResult_t ncclReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                        ncclRedOp_t sum, int root, ncclComm_t comm, cudaStream_t stream) {
  return task_call("ncclReduce", comm, stream,
                   {.kind = task_kind::reduce,
                    .from = from,
                    .to = to,
                    .count = count,
                    .type = type,
                    .sum = sum,
                    .peer = root});
}

ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                           ncclRedOp_t sum, ncclComm_t comm, cudaStream_t stream) {
  return task_call("ncclAllReduce", comm, stream,
                   {.kind = task_kind::all_reduce,
                    .from = from,
                    .to = to,
                    .count = count,
                    .type = type,
                    .sum = sum});
}

ncclResult_t ncclSend(const void* from, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return task_call(
      "ncclSend", comm, stream,
      {.kind = task_kind::send, .from = from, .count = count, .type = type, .peer = peer});
}

ncclResult_t ncclRecv(void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return task_call(
      "ncclRecv", comm, stream,
      {.kind = task_kind::receive, .to = to, .count = count, .type = type, .peer = peer});
}
