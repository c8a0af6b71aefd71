// expect: mfsdp: Backend lacks 'convert(from, to)', 'round_stochastically(from, to, key, first)'
#include "mfsdp/backend/eigen.hpp"
#include "support/archetypes.hpp"

using namespace archetype;

#ifdef MFSDP_COMPILE_FAIL
using memory_backend = backend;
#else
using memory_backend = mfsdp::eigen_backend;
#endif

void program(collective comm, optimizer rule, memory_backend memory) {
  using model = mfsdp::sharded_model<axes<collective>, mfsdp::owner_placement, optimizer,
                                     memory_backend, mfsdp::precision<mfsdp::bfloat16>>;
  model trained{mfsdp::model_spec{}, axes<collective>{comm}, {}, rule, {}, memory};
  trained.step();
}
