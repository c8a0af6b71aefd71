// Communicators of NCCL: how ranks meet, what state they are in, how they end. Groups of calls.
#include "emulation/communicators.hpp"

#include <cstring>

#include "emulation/nccl.hpp"

namespace emulation {

nccl_state& the_nccl() {
  static nccl_state& only = *[] {
    auto* made = new nccl_state;
    machine& m = the_machine();
    m.at_reset.push_back([made] { *made = {}; });
    m.leak_reports.push_back([made](std::vector<std::string>& found) {
      for (const auto& each : made->communicators) {
        if (!each->destroyed) found.push_back(fmt::format("leak: {}", describe(each.get())));
      }
      for (const auto& [thread, group] : made->groups) {
        if (group.depth > 0) found.push_back("leak: ncclGroupStart without ncclGroupEnd");
      }
    });
    return made;
  }();
  return only;
}

bool clique::complete() const {
  for (const ncclComm_t each : ranks) {
    if (each == nullptr) return false;
  }
  return true;
}

std::string describe(ncclComm_t comm) {
  return fmt::format("communicator {}, rank {} of {}", comm->number, comm->rank,
                     comm->all->ranks.size());
}

namespace {

// One that the program may ask or end.
ncclResult_t check_alive(ncclComm_t comm) {
  if (!the_nccl().communicators.knows(comm)) {
    return refuse(ncclInvalidArgument, "no communicator of this machine");
  }
  if (!comm->destroyed) return ncclSuccess;
  return refuse(ncclInvalidArgument, fmt::format("{} was {} before", describe(comm),
                                                 comm->aborted ? "aborted" : "destroyed"));
}

bool ended(ncclComm_t comm) {
  for (const auto& each : the_nccl().launches) {
    if (each->comm == comm && comm->under_way > 0) advance(each->stream, each->position);
  }
  return comm->under_way == 0;
}

// In progress, or what has become of what was in progress.
ncclResult_t state(ncclComm_t comm) {
  if (comm->failed != ncclSuccess) return comm->failed;
  if (!comm->all->complete()) return ncclInProgress;
  if (comm->finalizing && !ended(comm)) return ncclInProgress;
  return ncclSuccess;
}

template <class Body>
ncclResult_t nccl_call(const char* function, Body&& body) {
  return enter(function, ncclInvalidUsage, std::forward<Body>(body));
}

ncclResult_t join(std::unique_lock<std::mutex>& lock, ncclComm_t* result, int size,
                  const ncclUniqueId& id, int rank, bool blocking) {
  nccl_state& n = the_nccl();
  const auto found = n.cliques.find(std::string(id.internal, sizeof(id.internal)));
  if (found == n.cliques.end()) {
    return refuse(ncclInvalidArgument, "the id is not from ncclGetUniqueId");
  }
  if (size < 1 || rank < 0 || rank >= size) {
    return refuse(ncclInvalidArgument, fmt::format("rank {} of {}", rank, size));
  }
  if (n.groups[std::this_thread::get_id()].depth > 0) {
    return refuse(ncclInvalidUsage, "several ranks of one thread are not emulated");
  }
  if (!found->second) {
    found->second = std::make_unique<clique>();
    found->second->ranks.resize(static_cast<std::size_t>(size));
  }
  clique& all = *found->second;
  if (all.ranks.size() != static_cast<std::size_t>(size)) {
    return refuse(ncclInvalidUsage, fmt::format("rank {} expects {} ranks, another one {}", rank,
                                                size, all.ranks.size()));
  }
  ncclComm_t& place = all.ranks[static_cast<std::size_t>(rank)];
  if (place != nullptr) {
    return refuse(ncclInvalidUsage, fmt::format("rank {} has come with this id before", rank));
  }
  for (const ncclComm_t other : all.ranks) {
    if (other != nullptr && other->device == the_caller().device) {
      return refuse(ncclInvalidUsage, fmt::format("ranks {} and {} are both on device {}",
                                                  other->rank, rank, the_caller().device));
    }
  }
  const ncclComm_t comm = place = n.communicators.make();
  comm->number = n.communicators.size();
  comm->rank = rank;
  comm->device = the_caller().device;
  comm->blocking = blocking;
  comm->all = &all;
  *result = comm;
  if (!blocking) return state(comm);
  const auto come = [&] { return all.complete() || comm->aborted; };
  const auto missing = [&] {
    std::string ranks;
    for (std::size_t i = 0; i < all.ranks.size(); ++i) {
      if (all.ranks[i] == nullptr) ranks += fmt::format(" {}", i);
    }
    return fmt::format("{}: these ranks have not come:{}", describe(comm), ranks);
  };
  return await(lock, come, missing) ? ncclSuccess : ncclSystemError;
}

}  // namespace

ncclResult_t check(ncclComm_t comm) {
  if (const ncclResult_t code = check_alive(comm); code != ncclSuccess) return code;
  if (comm->failed != ncclSuccess) return comm->failed;
  if (!comm->all->complete() || !comm->unqueued.empty()) {
    return refuse(
        ncclInvalidArgument,
        fmt::format("{} is used before ncclCommGetAsyncError has said that the last call is "
                    "complete",
                    describe(comm)));
  }
  if (comm->finalizing) return refuse(ncclInvalidArgument, describe(comm) + " is being finalized");
  return ncclSuccess;
}

void fail_communicators(int rank, ncclResult_t code, int n) {
  const std::lock_guard guard(the_machine().lock);
  the_nccl().failures.push_back({rank, code, n});
}

}  // namespace emulation

// ------------------------------------------------------------------------------------ entry points

using namespace emulation;

const char* ncclGetErrorString(ncclResult_t code) {
  switch (code) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInternalError:
      return "internal error";
    case ncclInvalidArgument:
      return "invalid argument";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t comm) {
  const std::lock_guard guard(the_machine().lock);
  return the_nccl().communicators.knows(comm) ? comm->last_error.c_str() : "";
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return nccl_call("ncclGetUniqueId", [&](auto&) {
    *id = {};
    auto& cliques = the_nccl().cliques;
    fmt::format_to_n(id->internal, sizeof(id->internal) - 1, "emulated {}", cliques.size());
    cliques.emplace(std::string(id->internal, sizeof(id->internal)), nullptr);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRank(ncclComm_t* result, int size, ncclUniqueId id, int rank) {
  return nccl_call("ncclCommInitRank",
                   [&](auto& lock) { return join(lock, result, size, id, rank, true); });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* result, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return nccl_call("ncclCommInitRankConfig", [&](auto& lock) {
    const ncclConfig_t good = NCCL_CONFIG_INITIALIZER;
    if (config->magic != good.magic || config->size != good.size) {
      return refuse(ncclInvalidArgument, "the configuration was not initialised");
    }
    return join(lock, result, size, id, rank, config->blocking != 0);
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* code) {
  return nccl_call("ncclCommGetAsyncError", [&](auto&) {
    *code = ncclSuccess;
    if (const ncclResult_t alive = check_alive(comm); alive != ncclSuccess) return alive;
    nccl_state& n = the_nccl();
    for (nccl_state::failure& each : n.failures) {
      if (each.rank != comm->rank || --each.after > 0) continue;
      comm->failed = each.code;
      comm->last_error = "injected";
    }
    if (comm->failed == ncclSuccess) queue_launches(comm);
    *code = state(comm);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return nccl_call("ncclCommFinalize", [&](auto& lock) {
    if (const ncclResult_t code = check(comm); code != ncclSuccess) return code;
    comm->finalizing = true;
    if (!comm->blocking) return ncclInProgress;
    return await(
               lock, [&] { return ended(comm); }, [&] { return describe(comm) + " has work left"; })
               ? ncclSuccess
               : ncclSystemError;
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return nccl_call("ncclCommDestroy", [&](auto& lock) {
    if (const ncclResult_t code = check_alive(comm); code != ncclSuccess) return code;
    if (!comm->blocking && !(comm->finalizing && ended(comm))) {
      report(the_caller().function,
             describe(comm) + " does not block, and ncclCommFinalize was not complete");
    }
    const bool done =
        await(lock, [&] { return ended(comm); }, [&] { return describe(comm) + " has work left"; });
    comm->destroyed = true;
    return done ? ncclSuccess : ncclSystemError;
  });
}

// Ends its work wherever it is; that of other ranks goes on waiting.
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return nccl_call("ncclCommAbort", [&](auto&) {
    if (const ncclResult_t code = check_alive(comm); code != ncclSuccess) return code;
    comm->aborted = comm->destroyed = true;
    comm->unqueued.clear();
    return ncclSuccess;
  });
}

namespace {

ncclResult_t ask(const char* function, ncclComm_t comm, int* result, int (*of)(ncclComm_t)) {
  return nccl_call(function, [&](auto&) {
    const ncclResult_t code = check(comm);
    if (code == ncclSuccess) *result = of(comm);
    return code;
  });
}

}  // namespace

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return ask("ncclCommCount", comm, count,
             [](ncclComm_t c) { return static_cast<int>(c->all->ranks.size()); });
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return ask("ncclCommUserRank", comm, rank, [](ncclComm_t c) { return c->rank; });
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return ask("ncclCommCuDevice", comm, device, [](ncclComm_t c) { return c->device; });
}

ncclResult_t ncclGroupStart() {
  return nccl_call("ncclGroupStart", [](auto&) {
    ++the_nccl().groups[std::this_thread::get_id()].depth;
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupEnd() {
  return nccl_call("ncclGroupEnd", [](auto&) {
    nccl_group_calls& group = the_nccl().groups[std::this_thread::get_id()];
    if (group.depth == 0) return refuse(ncclInvalidUsage, "without ncclGroupStart");
    if (--group.depth > 0) return ncclSuccess;
    const auto launches = std::exchange(group.launches, {});
    if (const auto failed = std::exchange(group.failed, ncclSuccess); failed != ncclSuccess) {
      return failed;
    }
    if (!launches.empty()) ++the_machine().counts.nccl_groups;
    ncclResult_t result = ncclSuccess;
    for (const auto& each : launches) {
      each->comm->unqueued.push_back(each);
      if (each->comm->blocking) {
        queue_launches(each->comm);
      } else {
        result = ncclInProgress;
      }
    }
    return result;
  });
}
