// adam_options: what the low-rank forms of Adam ask of their options.
#pragma once

#include <string_view>

#include "mfsdp/error.hpp"
#include "mfsdp/view.hpp"

namespace lordo::inline MFSDP_ABI::detail {

// Errors: spec_error in the name of the rule if the numbers make no sense.
inline void check_adam(std::string_view rule, mfsdp::index_t rank, double beta1, double beta2,
                       double epsilon) {
  if (rank < 1) {
    throw mfsdp::spec_error(
        fmt::format("{}: the rank {} is not positive; it is the number of directions kept of a "
                    "matrix",
                    rule, rank));
  }
  if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1)) {
    throw mfsdp::spec_error(
        fmt::format("{}: beta1 is {} and beta2 {}, not both from 0 up to 1", rule, beta1, beta2));
  }
  if (!(epsilon > 0)) {
    throw mfsdp::spec_error(fmt::format(
        "{}: epsilon is {}, which divides by zero where a gradient is zero", rule, epsilon));
  }
}

// What a projector finds wrong with itself.
template <class P>
void check_projector_options(const P& projector) {
  if constexpr (requires { projector.check(); }) projector.check();
}

}  // namespace lordo::inline MFSDP_ABI::detail
