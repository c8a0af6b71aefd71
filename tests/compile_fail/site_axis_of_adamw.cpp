// expect: mfsdp: the mesh has a site axis, but an optimizer is no PeriodicOptimizer
#include "mfsdp/mfsdp.hpp"
#include "support/local_momentum.hpp"

#ifdef MFSDP_COMPILE_FAIL
using rule = mfsdp::adamw;
#else
using rule = mfsdp_test::local_momentum<false>;
#endif

using axes = mfsdp::mesh<mfsdp::self, mfsdp::self, mfsdp::thread_collective>;
template class mfsdp::sharded_model<axes, mfsdp::owner_placement, rule, mfsdp::cpu_backend>;
