// expect: lordo: Projector lacks 'index_t workspace_size(matrix_shape, index_t rank) const'
#include "support/projector_archetypes.hpp"

using namespace archetype;

struct broken : composed<with_name, with_needs_signal, with_projector_options, with_projector_flops,
                         with_basis> {
#ifndef MFSDP_COMPILE_FAIL
  index_t workspace_size(matrix_shape, index_t) const;
#endif
};

template struct lordo::contract::check_projector<broken>;
template struct lordo::contract::check_basis<broken, archetype::backend>;
