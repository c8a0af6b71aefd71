#include <lordo/lordo.hpp>
#include <mfsdp/mfsdp.hpp>

int main() {
  lordo::low_rank_adam<>{.rank = 4}.check();
  mfsdp::model_spec spec;
  spec.unit("block").matrix("up", 64, 16).matrix("down", 16, 64);
  mfsdp::thread_world{2}.run([&](auto comm) {
    mfsdp::sharded_model model{spec, comm, mfsdp::owner_placement{}, mfsdp::muon{}};
    if (comm.rank() == 0) fmt::print("mfsdp {} on {} ranks\n", MFSDP_VERSION, comm.size());
  });
}
