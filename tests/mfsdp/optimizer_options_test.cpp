// Optimizers whose options make no sense, as the planner refuses them.
#include <doctest/doctest.h>

#include <string>

#include "mfsdp/optimizer/dion.hpp"
#include "mfsdp/optimizer/gathered.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "mfsdp/optimizer/normuon.hpp"
#include "mfsdp/optimizer/shampoo.hpp"
#include "mfsdp/optimizer/soap.hpp"
#include "mfsdp/placement/owner.hpp"
#include "mfsdp/planner.hpp"

namespace optimizer_options_test {

using namespace mfsdp;

static_assert(gathered<soap>::squares_gradient && !gathered<muon>::squares_gradient);

TEST_CASE("options that make no sense are refused with the name of their optimizer") {
  model_spec spec;
  spec.unit("u").matrix("m", 8, 4);
  const auto refused = [&](const auto& rule, const std::string& what) {
    std::string message = "accepted";
    try {
      (void)make_plan(spec, 2, owner_placement{}, rule);
    } catch (const spec_error& e) {
      message = e.what();
    }
    CAPTURE(message);
    return message.find(what) != std::string::npos;
  };
  CHECK(refused(shampoo{.frequency = 0}, "shampoo: frequency 0"));
  CHECK(refused(shampoo{.start = 0}, "start 0"));
  CHECK(refused(shampoo{.max_preconditioner_dimension = 0}, "dimension 0"));
  CHECK(refused(shampoo{.epsilon = 0}, "shampoo: epsilon is 0"));
  CHECK(refused(soap{.frequency = -1}, "soap: frequency -1"));
  CHECK(refused(dion{.rank = 0}, "dion: the rank 0"));
  CHECK(refused(muon{.momentum = 1}, "muon: momentum is 1"));
  CHECK(refused(normuon{.form = {.orthogonalization = {.steps = -1}}}, "normuon: -1 steps"));
  CHECK(refused(gathered{soap{.frequency = 0}}, "soap: frequency 0"));
  CHECK(refused(muon{}, "accepted"));
}

}  // namespace optimizer_options_test
