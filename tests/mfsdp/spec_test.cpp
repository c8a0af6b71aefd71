#include "mfsdp/spec.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <string>
#include <vector>

namespace spec_test {

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

TEST_CASE("a stack is a batch of matrices that stand below each other") {
  model_spec spec;
  spec.unit("moe").stack("down", 8, 64, 21).stack("gated", 8, 64, 21, {.row_groups = 2});
  const mfsdp::tensor_spec& down = spec.tensors()[0];
  CHECK(down.role == mfsdp::tensor_role::matrix);
  CHECK(down.extents == std::vector<mfsdp::index_t>{8, 64, 21});
  CHECK(down.shape() == mfsdp::matrix_shape{8 * 64, 21});
  CHECK(down.matrices() == 8);
  CHECK(spec.tensors()[1].shape() == mfsdp::matrix_shape{8 * 64, 21});
  CHECK(spec.tensors()[1].matrices() == 16);
}

TEST_CASE("a convolution is a matrix of outputs and all that one output reads") {
  model_spec spec;
  spec.unit("net")
      .convolution("wide", {64, 3, 1, 7})
      .convolution("line", {6, 1, 4}, {.row_groups = 2})
      .convolution("volume", {2, 3, 4, 5, 6});
  CHECK(spec.tensors()[0].role == mfsdp::tensor_role::matrix);
  CHECK(spec.tensors()[0].extents == std::vector<mfsdp::index_t>{64, 3, 1, 7});
  CHECK(spec.tensors()[0].shape() == mfsdp::matrix_shape{64, 21});
  CHECK(spec.tensors()[0].matrices() == 1);
  CHECK(spec.tensors()[1].shape() == mfsdp::matrix_shape{6, 4});
  CHECK(spec.tensors()[1].matrices() == 2);
  CHECK(spec.tensors()[2].shape() == mfsdp::matrix_shape{2, 360});
}

TEST_CASE("a tensor that is no stack counts its row groups as matrices, and otherwise one") {
  model_spec spec;
  spec.unit("u").matrix("fused", 6, 4, {.row_groups = 3}).matrix("plain", 6, 4).vector("v", 7);
  CHECK(spec.tensors()[0].matrices() == 3);
  CHECK(spec.tensors()[1].matrices() == 1);
  CHECK(spec.tensors()[2].matrices() == 1);
}

TEST_CASE("stacks and convolutions of impossible sizes are refused, empty ones are not") {
  model_spec spec;
  auto unit = spec.unit("u");
  CHECK_THROWS_WITH_AS(unit.stack("s", -1, 2, 3), "tensor 'u.s' has the negative extent -1",
                       spec_error);
  constexpr mfsdp::index_t large = mfsdp::index_t{1} << 30;
  CHECK_THROWS_AS(unit.stack("s", large, large, large), spec_error);
  CHECK_THROWS_AS(unit.convolution("c", {large, large, large}), spec_error);
  CHECK_THROWS_AS(unit.convolution("c", {4, 4, 3, -3}), spec_error);
  CHECK_THROWS_WITH_AS(unit.convolution("c", {4, 4}),
                       "convolution 'u.c' has 2 extents; it needs outputs, inputs and at least one "
                       "of the kernel",
                       spec_error);
  CHECK(spec.tensors().empty());

  unit.stack("none", 0, 4, 3).stack("flat", 2, 0, 3).convolution("c", {4, 0, 3});
  CHECK(spec.tensors()[0].elements() == 0);
  CHECK(spec.tensors()[0].matrices() == 0);
  CHECK(spec.tensors()[0].shape() == mfsdp::matrix_shape{0, 0});
  CHECK(spec.tensors()[1].elements() == 0);
  CHECK(spec.tensors()[1].matrices() == 2);
  CHECK(spec.tensors()[2].shape() == mfsdp::matrix_shape{4, 0});
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

TEST_CASE("names that a checkpoint could not write or tell apart are refused, and named") {
  model_spec spec;
  auto unit = spec.unit("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80");  // of two, three and four bytes
  unit.vector("\xC3\xA9", 1);
  CHECK_THROWS_WITH_AS(unit.vector("v[0:4]", 1),
                       "tensor name 'v[0:4]' has '[', ']' or '/', or is not UTF-8; checkpoints "
                       "could not tell it from parts and states of others: rename it",
                       spec_error);
  for (const char* const name :
       {"a[", "a]", "a/b", "/", "\xFF", "\x80", "\xC3", "\xC3\x28", "\xC0\xAF", "\xE0\x80\x80",
        "\xED\xA0\x80", "\xE2\x82", "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF8\x88\x80\x80"}) {
    CAPTURE(name);
    CHECK_THROWS_AS(spec.unit(name), spec_error);
    CHECK_THROWS_AS(unit.vector(name, 1), spec_error);
    CHECK_THROWS_AS(unit.tied(name, "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80.\xC3\xA9"), spec_error);
  }
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
  CHECK_THROWS_AS(unit.convolution("m", {7, 3, 3}, {.row_groups = 3}), spec_error);
  // The slices have 3 rows each; all slices together have 6.
  CHECK_THROWS_WITH_AS(unit.stack("m", 2, 3, 2, {.row_groups = 2}),
                       "tensor 'u.m': 2 row groups need a matrix whose rows they divide; it is a "
                       "matrix with 3 rows. Groups of unequal size are tensors of their own",
                       spec_error);
}

TEST_CASE("a tied name needs a tensor declared before it") {
  model_spec spec;
  auto unit = spec.unit("u");
  CHECK_THROWS_WITH_AS(unit.tied("t", "u.later"),
                       "tensor 'u.t' is tied to 'u.later', which is not declared before it",
                       spec_error);
}

}  // namespace spec_test
