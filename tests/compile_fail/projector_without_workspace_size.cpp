// expect: lordo: Projector lacks 'index_t workspace_size(matrix_shape, index_t rank) const'
#include "lordo/optimizer/low_rank.hpp"
#include "support/projector_archetypes.hpp"

using namespace archetype;

struct broken : composed<with_name, with_needs_signal, with_projector_options, with_projector_flops,
                         with_basis> {
#ifndef MFSDP_COMPILE_FAIL
  index_t workspace_size(matrix_shape, index_t) const;
#endif
};

lordo::low_rank_adam<broken> rule{.rank = 4};
