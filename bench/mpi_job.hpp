// What the programs that mpirun launches share: options on all ranks, words from rank 0 only.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <map>
#include <optional>
#include <string>

#include "mfsdp/collective/mpi.hpp"

// How the engine moves messages, instead of its own choice.
inline void add_message_options(CLI::App& app, mfsdp::message_options& options) {
  using mfsdp::travel;
  using names = std::map<std::string, travel>;
  const auto add = [&app](const char* option, std::optional<travel>& chosen, const names& ways,
                          const char* what) {
    app.add_option_function<std::string>(
           option, [&chosen, ways](const std::string& way) { chosen = ways.at(way); }, what)
        ->check(CLI::IsMember(ways));
  };
  add("--gathers", options.gathers, {{"direct", travel::direct}, {"ring", travel::ring}},
      "how gathers travel; the engine chooses if not given");
  add("--sums", options.sums,
      {{"direct", travel::direct}, {"chain", travel::chain}, {"ring", travel::ring}},
      "how sums travel");
  app.add_option("--parcel", options.parcel_bytes, "bytes of the largest message")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--ahead", options.parcels_ahead, "messages on each route at a time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

// The main of such a program: body() if the command line is right; rank 0 says what is not. An
// exception ends the whole job, since the other ranks may wait in calls that have no deadline.
template <class Body>
int run_job(CLI::App& app, int argc, char** argv, const mfsdp::mpi_world& job, Body&& body) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return job.rank() == 0 ? app.exit(e) : e.get_exit_code();
  }
  try {
    body();
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}: rank {}: {}\n", app.get_name(), job.rank(), e.what());
    std::fflush(stderr);
    MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
  }
  return 0;
}
