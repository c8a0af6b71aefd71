// Where a matrix lives must not change a single bit of training: parameters of 16 bits.
#include "support/precision_equality.hpp"

namespace precision_equality_test {

using namespace mfsdp;

TEST_CASE("bf16 parameters with float masters: owners, copies and a plain loop are equal") {
  toy::check_equal_bits(precision<bfloat16>{});
}

TEST_CASE("bf16 parameters, stochastically rounded: owners, copies and a plain loop are equal") {
  toy::check_equal_bits(precision<bfloat16, bfloat16, float, bfloat16>{});
}

}  // namespace precision_equality_test
