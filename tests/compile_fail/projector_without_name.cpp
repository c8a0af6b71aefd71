// expect: lordo: Projector lacks 'static constexpr std::string_view name'
#include "lordo/optimizer/low_rank.hpp"
#include "support/projector_archetypes.hpp"

using namespace archetype;

struct broken : composed<with_needs_signal, with_projector_options, with_projector_flops,
                         with_projector_workspace_size, with_basis> {
#ifndef MFSDP_COMPILE_FAIL
  static constexpr std::string_view name = "broken";
#endif
};

lordo::low_rank_adam<broken> rule{.rank = 4};
