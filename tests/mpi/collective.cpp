// The conformance of mpi_collective; each process checks its own rank.
#include "conformance/collective.hpp"

#include <optional>

#include "mfsdp/collective/mpi.hpp"

namespace {

using mfsdp::travel;

// Small parcels, so that every operation has many.
void conform(std::optional<travel> gathers, std::optional<travel> sums, mfsdp::index_t bytes) {
  mfsdp::message_options options{.gathers = gathers, .sums = sums};
  if (bytes > 0) options.parcel_bytes = bytes;
  mfsdp::mpi_world world(MPI_COMM_WORLD, options);
  mfsdp_test::collective_conformance(world);
}

// MPI starts once in a process.
mfsdp::mpi_world job;

}  // namespace

TEST_CASE("the way that is chosen") {
  conform({}, {}, 0);
}
TEST_CASE("direct, in small parcels") {
  conform(travel::direct, travel::direct, 512);
}
TEST_CASE("by ring and chain") {
  conform(travel::ring, travel::chain, 0);
}
TEST_CASE("by ring and chain, in small parcels") {
  conform(travel::ring, travel::chain, 512);
}

TEST_CASE("groups") {
  mfsdp_test::split_conformance(job);
}
