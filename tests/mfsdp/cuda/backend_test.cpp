#include "conformance/backend.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "emulation/emulation.hpp"
#include "emulation/session.hpp"
#include "mfsdp/backend/cuda.hpp"
#include "support/on_device.hpp"

namespace cuda_backend_test {

using namespace mfsdp;
using mfsdp_test::on_device;
using mfsdp_test::on_host;

TEST_CASE("cuda_backend conforms") {
  const emulation::session machine;
  mfsdp_test::backend_conformance(cuda_backend{});
}

TEST_CASE("cuda_backend converts to and from 16-bit types") {
  const emulation::session machine;
  mfsdp_test::conversion_conformance(cuda_backend{});
}

TEST_CASE("device_buffer moves, cannot be copied, and keeps its address") {
  static_assert(!std::is_copy_constructible_v<device_buffer<float>>);
  const emulation::session machine;
  const cuda_backend backend;
  auto from = backend.allocate<float>(10);
  const float* const data = from.span().data();
  auto to = std::move(from);
  CHECK(from.span().empty());
  CHECK(to.span().data() == data);
  from = std::move(to);
  CHECK(to.span().empty());
  CHECK(from.span().size() == 10);
  CHECK(device_buffer<float>().span().empty());
}

TEST_CASE("checked builds poison memory, fresh and used before") {
  if (!checked) return;
  const emulation::session machine;
  cuda_backend backend;
  for (int i = 0; i < 2; ++i) {
    auto memory = backend.allocate<float>(100);
    for (const float x : on_host(backend, memory.span())) CHECK(std::isnan(x));
    backend.fill(memory.span(), 1.0f);
  }
}

TEST_CASE("copies reach host memory from either side, and block only then") {
  const emulation::session machine;
  cuda_backend backend;
  const std::vector<float> values{1, 2, 3};
  auto a = on_device(backend, values);
  auto b = backend.allocate<float>(3);
  const long before = emulation::counts().host_synchronisations;
  backend.copy<float>(a.span(), b.span());
  CHECK(emulation::counts().host_synchronisations == before);
  CHECK(on_host(backend, b.span()) == values);
  CHECK(emulation::counts().host_synchronisations > before);
  std::vector<float> elsewhere(3);
  backend.copy<float>(values, std::span(elsewhere));
  CHECK(elsewhere == values);
}

TEST_CASE("host memory may be used at once after a copy, pinned or not") {
  const emulation::session machine;
  cuda_backend backend;
  const cuda::pinned_buffer<float> pinned(3);
  const std::span<float> host(pinned.data(), 3);
  auto a = on_device<float>(backend, {1, 2, 3});
  backend.copy<float>(a.span(), host);
  CHECK(std::vector<float>(host.begin(), host.end()) == std::vector<float>{1, 2, 3});
  auto b = backend.allocate<float>(3);
  backend.copy<float>(host, b.span());
  std::ranges::fill(host, 7.0f);
  CHECK(on_host(backend, b.span()) == std::vector<float>{1, 2, 3});
}

TEST_CASE("the sum of squares of floats is exact where doubles are") {
  const emulation::session machine;
  cuda_backend backend;
  auto ones = backend.allocate<float>((index_t{1} << 24) + 1);
  backend.fill(ones.span(), 1.0f);
  CHECK(backend.sum_of_squares(ones.span()) == 16777217.0);
}

TEST_CASE("the stream may be the caller's, of any device") {
  const emulation::session machine({.devices = 2});
  {
    const cuda::device_scope second(1);
    const cuda::stream mine;
    const cuda::device_scope first(0);
    cuda_backend backend(1, mine.get());
    CHECK(backend.device() == 1);
    CHECK(backend.stream() == mine.get());
    auto x = on_device<float>(backend, {3, 4});
    CHECK(backend.sum_of_squares(x.span()) == 25);
  }
}

TEST_CASE("two streams need an event, and one is enough") {
  const emulation::session machine;
  cuda_backend producer;
  cuda_backend consumer;
  for (const bool ordered : {false, true}) {
    auto x = producer.allocate<float>(100);
    producer.fill(x.span(), 2.0f);
    if (ordered) {
      const cuda::event filled;
      filled.record(producer.stream());
      filled.precede(consumer.stream());
    }
    const double sum = consumer.sum_of_squares(std::span<const float>(x.span()));
    CHECK((sum == 400) == ordered);
    CHECK(emulation::take_errors().empty() == ordered);
    producer.wait();
    (void)emulation::take_errors();
  }
}

TEST_CASE("what is freed before the device has used it is still there") {
  const emulation::session machine;
  cuda_backend backend;
  auto to = backend.allocate<float>(100);
  {
    auto from = backend.allocate<float>(100);
    backend.fill(from.span(), 3.0f);
    backend.copy<float>(from.span(), to.span());
  }
  auto reused = backend.allocate<float>(100);
  backend.fill(reused.span(), 0.0f);
  CHECK(on_host(backend, to.span()) == std::vector<float>(100, 3.0f));
}

TEST_CASE("errors name the call and the reason") {
  const emulation::session machine;
  cuda_backend backend;
  auto x = backend.allocate<float>(8);
  backend.fill(x.span(), 1.0f);
  emulation::fail_call("cudaStreamSynchronize", cudaErrorLaunchFailure);
  const std::string what = mfsdp_test::what_of<device_error>(
      [&] { (void)backend.sum_of_squares(std::span<const float>(x.span())); });
  CHECK(what.find("cudaStreamSynchronize") != std::string::npos);
  CHECK(what.find("cudaErrorLaunchFailure") != std::string::npos);
}

}  // namespace cuda_backend_test
