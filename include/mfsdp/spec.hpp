// model_spec: the units of a model and their tensors. Names, shapes and roles; no data.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mfsdp/error.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI {

// What an optimizer may assume about a tensor, and therefore how it may be placed.
enum class tensor_role {
  matrix,       // one or more 2-D weights, each of which a matrix optimizer updates whole
  vector,       // 1-D: gains, biases
  elementwise,  // any other tensor updated element by element: embeddings, heads
};

[[nodiscard]] constexpr std::string_view to_string(tensor_role role) {
  switch (role) {
    case tensor_role::matrix:
      return "matrix";
    case tensor_role::vector:
      return "vector";
    default:
      return "elementwise";
  }
}

namespace detail {

// Without overlong forms, surrogates and what is beyond U+10FFFF.
[[nodiscard]] constexpr bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    const std::size_t bytes = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
    if ((first >= 0x80 && first < 0xC2) || first > 0xF4 || text.size() < bytes) return false;
    char32_t point = bytes == 1 ? first : first & (0x7Fu >> bytes);
    for (std::size_t i = 1; i < bytes; ++i) {
      const auto next = static_cast<unsigned char>(text[i]);
      if ((next & 0xC0) != 0x80) return false;
      point = point << 6 | (next & 0x3F);
    }
    if (bytes == 3 && (point < 0x800 || (point >= 0xD800 && point < 0xE000))) return false;
    if (bytes == 4 && (point < 0x10000 || point > 0x10FFFF)) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

}  // namespace detail

struct tensor_options {
  // A frozen tensor is gathered like any other, has no gradient and is never updated.
  bool frozen = false;
  // Role matrix only: the rows of each matrix form this many equal groups, each a matrix of its own
  // for planner and optimizer (query, key and value of one fused projection), contiguous for the
  // trainer.
  index_t row_groups = 1;
};

struct tensor_spec {
  std::string name;  // "unit.tensor", unique in the model
  std::vector<index_t> extents;
  tensor_role role = tensor_role::elementwise;
  tensor_options options{};
  std::size_t unit = 0;
  bool stacked = false;  // the first extent counts matrices, the second their rows

  [[nodiscard]] index_t elements() const {
    index_t product = 1;
    for (const index_t extent : extents) product *= extent;
    return product;
  }
  // All of it as one matrix: rows of a stack stand below each other, a row of a convolution has
  // inputs x kernel columns.
  [[nodiscard]] matrix_shape shape() const {
    if (extents.size() < 2) return {1, elements()};
    const index_t rows = stacked ? extents[0] * extents[1] : extents[0];
    return {rows, rows == 0 ? 0 : elements() / rows};
  }
  // Of role matrix: how many equal matrices its rows form, each planned, owned and updated on its
  // own: slices times row groups. Otherwise 1.
  [[nodiscard]] index_t matrices() const { return (stacked ? extents[0] : 1) * options.row_groups; }
};

// One name under which a unit sees a tensor. Tied tensors have several, in one or more units.
struct tensor_reference {
  std::string name;  // without the unit
  std::size_t tensor = 0;
};

struct unit_spec {
  std::string name;
  std::vector<tensor_reference> tensors;  // in order of registration
};

// A model: units in forward order, each a list of tensors. All ranks must build the same one.
class model_spec {
 public:
  // Adds tensors to one unit; a short-lived handle, valid while the spec lives.
  class unit_builder {
   public:
    // A weight of rows x cols (outputs x inputs). Errors: spec_error on a negative or overflowing
    // size, a repeated name, or row groups that do not divide the rows.
    unit_builder& matrix(std::string_view name, index_t rows, index_t cols,
                         tensor_options options = {}) {
      return add(name, {rows, cols}, tensor_role::matrix, options);
    }
    // `count` weights of rows x cols in one tensor, the experts of a mixture: a batch of matrices.
    // Row groups are those of each slice. Errors: as matrix.
    unit_builder& stack(std::string_view name, index_t count, index_t rows, index_t cols,
                        tensor_options options = {}) {
      return add(name, {count, rows, cols}, tensor_role::matrix, options, true);
    }
    // A kernel of outputs x inputs x spatial extents, one or more of these: a matrix of outputs x
    // (inputs * spatial). One that is to be updated element by element is an elementwise tensor.
    // Errors: as matrix, or if there are fewer than three extents.
    unit_builder& convolution(std::string_view name, std::vector<index_t> extents,
                              tensor_options options = {}) {
      if (extents.size() < 3) {
        throw spec_error(
            fmt::format("convolution '{}.{}' has {} extents; it needs outputs, inputs and at least "
                        "one of the kernel",
                        spec_->units_[unit_].name, name, extents.size()));
      }
      return add(name, std::move(extents), tensor_role::matrix, options);
    }
    unit_builder& vector(std::string_view name, index_t elements, tensor_options options = {}) {
      return add(name, {elements}, tensor_role::vector, options);
    }
    unit_builder& elementwise(std::string_view name, std::vector<index_t> extents,
                              tensor_options options = {}) {
      return add(name, std::move(extents), tensor_role::elementwise, options);
    }
    // A second name for a tensor declared before, given as "unit.tensor": placed once, gathered
    // once a step, its gradient complete when every unit that names it has reduced.
    unit_builder& tied(std::string_view name, std::string_view target) {
      const auto tensor = spec_->find_tensor(target);
      if (!tensor) {
        throw spec_error(
            fmt::format("tensor '{}.{}' is tied to '{}', which is not declared before it",
                        spec_->units_[unit_].name, name, target));
      }
      spec_->check_name(unit_, name);
      spec_->refer(unit_, name, *tensor);
      return *this;
    }

   private:
    friend class model_spec;
    unit_builder(model_spec* spec, std::size_t unit) : spec_(spec), unit_(unit) {}

    unit_builder& add(std::string_view name, std::vector<index_t> extents, tensor_role role,
                      tensor_options options, bool stacked = false) {
      spec_->add_tensor(unit_, name, std::move(extents), role, options, stacked);
      return *this;
    }

    model_spec* spec_;
    std::size_t unit_;
  };

  // Starts a unit: what is gathered, computed with and released together (a transformer block).
  unit_builder unit(std::string_view name) {
    require_printable(name, "unit");
    for (const unit_spec& other : units_) {
      if (other.name == name) throw spec_error(fmt::format("unit '{}' is declared twice", name));
    }
    units_.push_back({std::string(name), {}});
    return {this, units_.size() - 1};
  }

  [[nodiscard]] const std::vector<unit_spec>& units() const { return units_; }
  [[nodiscard]] const std::vector<tensor_spec>& tensors() const { return tensors_; }

  // The tensor with this full name ("unit.tensor"), by its first name or a tied one.
  [[nodiscard]] std::optional<std::size_t> find_tensor(std::string_view full_name) const {
    const auto found = by_name_.find(full_name);
    if (found != by_name_.end()) return found->second;
    return std::nullopt;
  }

 private:
  // Names appear in plans, messages and files, one to a line and separated by blanks; in files as
  // JSON, which is UTF-8, before the marks of parts and states.
  static void require_printable(std::string_view name, std::string_view what) {
    const bool printable =
        std::all_of(name.begin(), name.end(), [](unsigned char c) { return c > ' ' && c != 127; });
    if (name.empty() || !printable) {
      throw spec_error(
          fmt::format("{} name '{}' is empty or has blanks or control characters", what, name));
    }
    if (name.find_first_of("[]/") != name.npos || !detail::is_utf8(name)) {
      throw spec_error(fmt::format(
          "{} name '{}' has '[', ']' or '/', or is not UTF-8; checkpoints could not tell it from "
          "parts and states of others: rename it",
          what, name));
    }
  }

  void check_name(std::size_t unit, std::string_view name) const {
    require_printable(name, "tensor");
    for (const tensor_reference& other : units_[unit].tensors) {
      if (other.name == name) {
        throw spec_error(
            fmt::format("tensor '{}' is declared twice in unit '{}'", name, units_[unit].name));
      }
    }
    const std::string full_name = fmt::format("{}.{}", units_[unit].name, name);
    if (by_name_.contains(full_name)) {
      throw spec_error(fmt::format("tensor name '{}' is declared twice in the model", full_name));
    }
  }

  void add_tensor(std::size_t unit, std::string_view name, std::vector<index_t> extents,
                  tensor_role role, tensor_options options, bool stacked) {
    check_name(unit, name);
    tensor_spec tensor{fmt::format("{}.{}", units_[unit].name, name),
                       std::move(extents),
                       role,
                       options,
                       unit,
                       stacked};
    index_t product = 1;
    for (const index_t extent : tensor.extents) {
      if (extent < 0) {
        throw spec_error(
            fmt::format("tensor '{}' has the negative extent {}", tensor.name, extent));
      }
      // Divided by 64 so that bytes of parameter, gradient and optimizer state fit as well.
      if (extent != 0 && product > std::numeric_limits<index_t>::max() / 64 / extent) {
        throw spec_error(fmt::format("tensor '{}' has too many elements to count", tensor.name));
      }
      product *= extent;
    }
    if (options.row_groups != 1) {
      const index_t rows = stacked ? tensor.extents[1] : tensor.shape().rows;
      if (role != tensor_role::matrix || options.row_groups < 1 ||
          options.row_groups > std::max<index_t>(1, rows) || rows % options.row_groups != 0) {
        throw spec_error(fmt::format(
            "tensor '{}': {} row groups need a matrix whose rows they divide; it is a {} with {} "
            "rows. Groups of unequal size are tensors of their own",
            tensor.name, options.row_groups, to_string(role), rows));
      }
    }
    refer(unit, name, tensors_.size());
    tensors_.push_back(std::move(tensor));
  }

  void refer(std::size_t unit, std::string_view name, std::size_t tensor) {
    units_[unit].tensors.push_back({std::string(name), tensor});
    by_name_.emplace(fmt::format("{}.{}", units_[unit].name, name), tensor);
  }

  std::vector<unit_spec> units_;
  std::vector<tensor_spec> tensors_;
  std::map<std::string, std::size_t, std::less<>> by_name_;  // full and tied names
};

}  // namespace mfsdp::inline MFSDP_ABI
