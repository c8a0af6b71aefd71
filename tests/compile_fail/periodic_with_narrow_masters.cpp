// expect: mfsdp: a PeriodicOptimizer exchanges parameters with other sites as float
#include "mfsdp/mfsdp.hpp"
#include "support/local_momentum.hpp"

using mfsdp::bfloat16;
#ifdef MFSDP_COMPILE_FAIL
using types = mfsdp::precision<bfloat16, bfloat16, float, bfloat16>;
#else
using types = mfsdp::precision<bfloat16, bfloat16, float, float>;
#endif

template class mfsdp::sharded_model<mfsdp::mesh<mfsdp::thread_collective>, mfsdp::owner_placement,
                                    mfsdp_test::local_momentum<true>, mfsdp::cpu_backend, types>;
