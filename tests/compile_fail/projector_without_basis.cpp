// expect: lordo: Projector lacks 'void basis(backend, signal, draw, old_basis, new_basis,
// workspace) const'
#include "support/projector_archetypes.hpp"

using namespace archetype;

struct broken : composed<with_name, with_needs_signal, with_projector_options, with_projector_flops,
                         with_projector_workspace_size> {
#ifndef MFSDP_COMPILE_FAIL
  template <class B>
  void basis(B&, matrix_view<const float>, lordo::basis_draw, matrix_view<const float>,
             matrix_view<float>, std::span<float>) const;
#endif
};

template struct lordo::contract::check_basis<broken, archetype::backend>;
