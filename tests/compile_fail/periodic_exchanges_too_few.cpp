// expect: mfsdp: PeriodicOptimizer lacks 'std::array<bool, 1 + N> exchanges(
#include "mfsdp/mfsdp.hpp"
#include "support/local_momentum.hpp"

struct rule : mfsdp_test::local_momentum<true> {
#ifdef MFSDP_COMPILE_FAIL
  std::array<bool, 1> exchanges(mfsdp::matrix_shape, mfsdp::exchange_round) const { return {}; }
#endif
};

void train(const mfsdp::model_spec& spec, mfsdp::thread_collective world) {
  const mfsdp::sharded_model model{spec, mfsdp::make_sites(world, {2, 2}), mfsdp::owner_placement{},
                                   rule{}};
}
