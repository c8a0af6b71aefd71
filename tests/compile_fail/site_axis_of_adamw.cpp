// expect: mfsdp: the mesh has a site axis, but an optimizer is no PeriodicOptimizer
#include "mfsdp/mfsdp.hpp"
#include "support/local_momentum.hpp"

#ifdef MFSDP_COMPILE_FAIL
using rule = mfsdp::adamw;
#else
using rule = mfsdp_test::local_momentum<false>;
#endif

void train(const mfsdp::model_spec& spec, mfsdp::thread_collective world) {
  const mfsdp::sharded_model model{spec, mfsdp::make_sites(world, {2, 2}), mfsdp::owner_placement{},
                                   rule{}};
}
