// expect WITHOUT_NAME: lordo: Projector lacks 'static constexpr std::string_view name'
// expect WITHOUT_NEEDS_SIGNAL: lordo: Projector lacks 'static constexpr bool needs_signal'
// expect WITHOUT_OPTIONS: lordo: Projector lacks 'std::string options() const'
// expect WITHOUT_FLOPS: lordo: Projector lacks 'index_t flops(matrix_shape, index_t rank) const'
// expect WITHOUT_WORKSPACE_SIZE: lordo: Projector lacks 'index_t workspace_size(matrix_shape,
// expect WITHOUT_BASIS: lordo: Projector lacks 'void basis(backend, signal, draw, old_basis,
// expect LDADAM_WITHOUT_BASIS: lordo: Projector lacks 'void basis(backend, signal, draw,
// expect GALORE_WITHOUT_BASIS: lordo: Projector lacks 'void basis(backend, signal, draw,
#include <span>
#include <string>
#include <string_view>

#include "lordo/optimizer/galore.hpp"
#include "lordo/optimizer/ldadam.hpp"
#include "lordo/optimizer/low_rank.hpp"
#include "mfsdp/backend/eigen.hpp"

using mfsdp::index_t, mfsdp::matrix_shape, mfsdp::matrix_view;

struct projector {
#ifndef WITHOUT_NAME
  static constexpr std::string_view name = "projector";
#endif
#ifndef WITHOUT_NEEDS_SIGNAL
  static constexpr bool needs_signal = true;
#endif
#ifndef WITHOUT_OPTIONS
  std::string options() const;
#endif
#ifndef WITHOUT_FLOPS
  index_t flops(matrix_shape, index_t) const;
#endif
#ifndef WITHOUT_WORKSPACE_SIZE
  index_t workspace_size(matrix_shape, index_t) const;
#endif
#if !defined(WITHOUT_BASIS) && !defined(LDADAM_WITHOUT_BASIS) && !defined(GALORE_WITHOUT_BASIS)
  template <class B>
  void basis(B&, matrix_view<const float>, lordo::basis_draw, matrix_view<const float>,
             matrix_view<float>, std::span<float>) const;
#endif
};

// As a model calls a rule, the first time.
template <class Rule>
void use(const Rule& rule, mfsdp::eigen_backend memory,
         const mfsdp::state_spans<Rule, float>& states, matrix_view<float> parameter,
         const mfsdp::update_context<float>& context) {
  rule.start(memory, states, parameter, context);
  rule.contribute(memory, states, parameter, parameter, context, 0);
  rule.adopt(memory, states, parameter, context, 0);
  rule.update(memory, states, parameter, parameter, context);
}

#if defined(LDADAM_WITHOUT_BASIS)
using rule_type = lordo::ldadam<projector>;
#elif defined(GALORE_WITHOUT_BASIS)
using rule_type = lordo::galore<projector>;
#else
using rule_type = lordo::low_rank_adam<projector>;
#endif
template void use(const rule_type&, mfsdp::eigen_backend,
                  const mfsdp::state_spans<rule_type, float>&, matrix_view<float>,
                  const mfsdp::update_context<float>&);
