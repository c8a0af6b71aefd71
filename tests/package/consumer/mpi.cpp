// [begin program]
#include <cstdio>
#include <mfsdp/collective/mpi.hpp>
#include <mfsdp/mfsdp.hpp>

int main() {
  try {
    mfsdp::model_spec spec;
    spec.unit("block").matrix("up", 64, 16).matrix("down", 16, 64);
    mfsdp::mpi_world world;
    world.run([&](auto comm) {
      mfsdp::sharded_model model{spec, comm, mfsdp::owner_placement{}, mfsdp::muon{}};
      if (comm.rank() == 0) fmt::print("mfsdp {} on {} processes\n", MFSDP_VERSION, comm.size());
    });
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
// [end program]
