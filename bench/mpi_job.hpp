// What the programs that mpirun launches share: options on all ranks, words from rank 0 only.
#pragma once

#include <CLI/CLI.hpp>
#include <exception>
#include <string>
#include <utility>

#include "mfsdp/collective/mpi.hpp"

// How the engine moves messages, instead of its own choice.
inline void add_message_options(CLI::App& app, mfsdp::message_options& options) {
  const auto named = [&app](const char* name, std::optional<mfsdp::travel>& chosen, auto ways,
                            const char* what) {
    app.add_option_function<std::string>(
           name,
           [&chosen](const std::string& way) {
             chosen = way == "direct"  ? mfsdp::travel::direct
                      : way == "chain" ? mfsdp::travel::chain
                                       : mfsdp::travel::ring;
           },
           what)
        ->check(CLI::IsMember(std::move(ways)));
  };
  named("--gathers", options.gathers, std::set<std::string>{"direct", "ring"},
        "how gathers travel; the engine chooses if not given");
  named("--sums", options.sums, std::set<std::string>{"direct", "chain", "ring"},
        "how sums travel");
  app.add_option("--parcel", options.parcel_bytes, "bytes of the largest message")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--ahead", options.parcels_ahead, "messages on each route at a time")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

// The main of such a program: body(world) if the command line is right. Only rank 0 answers --help.
template <class Body>
int run_job(CLI::App& app, int argc, char** argv, mfsdp::mpi_world& job, Body&& body) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return job.rank() == 0 ? app.exit(e) : e.get_exit_code();
  }
  try {
    body();
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}: rank {}: {}\n", app.get_name(), job.rank(), e.what());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  return 0;
}
