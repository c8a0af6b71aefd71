#include "mfsdp/optimizer/sgd.hpp"

#include <doctest/doctest.h>

#include <vector>

#include "conformance/optimizer.hpp"
#include "support/golden.hpp"
#include "support/trial.hpp"

namespace sgd_test {

using namespace mfsdp;
using mfsdp_test::relative_distance, mfsdp_test::trial;

namespace {

// torch.optim.SGD, statement by statement: its buffer starts as the first gradient.
struct torch_sgd {
  double lr, mu, wd;
  bool nesterov;
  double buffer = 0;
  bool first = true;

  double step(double w, double g) {
    g += wd * w;
    buffer = first ? g : mu * buffer + g;
    first = false;
    return w - lr * (nesterov ? g + mu * buffer : mu != 0 ? buffer : g);
  }
};

}  // namespace

TEST_CASE("sgd equals torch's with and without momentum, Nesterov and decay") {
  for (const double mu : {0.0, 0.9}) {
    for (const double wd : {0.0, 0.1}) {
      for (const bool nesterov : {false, true}) {
        CAPTURE(mu);
        CAPTURE(wd);
        CAPTURE(nesterov);
        const sgd rule{
            .learning_rate = 0.1, .momentum = mu, .weight_decay = wd, .nesterov = nesterov};
        std::vector<double> expected{1, -2, 0.5};
        trial<double, sgd> run(rule, {1, 3}, expected);
        trial<float, sgd> narrow(rule, {1, 3}, {1, -2, 0.5f});
        std::vector<torch_sgd> reference(3, {0.1, mu, wd, nesterov});
        for (int t = 1; t <= 4; ++t) {
          const std::vector<double> g{0.3 * t, -1.0 / t, 2.0 - t};
          for (std::size_t i = 0; i < 3; ++i) expected[i] = reference[i].step(expected[i], g[i]);
          run.step(g);
          narrow.step({g.begin(), g.end()});
          CHECK(relative_distance(run.parameter, expected) < 1e-14);
          CHECK(relative_distance(narrow.parameter, expected) < 1e-6);
        }
      }
    }
  }
}

TEST_CASE("sgd conforms") {
  mfsdp_test::optimizer_conformance(sgd{});
  mfsdp_test::optimizer_conformance(sgd{.momentum = 0.9, .weight_decay = 0.1, .nesterov = true});
}

TEST_CASE("sgd with a zero gradient only decays") {
  trial<double, sgd> run(sgd{.learning_rate = 0.5, .momentum = 0.9, .weight_decay = 0.5}, {1, 2},
                         {1.0, -2.0});
  run.step({0.0, 0.0});
  CHECK(run.parameter == std::vector<double>{0.75, -1.5});
}

}  // namespace sgd_test
