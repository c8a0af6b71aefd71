// Every placement with every rule over processes, and every rule between sites of owners.
#include "support/mixing.hpp"

#include "mfsdp/collective/mpi.hpp"

namespace {

mfsdp::mpi_world job({.timeout = std::chrono::seconds(60)});

}  // namespace

TEST_CASE("every legal cell trains as a plain loop does, bit for bit") {
  job.run([](auto comm) { mfsdp_test::check_every_cell(comm); });
}

TEST_CASE("sites of owners train as single workers do, bit for bit") {
  job.run([](auto comm) {
    const int first = comm.size() / 2;
    mfsdp_test::check_sites(comm, {first, comm.size() - first});
  });
}
