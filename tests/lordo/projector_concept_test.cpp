// The smallest Projector, and for each requirement a type that fails in this one alone.
#include <span>
#include <string>
#include <string_view>

#include "lordo/concepts.hpp"
#include "support/archetypes.hpp"
#include "support/projector_archetypes.hpp"

namespace projector_concept_test {

namespace {

using namespace archetype;
using lordo::basis_draw, lordo::Projector;
using backend_archetype = archetype::backend;

static_assert(Projector<projector>);
static_assert(lordo::ProjectsOn<projector, backend_archetype>);

static_assert(!Projector<composed<with_needs_signal, with_projector_options, with_projector_flops,
                                  with_projector_workspace_size, with_basis>>);
static_assert(!Projector<composed<with_name, with_projector_options, with_projector_flops,
                                  with_projector_workspace_size, with_basis>>);
static_assert(!Projector<composed<with_name, with_needs_signal, with_projector_flops,
                                  with_projector_workspace_size, with_basis>>);
static_assert(!Projector<composed<with_name, with_needs_signal, with_projector_options,
                                  with_projector_workspace_size, with_basis>>);
static_assert(!Projector<composed<with_name, with_needs_signal, with_projector_options,
                                  with_projector_flops, with_basis>>);
static_assert(!lordo::ProjectsOn<composed<with_name, with_needs_signal, with_projector_options,
                                          with_projector_flops, with_projector_workspace_size>,
                                 backend_archetype>);

struct float_flops {
  double flops(matrix_shape, index_t) const;
};
struct workspace_of_shape {
  index_t workspace_size(matrix_shape) const;
};
struct mutable_signal {
  void basis(backend_archetype&, matrix_view<float>, basis_draw, matrix_view<const float>,
             matrix_view<float>, std::span<float>) const;
};
struct returning_basis {
  bool basis(backend_archetype&, matrix_view<const float>, basis_draw, matrix_view<const float>,
             matrix_view<float>, std::span<float>) const;
};

static_assert(!Projector<composed<with_name, with_needs_signal, with_projector_options, float_flops,
                                  with_projector_workspace_size>>);
static_assert(!Projector<composed<with_name, with_needs_signal, with_projector_options,
                                  with_projector_flops, workspace_of_shape>>);

template <class Basis>
concept Projects =
    lordo::ProjectsOn<composed<with_name, with_needs_signal, with_projector_options,
                               with_projector_flops, with_projector_workspace_size, Basis>,
                      backend_archetype>;
static_assert(Projects<with_basis>);
static_assert(!Projects<mutable_signal>);
static_assert(!Projects<returning_basis>);

}  // namespace

}  // namespace projector_concept_test
