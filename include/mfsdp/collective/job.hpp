// job: which rank of which job a process is, as its launcher tells in variables.
#pragma once

#include <charconv>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI {

// A process of a job. Ranks meet at `host`:`port`, where rank 0 listens.
struct job {
  int rank = 0;
  int size = 1;
  int local_rank = 0;              // among the processes of its machine
  std::string host = "127.0.0.1";  // a name or an address of rank 0's machine
  int port = 0;
  std::string id{};  // equal in all processes of a job; strangers have another one
};

namespace detail {

using environment = std::function<std::optional<std::string>(const char* name)>;

[[nodiscard]] inline std::optional<std::string> variable_of_process(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

[[nodiscard]] inline std::string needed_variable(const environment& get, const char* name,
                                                 std::string_view purpose) {
  if (auto value = get(name)) return *std::move(value);
  throw spec_error(fmt::format("the variable {} is missing: {}", name, purpose));
}

[[nodiscard]] inline int number_in_variable(const char* name, std::string_view text, int lowest,
                                            int highest) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < lowest ||
      value > highest) {
    throw spec_error(fmt::format("the variable {} is '{}', it should be a number from {} to {}",
                                 name, text, lowest, highest));
  }
  return value;
}

// The first machine of a list as Slurm writes it: "gpu[003-007,12],cpu1" begins with gpu003.
[[nodiscard]] inline std::string first_host(std::string_view list) {
  const std::size_t end = list.find_first_of("[,");
  std::string host(list.substr(0, end));
  if (end != std::string_view::npos && list[end] == '[') {
    const std::size_t first = end + 1;
    host += list.substr(first, list.find_first_of("-,]", first) - first);
    const std::size_t closed = list.find(']', first);
    if (closed != std::string_view::npos) {
      const std::size_t next = list.find(',', closed);
      host += list.substr(closed + 1, next == std::string_view::npos ? next : next - closed - 1);
    }
  }
  return host;
}

// MFSDP_RENDEZVOUS_PORT, or else what `otherwise()` finds.
template <class Otherwise>
[[nodiscard]] int rendezvous_port(const environment& get, const Otherwise& otherwise) {
  const auto own = get("MFSDP_RENDEZVOUS_PORT");
  return own ? number_in_variable("MFSDP_RENDEZVOUS_PORT", *own, 1, 65535) : otherwise();
}

}  // namespace detail

// What torchrun (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT) or Slurm (SLURM_PROCID,
// SLURM_NTASKS, SLURM_LOCALID, SLURM_STEP_NODELIST or SLURM_JOB_NODELIST) says. The port is
// MFSDP_RENDEZVOUS_PORT, or MASTER_PORT + 1, since the agent of torchrun may have MASTER_PORT
// itself; without both, one that follows from SLURM_JOB_ID. MASTER_ADDR has precedence over Slurm's
// list. Errors: spec_error that names the variable.
[[nodiscard]] inline job job_from_environment(
    const detail::environment& get = &detail::variable_of_process) {
  using detail::needed_variable;
  using detail::number_in_variable;
  constexpr int largest = 1 << 20;
  job here;
  const bool torchrun = get("RANK") || get("WORLD_SIZE");
  if (!torchrun && !get("SLURM_PROCID")) {
    throw spec_error(
        "no launcher has said which rank this process is: torchrun sets RANK, WORLD_SIZE, "
        "LOCAL_RANK, MASTER_ADDR and MASTER_PORT, srun SLURM_PROCID and others; start the program "
        "by one of them, or fill in a mfsdp::job");
  }
  const auto ask = [&](const char* name, std::string_view purpose, int lowest) {
    return number_in_variable(name, needed_variable(get, name, purpose), lowest, largest);
  };
  if (torchrun) {
    here.size = ask("WORLD_SIZE", "how many processes the job has", 1);
    here.rank = ask("RANK", "which of them this is, from 0", 0);
    here.local_rank = ask("LOCAL_RANK", "which process of its machine this is, for the device", 0);
    here.host = needed_variable(get, "MASTER_ADDR", "the machine of rank 0, where all ranks meet");
    here.id = get("TORCHELASTIC_RUN_ID").value_or("");
    here.port = detail::rendezvous_port(get, [&] {
      return number_in_variable(
                 "MASTER_PORT",
                 needed_variable(get, "MASTER_PORT",
                                 "ranks meet at the port after it; or set MFSDP_RENDEZVOUS_PORT"),
                 1, 65534) +
             1;
    });
  } else {
    here.size = ask("SLURM_NTASKS", "how many processes the job has", 1);
    here.rank = ask("SLURM_PROCID", "which of them this is, from 0", 0);
    here.local_rank =
        ask("SLURM_LOCALID", "which process of its machine this is, for the device", 0);
    if (const auto host = get("MASTER_ADDR")) {
      here.host = *host;
    } else if (const auto step = get("SLURM_STEP_NODELIST")) {
      here.host = detail::first_host(*step);
    } else {
      here.host = detail::first_host(
          needed_variable(get, "SLURM_JOB_NODELIST",
                          "its first machine is that of rank 0, where all ranks meet; or "
                          "set MASTER_ADDR"));
    }
    here.id = needed_variable(get, "SLURM_JOB_ID", "tells this job from others");
    here.port = detail::rendezvous_port(get, [&] {
      // Below the ports that systems hand out.
      return 20000 + number_in_variable("SLURM_JOB_ID", here.id, 0, 2147483647) % 12000;
    });
    here.id += "." + get("SLURM_STEP_ID").value_or("");
  }
  if (here.rank >= here.size) {
    throw spec_error(fmt::format("the launcher says that this is rank {} of {}: ranks count from 0",
                                 here.rank, here.size));
  }
  return here;
}

}  // namespace mfsdp::inline MFSDP_ABI
