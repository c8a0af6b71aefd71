// Where a matrix lives must not change a single bit of training: gradients and states of 16 bits.
#include "support/precision_equality.hpp"

namespace half_equality_test {

using namespace mfsdp;

TEST_CASE("everything in bf16: owners, copies and a plain loop are equal") {
  toy::check_equal_bits(precision<bfloat16, bfloat16, bfloat16, bfloat16, bfloat16>{});
}

TEST_CASE(
    "fp16 gradients summed in float, bf16 states: owners, copies and a plain loop are equal") {
  toy::check_equal_bits(precision<float, float16, float, float, bfloat16>{});
}

}  // namespace half_equality_test
