// expect MIXED_WITHOUT_FLOPS: mfsdp: Optimizer lacks 'index_t flops(matrix_shape) const'
// expect GROUP_WITHOUT_FLOPS: mfsdp: Optimizer lacks 'index_t flops(matrix_shape) const'
// expect GROUP_OF_A_RATE: mfsdp: Optimizer lacks 'static constexpr std::string_view name'
// expect MIXED_CUTS: mfsdp: the second optimizer of mixed updates pieces of tensors, this one needs
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/mixed.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "mfsdp/optimizer/parameter_groups.hpp"
#include "mfsdp/placement/owner.hpp"
#include "mfsdp/planner.hpp"

struct without_flops : mfsdp::muon {
  mfsdp::index_t flops(mfsdp::matrix_shape) const = delete;
};

#ifdef MIXED_WITHOUT_FLOPS
using of_matrices = without_flops;
#else
using of_matrices = mfsdp::muon;
#endif
#ifdef MIXED_CUTS
using of_the_rest = mfsdp::muon;
#else
using of_the_rest = mfsdp::adamw;
#endif
#ifdef GROUP_WITHOUT_FLOPS
using of_group = without_flops;
#else
using of_group = mfsdp::muon;
#endif
#ifdef GROUP_OF_A_RATE
using of_other_groups = double;
#else
using of_other_groups = mfsdp::adamw;
#endif

template <class Rules>
mfsdp::plan plan_of(const mfsdp::model_spec& spec, const Rules& rules) {
  return mfsdp::make_plan(spec, 2, mfsdp::owner_placement{}, rules);
}

void program(const mfsdp::model_spec& spec) {
  plan_of(spec, mfsdp::mixed{of_matrices{}, of_the_rest{}});
  plan_of(spec, mfsdp::parameter_groups{mfsdp::for_names("*.up", of_group{}),
                                        mfsdp::for_rest(of_other_groups{})});
}
