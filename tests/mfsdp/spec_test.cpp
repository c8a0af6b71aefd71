#include "mfsdp/spec.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>

using mfsdp::model_spec;
using mfsdp::spec_error;

TEST_CASE("a spec lists units in order and tensors in order of registration") {
  model_spec spec;
  spec.unit("first").matrix("weight", 6, 4, {.row_groups = 3}).vector("gain", 5, {.frozen = true});
  spec.unit("second").elementwise("kernel", {2, 3, 4}).tied("copy", "first.weight");

  REQUIRE(spec.units().size() == 2);
  CHECK(spec.units()[0].name == "first");
  CHECK(spec.units()[0].tensors.size() == 2);
  CHECK(spec.units()[1].tensors[1].name == "copy");
  CHECK(spec.units()[1].tensors[1].tensor == 0);

  REQUIRE(spec.tensors().size() == 3);
  CHECK(spec.tensors()[0].name == "first.weight");
  CHECK(spec.tensors()[0].shape() == mfsdp::matrix_shape{6, 4});
  CHECK(spec.tensors()[0].options.row_groups == 3);
  CHECK(spec.tensors()[1].shape() == mfsdp::matrix_shape{1, 5});
  CHECK(spec.tensors()[1].options.frozen);
  CHECK(spec.tensors()[2].shape() == mfsdp::matrix_shape{2, 12});
  CHECK(spec.tensors()[2].unit == 1);
}

TEST_CASE("find_tensor knows first and tied names") {
  model_spec spec;
  spec.unit("a.b").vector("c", 1);
  spec.unit("d").tied("e", "a.b.c").tied("f", "d.e");
  CHECK(spec.find_tensor("a.b.c") == 0u);
  CHECK(spec.find_tensor("d.e") == 0u);
  CHECK(spec.find_tensor("d.f") == 0u);
  CHECK(!spec.find_tensor("a.b"));
  CHECK(!spec.find_tensor("c"));
  CHECK(!spec.find_tensor(""));
}

TEST_CASE("a scalar and an empty tensor count their elements") {
  model_spec spec;
  spec.unit("u").elementwise("scalar", {}).matrix("empty", 0, 7).elementwise("none", {3, 0});
  CHECK(spec.tensors()[0].elements() == 1);
  CHECK(spec.tensors()[1].elements() == 0);
  CHECK(spec.tensors()[1].shape() == mfsdp::matrix_shape{0, 0});
  CHECK(spec.tensors()[2].shape() == mfsdp::matrix_shape{3, 0});
}

TEST_CASE("names are unique and printable") {
  model_spec spec;
  auto unit = spec.unit("u");
  unit.vector("v", 1);
  CHECK_THROWS_WITH_AS(spec.unit("u"), "unit 'u' is declared twice", spec_error);
  CHECK_THROWS_AS(spec.unit(""), spec_error);
  CHECK_THROWS_AS(spec.unit("two words"), spec_error);
  CHECK_THROWS_AS(spec.unit("line\nbreak"), spec_error);
  CHECK_THROWS_AS(unit.vector("v", 2), spec_error);
  CHECK_THROWS_AS(unit.tied("v", "u.v"), spec_error);
  CHECK_THROWS_AS(unit.vector("a b", 2), spec_error);

  spec.unit("x.y").vector("z", 1);
  CHECK_THROWS_WITH_AS(spec.unit("x").vector("y.z", 1),
                       "tensor name 'x.y.z' is declared twice in the model", spec_error);
}

TEST_CASE("sizes must be countable") {
  model_spec spec;
  auto unit = spec.unit("u");
  CHECK_THROWS_WITH_AS(unit.vector("v", -1), "tensor 'u.v' has the negative extent -1", spec_error);
  constexpr mfsdp::index_t large = mfsdp::index_t{1} << 40;
  CHECK_THROWS_AS(unit.matrix("m", large, large), spec_error);
  CHECK_THROWS_AS(unit.vector("m", std::numeric_limits<mfsdp::index_t>::max()), spec_error);
  CHECK(spec.tensors().empty());
}

TEST_CASE("row groups divide the rows of a matrix") {
  model_spec spec;
  auto unit = spec.unit("u");
  CHECK_THROWS_AS(unit.matrix("m", 7, 2, {.row_groups = 3}), spec_error);
  CHECK_THROWS_AS(unit.matrix("m", 6, 2, {.row_groups = 0}), spec_error);
  CHECK_THROWS_AS(unit.vector("m", 6, {.row_groups = 3}), spec_error);
  CHECK_THROWS_AS(unit.elementwise("m", {6, 2}, {.row_groups = 2}), spec_error);
}

TEST_CASE("a tied name needs a tensor declared before it") {
  model_spec spec;
  auto unit = spec.unit("u");
  CHECK_THROWS_WITH_AS(unit.tied("t", "u.later"),
                       "tensor 'u.t' is tied to 'u.later', which is not declared before it",
                       spec_error);
}
