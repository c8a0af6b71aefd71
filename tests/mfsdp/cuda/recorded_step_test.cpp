#include "mfsdp/cuda/recorded_step.hpp"

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "emulation/emulation.hpp"
#include "emulation/session.hpp"
#include "mfsdp/backend/cuda.hpp"
#include "mfsdp/optimizer/adamw.hpp"
#include "mfsdp/optimizer/muon.hpp"
#include "support/device_trial.hpp"
#include "support/on_device.hpp"

namespace cuda_recorded_step_test {

using namespace mfsdp;
using mfsdp_test::device_trial;
using mfsdp_test::what_of;

namespace {

template <class O>
void check_recorded(const O& rule, matrix_shape shape) {
  const cuda_backend backend;
  device_trial<O, cuda_backend> plain(rule, backend, shape);
  device_trial<O, cuda_backend> recorded(rule, backend, shape);
  cuda::recorded_step step(backend.context());
  for (int t = 1; t <= 8; ++t) {
    // The rate of each run is another one, and so are the step counts of Adam.
    const double rate = 1.0 / t;
    plain.update(t, rate);
    const auto before = emulation::counts();
    step.run([&] { recorded.update(t, rate); });
    const auto after = emulation::counts();
    if (t > 2) {
      CHECK(after.graph_launches == before.graph_launches + 1);
      CHECK(after.copies == before.copies + 1);  // of the arguments
      CHECK(after.allocations <= before.allocations + 1);
    }
  }
  CHECK(plain.parameter() == recorded.parameter());
}

}  // namespace

TEST_CASE("a recorded step computes what a plain one does, at rates that change") {
  const emulation::session machine;
  check_recorded(adamw{}, {1, 500});
  check_recorded(muon{.weight_decay = 0.1}, {16, 20});
  check_recorded(muon::gram(), {16, 48});
}

TEST_CASE("a run that differs from the recorded one is refused and changes nothing") {
  const emulation::session machine;
  cuda_backend backend;
  auto x = mfsdp_test::on_device<float>(backend, {1, 2, 3});
  auto y = mfsdp_test::on_device<float>(backend, {4, 5, 6});
  const auto fill_both = [&] {
    backend.fill(x.span(), 7.0f);
    backend.fill(y.span(), 7.0f);
  };
  const std::vector<std::pair<std::string, std::function<void()>>> others = {
      {"call 1 (the end)", [&] { backend.fill(x.span(), 7.0f); }},
      {"call 2 (kernel)",
       [&] {
         fill_both();
         backend.fill(y.span(), 7.0f);
       }},
      {"call 0 (kernel)", [&] { backend.fill(x.span().first(2), 7.0f); }},
      {"call 0 (clear)", [&] { backend.fill(x.span(), 0.0f); }},
      {"call 1 (copy)", [&] {
         backend.fill(x.span(), 7.0f);
         backend.copy<float>(x.span(), y.span());
       }}};
  for (const int runs_before : {1, 2, 3}) {
    for (const auto& [message, other] : others) {
      CAPTURE(runs_before);
      cuda::recorded_step step(backend.context());
      for (int run = 0; run < runs_before; ++run) step.run(fill_both);
      backend.fill(x.span(), 1.0f);
      const std::string what = what_of<usage_error>([&] { step.run(other); });
      CHECK(what.find(message) != std::string::npos);
      CHECK(mfsdp_test::on_host(backend, x.span()) == std::vector<float>(3, 1.0f));
      step.run(fill_both);  // and it goes on
      CHECK(mfsdp_test::on_host(backend, x.span()) == std::vector<float>(3, 7.0f));
    }
  }
}

TEST_CASE("what asks the host cannot be recorded") {
  const emulation::session machine;
  cuda_backend backend;
  auto x = mfsdp_test::on_device<float>(backend, {1, 2, 3});
  cuda::recorded_step step(backend.context());
  CHECK(what_of<usage_error>([&] {
          step.run([&] { (void)backend.sum_of_squares(x.span()); });
        }).find("cannot read a sum of squares") != std::string::npos);
  CHECK(what_of<usage_error>([&] {
          step.run([&] { (void)mfsdp_test::on_host(backend, x.span()); });
        }).find("cannot copy from or to host memory") != std::string::npos);
}

TEST_CASE("a recorded step keeps no memory for its caller") {
  const emulation::session machine;
  cuda_backend backend;
  device_buffer<float> kept;
  cuda::recorded_step step(backend.context());
  CHECK(what_of<usage_error>([&] {
          step.run([&] { kept = backend.allocate<float>(4); });
        }).find("keeps memory") != std::string::npos);
}

TEST_CASE("products of other factors on the same operands are the same calls") {
  const emulation::session machine;
  cuda_backend backend;
  auto x = mfsdp_test::on_device<float>(backend, {1, 2, 3, 4});
  auto y = backend.allocate<float>(4);
  const matrix_view<float> a(x.span().data(), 2, 2);
  const matrix_view<float> d(y.span().data(), 2, 2);
  cuda::recorded_step step(backend.context());
  for (int run = 1; run <= 6; ++run) {
    const auto factor = static_cast<float>(run);
    step.run([&] { backend.multiply(factor, a, transpose::no, a, transpose::no, 0.0f, d, d); });
    CHECK(mfsdp_test::on_host(backend, y.span()) ==
          std::vector<float>{7 * factor, 10 * factor, 15 * factor, 22 * factor});
  }
}

}  // namespace cuda_recorded_step_test
