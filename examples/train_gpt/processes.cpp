// Ranks as processes of an MPI job.
#include "engines.hpp"

#ifdef TRAIN_GPT_HAS_MPI

#include <memory>

#include "choices.hpp"
#include "mfsdp/collective/mpi.hpp"

namespace train_gpt {

engine processes() {
  const auto world = std::make_shared<mfsdp::mpi_world>();
  return {.ranks = world->size(),
          .process = world->rank(),
          .train = [world](const settings& how, const text& data, const progress& report) {
            return train<std::tuple<mfsdp::owner_placement>>(*world, how, data, report);
          }};
}

}  // namespace train_gpt

#else

#include <stdexcept>

namespace train_gpt {

engine processes() {
  throw std::runtime_error(
      "this build has no MPI; install one (Debian: libopenmpi-dev openmpi-bin), then configure "
      "with CMake and build again");
}

}  // namespace train_gpt

#endif
