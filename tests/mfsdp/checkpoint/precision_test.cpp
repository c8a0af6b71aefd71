// Checkpoints of 16-bit models: bit for bit, stochastic rounding included, and other types if
// asked.
#include <doctest/doctest.h>

#include <atomic>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_values.hpp"
#include "support/site_training.hpp"

namespace precision_test {

namespace {

using checkpoint_files::refusal_of;
using checkpoint_files::temporary_folder;
using mfsdp::bfloat16;
using mfsdp::float16;

using with_masters = mfsdp::precision<bfloat16, bfloat16, float, float, bfloat16>;
using narrow = mfsdp::precision<bfloat16, bfloat16, float, bfloat16, float16>;

template <class Precision, class Body>
void on_types(int ranks, Precision types, Body&& body) {
  mfsdp::thread_world{ranks}.run([&](auto comm) {
    mfsdp::sharded_model model{toy::odd_spec(),   comm,  mfsdp::owner_placement{},
                               toy::optimizers(), types, mfsdp::model_options{.rounding_seed = 3}};
    body(model);
  });
}

template <class Precision>
void check_types(Precision types) {
  const temporary_folder made_up;
  on_types(3, types, [&](auto& model) {
    checkpoint_values::set_values(model, 1);
    mfsdp::save(model, made_up.path());
  });
  std::atomic<mfsdp::index_t> wrong = 0;
  on_types(2, types, [&](auto& model) {
    mfsdp::load(model, made_up.path());
    wrong += checkpoint_values::count_wrong(model, 1);
  });
  CHECK(wrong == 0);

  const temporary_folder trained;
  checkpoint_values::everything expected;
  checkpoint_values::everything resumed;
  const toy::site_settings how{.ranks = {3}, .parts = {3}};
  on_types(3, types, [&](auto& model) {
    model.initialize(toy::initialize);
    toy::step_site(model, how, 0);
    mfsdp::save(model, trained.path());
    toy::step_site(model, how, 1);
    expected.add(model);
  });
  on_types(3, types, [&](auto& model) {
    mfsdp::load(model, trained.path());
    toy::step_site(model, how, 1);
    resumed.add(model);
  });
  CHECK(resumed == expected);
}

}  // namespace

TEST_CASE("float masters beside bfloat16 parameters, narrow states") {
  check_types(with_masters{});
}

TEST_CASE("bfloat16 masters, float16 states") {
  check_types(narrow{});
}

TEST_CASE("another type is an error that names each array, and converts if asked") {
  const temporary_folder root;
  on_types(2, with_masters{}, [&](auto& model) {
    checkpoint_values::set_values(model, 2);
    mfsdp::save(model, root.path());
  });
  on_types(3, narrow{}, [&](auto& model) {
    const std::string fault = refusal_of([&] { return mfsdp::load(model, root.path()); });
    CHECK(fault.find("convert_dtype") != std::string::npos);
    CHECK(fault.find("'head.norm' (F32 there, BF16 here)") != std::string::npos);
    CHECK(fault.find("'block.2.qkv' #2 momentum of muon (BF16 there, F16 here)") !=
          std::string::npos);
    CHECK(fault.find("'block.1.down'") == std::string::npos);  // frozen, in bfloat16 in both
    const mfsdp::loaded at = mfsdp::load(model, root.path(), {.convert_dtype = true});
    CHECK(checkpoint_values::count_wrong(model, 2) == 0);
    CHECK(at.changed_options.size() == 1);
    CHECK(at.changed_options[0].find("precision") != std::string::npos);
  });
}

}  // namespace precision_test
