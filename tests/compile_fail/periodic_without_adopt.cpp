// expect: mfsdp: PeriodicOptimizer lacks 'void adopt(
#include "mfsdp/mfsdp.hpp"
#include "support/local_momentum.hpp"

struct rule : mfsdp_test::local_momentum<true> {
#ifdef MFSDP_COMPILE_FAIL
  void adopt() const {}  // hides the one of the base
#endif
};

template class mfsdp::sharded_model<mfsdp::mesh<mfsdp::thread_collective>, mfsdp::owner_placement,
                                    rule, mfsdp::cpu_backend>;
