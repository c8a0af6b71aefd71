// expect: lordo: Projector lacks 'static constexpr bool needs_signal'
#include "lordo/optimizer/low_rank.hpp"
#include "support/projector_archetypes.hpp"

using namespace archetype;

struct broken : composed<with_name, with_projector_options, with_projector_flops,
                         with_projector_workspace_size, with_basis> {
#ifndef MFSDP_COMPILE_FAIL
  static constexpr bool needs_signal = true;
#endif
};

lordo::low_rank_adam<broken> rule{.rank = 4};
