// expect: mfsdp: Collective lacks 'int size() const'
#include <mfsdp/mfsdp.hpp>

#include "support/archetypes.hpp"

using namespace archetype;

struct broken : composed<with_request, with_rank, with_all_gather, with_reduce_scatter> {
#ifndef MFSDP_COMPILE_FAIL
  int size() const;
#endif
};

void program() {
  mfsdp::sharded_model model{mfsdp::model_spec{}, broken{}, mfsdp::owner_placement{}, optimizer{}};
  model.step();
}
