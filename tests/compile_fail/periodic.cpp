// expect WITHOUT_ROUNDS: mfsdp: PeriodicOptimizer lacks 'static constexpr int rounds_before_update'
// expect EXCHANGES_TOO_FEW: mfsdp: PeriodicOptimizer lacks 'std::array<bool, 1 + N> exchanges(
// expect WITHOUT_ADOPT: mfsdp: PeriodicOptimizer lacks 'void adopt(
// expect OF_ADAMW: mfsdp: the mesh has a site axis, but an optimizer is no PeriodicOptimizer
// expect NARROW_MASTERS: mfsdp: a PeriodicOptimizer exchanges parameters with other sites as float
#include "mfsdp/backend/eigen.hpp"
#include "mfsdp/collective/mesh.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "support/archetypes.hpp"
#include "support/local_momentum.hpp"

using base = mfsdp_test::local_momentum<true>;

struct periodic : base {
#ifdef WITHOUT_ROUNDS
 private:
  using base::rounds_before_update;
#endif
#ifdef EXCHANGES_TOO_FEW
  std::array<bool, 1> exchanges(mfsdp::matrix_shape, mfsdp::exchange_round) const { return {}; }
#endif
#ifdef WITHOUT_ADOPT
  void adopt() const {}  // hides the one of the base
#endif
};

#ifdef OF_ADAMW
using rule = mfsdp::adamw;
#else
using rule = periodic;
#endif
#ifdef NARROW_MASTERS
using master = mfsdp::bfloat16;
#else
using master = float;
#endif

using archetype::collective;
using mfsdp::bfloat16;
using axes = mfsdp::mesh<collective, collective, collective>;
using model = mfsdp::sharded_model<axes, mfsdp::owner_placement, rule, mfsdp::eigen_backend,
                                   mfsdp::precision<bfloat16, bfloat16, float, master>>;

void train(const mfsdp::model_spec& spec, collective comm) {
  model trained{spec, axes{comm, comm, comm}, {}, {}};
  trained.step();
}
