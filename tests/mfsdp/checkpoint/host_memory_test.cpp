// Where the host can use a backend's memory, checkpoints are written from it and read into it.
#include <doctest/doctest.h>

#include <atomic>
#include <cstdint>
#include <span>
#include <type_traits>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_values.hpp"

namespace host_memory_test {

namespace {

// Counts what goes through it; says that it is a device's, or not.
template <bool Host>
struct copying_backend : mfsdp::eigen_backend {
  static constexpr bool host_memory = Host;

  inline static std::atomic<std::int64_t> copied = 0;  // bytes

  template <class T>
  void copy(std::type_identity_t<std::span<const T>> from, std::span<T> to) const {
    copied += static_cast<std::int64_t>(from.size_bytes());
    mfsdp::eigen_backend::copy(from, to);
  }
};

static_assert(mfsdp::HostMemory<mfsdp::cpu_backend> && mfsdp::HostMemory<copying_backend<true>>);
static_assert(!mfsdp::HostMemory<copying_backend<false>>);

// More than a chunk in one matrix, and parameters that are cut.
mfsdp::model_spec two_chunks() {
  mfsdp::model_spec spec;
  spec.unit("u").matrix("long", 600, 700).vector("v", 5000).vector("frozen", 9, {.frozen = true});
  return spec;
}

template <class Backend>
auto model_on(Backend backend) {
  return mfsdp::sharded_model{
      two_chunks(),           mfsdp::self{}, mfsdp::owner_placement{}, mfsdp::sgd{.momentum = 0.9},
      mfsdp::model_options{}, backend};
}

struct copied_bytes {
  std::int64_t saving = 0;
  std::int64_t loading = 0;
  std::int64_t held = 0;
};

// Saves and loads, and checks values; what went through the backend's copies.
template <bool Host>
copied_bytes copies_of_a_round_trip() {
  using backend = copying_backend<Host>;
  const checkpoint_files::temporary_folder root;
  copied_bytes seen;
  auto saved = model_on(backend{});
  checkpoint_values::set_values(saved, 3);
  backend::copied = 0;
  mfsdp::save(saved, root.path());
  seen.saving = backend::copied;

  auto fresh = model_on(backend{});
  backend::copied = 0;
  mfsdp::load(fresh, root.path());
  seen.loading = backend::copied;
  CHECK(checkpoint_values::count_wrong(fresh, 3) == 0);
  fresh.persistence().for_each_held(
      [&](auto, auto values) { seen.held += static_cast<std::int64_t>(values.size_bytes()); });
  return seen;
}

}  // namespace

TEST_CASE("what the host can use goes to the disk and comes from it without a copy") {
  const copied_bytes seen = copies_of_a_round_trip<true>();
  CHECK(seen.held > 2 * (1 << 20));
  CHECK(seen.saving == 0);
  CHECK(seen.loading == 0);
}

TEST_CASE("what it cannot use is copied once") {
  const copied_bytes seen = copies_of_a_round_trip<false>();
  CHECK(seen.saving == seen.held);
  CHECK(seen.loading == seen.held);
}

}  // namespace host_memory_test
