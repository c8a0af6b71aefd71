// A checkpoint of another model is one error with everything that differs; what may differ, and
// what may be asked for, does not stop it.
#include <doctest/doctest.h>

#include "mfsdp/checkpoint.hpp"
#include "support/checkpoint_files.hpp"
#include "support/checkpoint_values.hpp"

namespace strictness_test {

namespace {

using checkpoint_files::refusal_of;
using checkpoint_files::temporary_folder;

// One type of model for all tests here.
template <class Body>
void on_two(const mfsdp::model_spec& spec, const mfsdp::mixed<mfsdp::muon, mfsdp::adamw>& rules,
            Body&& body) {
  mfsdp::thread_world{2}.run([&](auto comm) {
    mfsdp::sharded_model model{spec, comm, mfsdp::owner_placement{}, rules};
    body(model);
  });
}

const mfsdp::mixed<mfsdp::muon, mfsdp::adamw> usual{mfsdp::muon{}, mfsdp::adamw{}};

mfsdp::model_spec saved_spec() {
  mfsdp::model_spec spec;
  spec.unit("a").matrix("same", 6, 5).matrix("fused", 6, 5, {.row_groups = 3}).vector("gone", 4);
  spec.unit("b").matrix("wider", 4, 8).matrix("as_matrix", 5, 5).vector("freezes", 9);
  return spec;
}

struct saved_model {
  temporary_folder root;
  saved_model() {
    on_two(saved_spec(), usual, [&](auto& model) {
      checkpoint_values::set_values(model, 1);
      mfsdp::save(model, root.path());
    });
  }
};

// Elements of the parameters that are as set_values has made them under these names.
template <class Model, class Name>
mfsdp::index_t count_wrong_parameters(Model& model, Name name) {
  mfsdp::index_t wrong = 0;
  model.persistence().for_each_held([&](const mfsdp::held_part& part, auto values) {
    if (model.persistence().arrays()[part.array].is_state()) return;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto element = part.first + static_cast<mfsdp::index_t>(i);
      const std::string stored = name(checkpoint_values::name_of(model, part.array));
      wrong += values[i] == checkpoint_values::made_up(stored, element, 1) ? 0 : 1;
    }
  });
  return wrong;
}

}  // namespace

TEST_CASE("all differences are in one error, which leaves the model as it was") {
  const saved_model saved;
  mfsdp::model_spec spec;
  spec.unit("a").matrix("same", 6, 5).matrix("fused", 6, 5, {.row_groups = 2}).vector("new", 4);
  spec.unit("b")
      .matrix("wider", 8, 4)
      .elementwise("as_matrix", {5, 5})
      .vector("freezes", 9, {.frozen = true});
  on_two(spec, usual, [&](auto& model) {
    checkpoint_values::set_values(model, 3);
    const std::string text = refusal_of([&] { return mfsdp::load(model, saved.root.path()); });
    CAPTURE(text);
    for (const char* const part :
         {"not in the checkpoint: 'a.new'", "not in the model: 'a.gone'",
          "of another role: 'b.as_matrix' (matrix there, elementwise here)",
          "of another shape: 'b.wider' (4x8 there, 8x4 here)",
          "of another number of matrices: 'a.fused' (3 there, 2 here)",
          "of another optimizer: 'b.as_matrix' (muon there, adamw here), 'b.freezes' (adamw there, "
          "frozen here)"}) {
      CAPTURE(part);
      CHECK(text.find(part) != std::string::npos);
    }
    CHECK(text.find("a.same") == std::string::npos);
    CHECK(checkpoint_values::count_wrong(model, 3) == 0);
  });
}

TEST_CASE("options may change and are reported") {
  const saved_model saved;
  const mfsdp::mixed<mfsdp::muon, mfsdp::adamw> others{mfsdp::muon{.learning_rate = 0.5},
                                                       mfsdp::adamw{}};
  on_two(saved_spec(), others, [&](auto& model) {
    const mfsdp::loaded at = mfsdp::load(model, saved.root.path());
    CHECK(checkpoint_values::count_wrong(model, 1) == 0);
    REQUIRE(at.changed_options.size() == 1);
    CHECK(at.changed_options[0].starts_with("muon: was 'muon 0.02 "));
    CHECK(at.changed_options[0].find("is 'muon 0.5 ") != std::string::npos);
    CHECK(at.changed_options[0].ends_with("(0.02 to 0.5)"));
  });
}

TEST_CASE("rules that are new and rules that are gone are reported") {
  mfsdp::manifest stored;
  stored.rules = {{"muon", "muon 0.02"}, {"adamw", "adamw 1"}};
  mfsdp::manifest model;
  model.rules = {{"adamw", "adamw 1"}, {"soap", "soap 3"}};
  const mfsdp::detail::matched_manifest matched =
      mfsdp::detail::manifest_matcher(stored, model, {}, "there").match();
  CHECK(matched.changed_options ==
        std::vector<std::string>{"optimizer 'soap' is new: was not there",
                                 "optimizer 'muon' is gone: was 'muon 0.02'"});
}

TEST_CASE("names may be mapped") {
  const saved_model saved;
  mfsdp::model_spec spec;
  spec.unit("x").matrix("same", 6, 5).matrix("fused", 6, 5, {.row_groups = 3}).vector("gone", 4);
  spec.unit("b").matrix("wider", 4, 8).matrix("as_matrix", 5, 5).vector("freezes", 9);
  const auto stored_name = [](std::string_view name) {
    return (name.starts_with("x.") ? "a." + std::string(name.substr(2)) : std::string(name));
  };
  on_two(spec, usual, [&](auto& model) {
    const std::string text = refusal_of([&] { return mfsdp::load(model, saved.root.path()); });
    CHECK(text.find("not in the checkpoint: 'x.same', 'x.fused', 'x.gone'") != std::string::npos);
    CHECK(text.find("not in the model: 'a.same', 'a.fused', 'a.gone'") != std::string::npos);
    mfsdp::load(model, saved.root.path(), {.stored_name = stored_name});
    CHECK(model.persistence().counts().steps == 7);
    CHECK(count_wrong_parameters(model, stored_name) == 0);
    const std::string twice = refusal_of([&] {
      return mfsdp::load(model, saved.root.path(), {.stored_name = [](std::string_view name) {
                           return std::string(name == "x.gone" ? "b.freezes" : name);
                         }});
    });
    CHECK(twice.find("wanted twice: 'b.freezes'") != std::string::npos);
  });
}

TEST_CASE("parameters alone begin a run of their own, whatever the optimizers") {
  const saved_model saved;
  mfsdp::model_spec spec;
  spec.unit("a").elementwise("same", {6, 5}).matrix("fused", 6, 5).vector("gone", 4);
  spec.unit("b")
      .matrix("wider", 4, 8)
      .matrix("as_matrix", 5, 5)
      .vector("freezes", 9, {.frozen = true});
  on_two(spec, usual, [&](auto& model) {
    const mfsdp::loaded at = mfsdp::load(model, saved.root.path(), {.parameters_only = true});
    CHECK(at.step == 7);
    CHECK(at.changed_options.empty());
    CHECK(count_wrong_parameters(model, [](auto name) { return name; }) == 0);
    const mfsdp::training_counts counts = model.persistence().counts();
    CHECK(counts.steps == 0);
    CHECK(std::ranges::count(counts.updates, 0) == std::ssize(counts.updates));
    model.persistence().for_each_held([&](const mfsdp::held_part& part, auto values) {
      if (!model.persistence().arrays()[part.array].is_state()) return;
      CHECK(std::ranges::count(values, 0.0f) == std::ssize(values));
    });
  });
}

}  // namespace strictness_test
