// [begin program]
#include <cstdio>
#include <mfsdp/backend/cuda.hpp>
#include <mfsdp/collective/nccl_world.hpp>
#include <mfsdp/mfsdp.hpp>

int main() {
  try {
    mfsdp::model_spec spec;
    spec.unit("block").matrix("up", 64, 16).matrix("down", 16, 64);
    mfsdp::nccl_world world;  // under torchrun or srun
    world.run([&](mfsdp::nccl_collective comm) {
      const mfsdp::cuda_backend backend(comm.device(), comm.compute_stream());
      mfsdp::sharded_model model{
          spec, comm, mfsdp::owner_placement{}, mfsdp::muon{}, mfsdp::model_options{}, backend};
      if (comm.rank() == 0) fmt::print("mfsdp {} on {} GPUs\n", MFSDP_VERSION, comm.size());
    });
  } catch (const std::exception& e) {
    fmt::print(stderr, "{}\n", e.what());
    return 1;
  }
}
// [end program]
