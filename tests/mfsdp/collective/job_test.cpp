#include "mfsdp/collective/job.hpp"

#include <doctest/doctest.h>

#include <map>
#include <optional>
#include <string>

namespace job_test {

using namespace mfsdp;

namespace {

job job_of(const std::map<std::string, std::string>& variables) {
  return job_from_environment([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

std::string refusal_of(const std::map<std::string, std::string>& variables) {
  try {
    (void)job_of(variables);
  } catch (const spec_error& e) {
    return e.what();
  }
  return {};
}

const std::map<std::string, std::string> torchrun{
    {"RANK", "5"},         {"WORLD_SIZE", "8"},      {"LOCAL_RANK", "1"},
    {"MASTER_ADDR", "n0"}, {"MASTER_PORT", "29500"}, {"TORCHELASTIC_RUN_ID", "run"}};
const std::map<std::string, std::string> slurm{
    {"SLURM_PROCID", "3"},  {"SLURM_NTASKS", "4"},
    {"SLURM_LOCALID", "1"}, {"SLURM_JOB_ID", "70123"},
    {"SLURM_STEP_ID", "2"}, {"SLURM_JOB_NODELIST", "gpu[003-007,12],cpu1"}};

std::map<std::string, std::string> with(std::map<std::string, std::string> variables,
                                        const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}
std::map<std::string, std::string> without(std::map<std::string, std::string> variables,
                                           const std::string& name) {
  variables.erase(name);
  return variables;
}

}  // namespace

TEST_CASE("what torchrun says") {
  const job here = job_of(torchrun);
  CHECK(here.rank == 5);
  CHECK(here.size == 8);
  CHECK(here.local_rank == 1);
  CHECK(here.host == "n0");
  CHECK(here.port == 29501);
  CHECK(here.id == "run");
  CHECK(job_of(with(torchrun, "MFSDP_RENDEZVOUS_PORT", "7000")).port == 7000);
  CHECK(job_of(without(with(torchrun, "MFSDP_RENDEZVOUS_PORT", "7000"), "MASTER_PORT")).port ==
        7000);
}

TEST_CASE("what Slurm says") {
  const job here = job_of(slurm);
  CHECK(here.rank == 3);
  CHECK(here.size == 4);
  CHECK(here.local_rank == 1);
  CHECK(here.host == "gpu003");
  CHECK(here.port == 30123);
  CHECK(here.id == "70123.2");
  CHECK(job_of(with(slurm, "MASTER_ADDR", "elsewhere")).host == "elsewhere");
  CHECK(job_of(with(slurm, "MFSDP_RENDEZVOUS_PORT", "7000")).port == 7000);
}

TEST_CASE("the first machine of Slurm's lists") {
  CHECK(detail::first_host("a") == "a");
  CHECK(detail::first_host("a,b") == "a");
  CHECK(detail::first_host("a[1-3]") == "a1");
  CHECK(detail::first_host("a[07,09]") == "a07");
  CHECK(detail::first_host("a-b[2-3],c") == "a-b2");
  CHECK(detail::first_host("rack[1-2]-ib,x") == "rack1-ib");
}

TEST_CASE("a variable that is missing or wrong is named, with what it is for") {
  CHECK(refusal_of({}).find("torchrun") != std::string::npos);
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    CAPTURE(name);
    CHECK(refusal_of(without(torchrun, name))
              .find("the variable " + std::string(name) + " is missing: ") == 0);
  }
  for (const char* name : {"SLURM_NTASKS", "SLURM_LOCALID", "SLURM_JOB_NODELIST", "SLURM_JOB_ID"}) {
    CAPTURE(name);
    CHECK(refusal_of(without(slurm, name))
              .find("the variable " + std::string(name) + " is missing: ") == 0);
  }
  CHECK(refusal_of(with(torchrun, "RANK", "5x")).find("the variable RANK is '5x'") == 0);
  CHECK(refusal_of(with(torchrun, "MASTER_PORT", "99999")).find("MASTER_PORT") !=
        std::string::npos);
  CHECK(refusal_of(with(torchrun, "RANK", "8")).find("rank 8 of 8") != std::string::npos);
}

}  // namespace job_test
