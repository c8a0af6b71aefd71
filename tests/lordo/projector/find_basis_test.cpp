// A Projector that breaks its promises is named in checked builds, with the tensor.
#include "lordo/projector/find_basis.hpp"

#include <doctest/doctest.h>

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "lordo/optimizer/low_rank.hpp"
#include "lordo/projector/random.hpp"
#include "mfsdp/mfsdp.hpp"
#include "support/site_training.hpp"

namespace find_basis_test {
namespace {

thread_local int site_of_thread = 0;

// random_projection, from step `from` on with one of the faults.
struct faulty_projector : lordo::random_projection {
  enum fault_kind { none, stretches, knows_its_site } fault = none;
  std::int64_t from = 0;

  static constexpr std::string_view name = "faulty";

  template <mfsdp::DecomposingBackend B, class T>
  void basis(B& backend, std::type_identity_t<mfsdp::matrix_view<const T>> signal,
             lordo::basis_draw draw, std::type_identity_t<mfsdp::matrix_view<const T>> old_basis,
             mfsdp::matrix_view<T> new_basis, std::span<T> workspace) const {
    const bool now = draw.step >= from;
    if (now && fault == knows_its_site) draw.item += static_cast<std::size_t>(site_of_thread);
    random_projection::basis<B, T>(backend, signal, draw, old_basis, new_basis, workspace);
    if (now && fault == stretches) {
      backend.transform([](auto& x) { x = T(1.01) * x; },
                        mfsdp::slice(new_basis.flat(), 0, new_basis.cols()));
    }
  }
};

// The error of two sites of two ranks; empty if there is none.
std::string error_of_training(const faulty_projector& projector) {
  mfsdp::model_spec spec;
  spec.unit("block").matrix("up", 12, 8).matrix("down", 8, 12);
  const lordo::low_rank_adam<faulty_projector> rule{
      .rank = 3, .projector = projector, .periods = {.parameters = 2}};
  const toy::site_settings how{.ranks = {2, 1}, .parts = {2, 2}, .steps = 8};
  std::string message;
  std::mutex mutex;
  try {
    mfsdp::thread_world{3}.run([&](auto comm) {
      mfsdp::sharded_model model{spec, mfsdp::make_sites(comm, how.ranks), mfsdp::owner_placement{},
                                 rule};
      site_of_thread = model.site();
      try {
        model.initialize(toy::initialize);
        toy::train_site(model, how);
      } catch (const mfsdp::spec_error& e) {
        const std::unique_lock guard(mutex);
        message = e.what();
        throw;
      }
    });
  } catch (const mfsdp::error&) {
  }
  return message;
}

bool tells(const std::string& message, std::string_view part) {
  CAPTURE(message);
  CHECK(message.find(part) != std::string::npos);
  return true;
}

}  // namespace

TEST_CASE("a Projector that keeps its promises trains") {
  CHECK(error_of_training({}).empty());
}

TEST_CASE("rows that are not orthonormal are named with tensor and Projector") {
  const std::string message = error_of_training({{}, faulty_projector::stretches, 4});
  if (!mfsdp::checked) return;
  tells(message, "tensor 'block.");
  tells(message, "Projector 'faulty' has written a basis in step 4 whose rows are not orthonormal");
  tells(message, "the product of rows 0 and 0 is 1.02");
}

TEST_CASE("bases that differ between sites are named with tensor and Projector") {
  const std::string message = error_of_training({{}, faulty_projector::knows_its_site, 6});
  if (!mfsdp::checked) return;
  tells(message, "tensor 'block.");
  tells(message, "state 'basis' has other bits on site 1 than on site 0 in step 6; 'faulty'");
}

}  // namespace find_basis_test
