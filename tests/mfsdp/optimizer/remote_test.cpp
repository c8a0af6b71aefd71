// Every optimizer touches memory through the backend only: none needs that of the host.
#include <doctest/doctest.h>

#include "conformance/optimizer.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/dion.hpp"
#include "mfsdp/optimizer/normuon.hpp"
#include "mfsdp/optimizer/sgd.hpp"
#include "mfsdp/optimizer/shampoo.hpp"
#include "mfsdp/optimizer/soap.hpp"
#include "support/remote_backend.hpp"

namespace remote_optimizer_test {

namespace {

// One update of some shapes, at the speed of a reference backend.
template <class O>
void check_on_remote(const O& rule) {
  mfsdp_test::remote_backend<> backend;
  for (const mfsdp::matrix_shape shape : {mfsdp::matrix_shape{0, 5}, {1, 7}, {19, 12}, {12, 30}}) {
    mfsdp_test::optimizer_conformance_on<float>(rule, backend, shape);
  }
  if constexpr (!O::whole_matrix) mfsdp_test::piecewise_conformance<float>(rule, backend);
}

}  // namespace

TEST_CASE("memory out of the host's reach is enough for every optimizer") {
  check_on_remote(mfsdp::adamw{});
  check_on_remote(mfsdp::sgd{.momentum = 0.9});
  check_on_remote(mfsdp::muon{});
  check_on_remote(mfsdp::normuon{});
  check_on_remote(mfsdp::dion{.rank = 5});
  check_on_remote(mfsdp::shampoo{.graft = mfsdp::adam_graft{}});
  check_on_remote(mfsdp::soap{.frequency = 2});
}

}  // namespace remote_optimizer_test
