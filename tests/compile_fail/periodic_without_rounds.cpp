// expect: mfsdp: PeriodicOptimizer lacks 'static constexpr int rounds_before_update'
#include "mfsdp/mfsdp.hpp"
#include "support/local_momentum.hpp"

struct rule : mfsdp_test::local_momentum<true> {
#ifdef MFSDP_COMPILE_FAIL
 private:
  using mfsdp_test::local_momentum<true>::rounds_before_update;
#endif
};

void train(const mfsdp::model_spec& spec, mfsdp::thread_collective world) {
  const mfsdp::sharded_model model{spec, mfsdp::make_sites(world, {2, 2}), mfsdp::owner_placement{},
                                   rule{}};
}
