// All kernels of lordo, beside those of mfsdp/cuda/instantiate.cuh. Include both in one .cu file.
#pragma once

#include "lordo/optimizer/adam_options.hpp"
#include "lordo/optimizer/clipping.hpp"
#include "lordo/optimizer/error_feedback.hpp"
#include "lordo/optimizer/galore.hpp"
#include "lordo/optimizer/ldadam.hpp"
#include "lordo/optimizer/local_steps.hpp"
#include "lordo/optimizer/low_rank_step.hpp"
#include "lordo/optimizer/moments.hpp"
#include "lordo/optimizer/outer.hpp"
#include "lordo/projector/svd.hpp"
#include "lordo/subspace.hpp"
#include "mfsdp/cuda/kernels.hpp"
#include "mfsdp/cuda/launch.cuh"

namespace mfsdp::inline MFSDP_ABI::cuda {

template struct kernel<elementwise<lordo::detail::adam_kernel<float>, float, 3>>;
template struct kernel<elementwise<lordo::detail::adam_kernel<double>, double, 3>>;
template struct kernel<elementwise<lordo::detail::adam_kernel<float>, float, 4>>;
template struct kernel<elementwise<lordo::detail::adam_kernel<double>, double, 4>>;
template struct kernel<elementwise<lordo::detail::adam_step<float>, float, 4>>;
template struct kernel<elementwise<lordo::detail::adam_step<double>, double, 4>>;
template struct kernel<elementwise<lordo::detail::add_difference, float, 3>>;
template struct kernel<elementwise<lordo::detail::add_difference, double, 3>>;
template struct kernel<elementwise<lordo::detail::add_number<float>, float, 1>>;
template struct kernel<elementwise<lordo::detail::add_number<double>, double, 1>>;
template struct kernel<elementwise<lordo::detail::at_least_part_of<float>, float, 2>>;
template struct kernel<elementwise<lordo::detail::at_least_part_of<double>, double, 2>>;
template struct kernel<elementwise<lordo::detail::axpby<float>, float, 2>>;
template struct kernel<elementwise<lordo::detail::axpby<double>, double, 2>>;
template struct kernel<elementwise<lordo::detail::clip_elements<float>, float, 2>>;
template struct kernel<elementwise<lordo::detail::clip_elements<double>, double, 2>>;
template struct kernel<elementwise<with_sum<lordo::detail::clip_norm<float>>, float, 2>>;
template struct kernel<elementwise<with_sum<lordo::detail::clip_norm<double>>, double, 2>>;
template struct kernel<elementwise<lordo::detail::descend_with_anchor<float>, float, 3>>;
template struct kernel<elementwise<lordo::detail::descend_with_anchor<double>, double, 3>>;
template struct kernel<elementwise<lordo::detail::inverse_times<float>, float, 1>>;
template struct kernel<elementwise<lordo::detail::inverse_times<double>, double, 1>>;
template struct kernel<elementwise<lordo::detail::mixed_momentum<float>, float, 2>>;
template struct kernel<elementwise<lordo::detail::mixed_momentum<double>, double, 2>>;
template struct kernel<elementwise<lordo::detail::multiply_by, float, 2>>;
template struct kernel<elementwise<lordo::detail::multiply_by, double, 2>>;
template struct kernel<elementwise<lordo::detail::nesterov_step<float>, float, 3>>;
template struct kernel<elementwise<lordo::detail::nesterov_step<double>, double, 3>>;
template struct kernel<elementwise<lordo::detail::rotated_moments<float>, float, 3>>;
template struct kernel<elementwise<lordo::detail::rotated_moments<double>, double, 3>>;
template struct kernel<elementwise<lordo::detail::scaled_by_root<float>, float, 2>>;
template struct kernel<elementwise<lordo::detail::scaled_by_root<double>, double, 2>>;
template struct kernel<elementwise<lordo::detail::scaled_copy<float>, float, 2>>;
template struct kernel<elementwise<lordo::detail::scaled_copy<double>, double, 2>>;
template struct kernel<elementwise<lordo::detail::square_of, float, 2>>;
template struct kernel<elementwise<lordo::detail::square_of, double, 2>>;
template struct kernel<elementwise<lordo::detail::step_then_decay<float>, float, 2>>;
template struct kernel<elementwise<lordo::detail::step_then_decay<double>, double, 2>>;
template struct kernel<elementwise<lordo::detail::subtract, float, 2>>;
template struct kernel<elementwise<lordo::detail::subtract, double, 2>>;
template struct kernel<elementwise<lordo::detail::sum_with<float>, float, 3>>;
template struct kernel<elementwise<lordo::detail::sum_with<double>, double, 3>>;
template struct kernel<elementwise<lordo::detail::undecayed_change<float>, float, 3>>;
template struct kernel<elementwise<lordo::detail::undecayed_change<double>, double, 3>>;
template struct kernel<elementwise<lordo::detail::variance_of_moments<float>, float, 3>>;
template struct kernel<elementwise<lordo::detail::variance_of_moments<double>, double, 3>>;

}  // namespace mfsdp::inline MFSDP_ABI::cuda
