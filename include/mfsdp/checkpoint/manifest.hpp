// The manifest of a checkpoint: what was saved, by names and ranges of elements, and in which files
// it lies. Nothing in it but the cuts of parts depends on ranks, owners or engine.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint/json.hpp"
#include "mfsdp/checkpoint/safetensors.hpp"
#include "mfsdp/checkpoint/types.hpp"
#include "mfsdp/error.hpp"
#include "mfsdp/fnv1a.hpp"
#include "mfsdp/spec.hpp"
#include "mfsdp/view.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Elements first ... first + count - 1 of an array, in files[file] under array_key.
struct stored_part {
  std::size_t file = 0;
  index_t first = 0;
  index_t count = 0;

  friend bool operator==(const stored_part&, const stored_part&) = default;
};

// A parameter, or one state of one matrix.
struct stored_array {
  std::string tensor;
  index_t matrix = 0;     // which of the tensor's matrices a state is of
  std::string optimizer;  // empty for a parameter
  std::string state;      // empty for a parameter
  std::string dtype;      // "F32", "BF16" or "F16"
  index_t elements = 0;
  std::uint64_t checksum = 0;      // the sum of those of any parts
  std::vector<stored_part> parts;  // in order, covering [0, elements) once

  [[nodiscard]] bool is_parameter() const { return optimizer.empty(); }
  friend bool operator==(const stored_array&, const stored_array&) = default;
};

struct stored_file {
  std::string name;  // in the checkpoint's folder
  std::int64_t bytes = 0;

  friend bool operator==(const stored_file&, const stored_file&) = default;
};

struct stored_tensor {
  std::string name;  // "unit.tensor"
  std::vector<index_t> shape;
  std::string role;  // as to_string(tensor_role) has it
  bool frozen = false;
  std::string optimizer;              // empty if frozen
  std::vector<std::int64_t> updates;  // of each matrix; none if frozen

  friend bool operator==(const stored_tensor&, const stored_tensor&) = default;
};

struct stored_rule {
  std::string name;
  std::string options;

  friend bool operator==(const stored_rule&, const stored_rule&) = default;
};

struct manifest {
  std::int64_t step = 0;
  std::string plan_hash;
  int ranks = 1;
  int replicas = 1;
  int site = 0;
  int sites = 1;
  std::string placement;
  std::string precision;
  std::uint64_t rounding_seed = 0;
  std::vector<stored_rule> rules;
  std::vector<stored_file> files;
  std::vector<stored_tensor> tensors;
  std::vector<stored_array> arrays;  // one for each tensor's parameter, and the states
  std::string trainer;               // the trainer's own: any UTF-8

  friend bool operator==(const manifest&, const manifest&) = default;
};

// The name of elements [first, first + count) of an array in a safetensors file:
//   block.0.mlp.up                     a parameter whole, in the tensor's shape
//   block.0.mlp.up[1024:2048]          a part of it
//   block.0.mlp.up/muon.momentum       a state, flat
//   block.0.qkv[#2]/muon.momentum      of the third of several matrices; parts likewise
[[nodiscard]] inline std::string array_key(const stored_array& array, const stored_tensor& tensor,
                                           index_t first, index_t count) {
  std::string key = array.tensor;
  if (!array.is_parameter()) {
    if (tensor.updates.size() > 1) key += fmt::format("[#{}]", array.matrix);
    key += fmt::format("/{}.{}", array.optimizer, array.state);
  }
  if (count != array.elements) key += fmt::format("[{}:{}]", first, first + count);
  return key;
}

// Its shape there: that of the tensor if it is a whole parameter, whole leading rows if it is, else
// flat.
[[nodiscard]] inline std::vector<index_t> array_shape(const stored_array& array,
                                                      const stored_tensor& tensor, index_t first,
                                                      index_t count) {
  if (!array.is_parameter()) return {count};
  if (count == array.elements) return tensor.shape;
  const index_t rows = tensor.shape[0];  // a part of it, so it has elements
  const index_t row = array.elements / rows;
  if (first % row != 0 || count % row != 0) return {count};
  std::vector<index_t> shape = tensor.shape;
  shape[0] = count / row;
  return shape;
}

namespace detail {

inline constexpr std::string_view manifest_format = "mfsdp checkpoint";
inline constexpr std::int64_t manifest_version = 1;
inline constexpr json_limits manifest_limits{std::size_t{256} << 20, 5};
inline constexpr std::int64_t most_ranks = 1 << 20;
// As many digits as the names of folders have; what counts on from here does not overflow.
inline constexpr std::int64_t most_steps = 999'999'999'999;
// So that bytes can be counted, too; as in model_spec.
inline constexpr index_t most_elements = std::numeric_limits<index_t>::max() / 64;

// A field of the manifest's object and what it is, in the order in which they are written.
template <class Json>
void add_member(std::string& text, std::string_view name, const Json& value) {
  text +=
      fmt::format("{} \"{}\": {}", text == "{\n" ? "" : ",\n", name, dump_json(value, "manifest"));
}

// A list with a line for each element.
template <class T, class Convert>
void add_list(std::string& text, std::string_view name, const std::vector<T>& elements,
              Convert convert) {
  text += fmt::format(",\n \"{}\": [", name);
  for (const T& element : elements) {
    text += fmt::format("{}\n  {}", &element == &elements[0] ? "" : ",",
                        dump_json(convert(element), "manifest"));
  }
  text += "]";
}

// The end of a manifest, for the text before it: a sum over it, so that no bit changes unnoticed.
[[nodiscard]] inline std::string manifest_end(std::string_view text) {
  return fmt::format(",\n \"checksum\": \"{:016x}\"\n}}\n", fnv1a(text));
}

// Checks one manifest; each function one kind of entry.
class manifest_parser {
 public:
  manifest_parser(const json& root, std::string_view text, std::string_view where)
      : root_(root, where), text_(text) {}

  manifest parse() {
    require_format();
    require_whole_text();
    root_.require_members({"format", "version", "step", "plan_hash", "ranks", "replicas", "site",
                           "sites", "placement", "precision", "rounding_seed", "rules", "files",
                           "tensors", "arrays", "trainer", "checksum"});
    result_.step = root_["step"].integer(0, most_steps);
    result_.plan_hash = root_["plan_hash"].line();
    result_.ranks = static_cast<int>(root_["ranks"].integer(1, most_ranks));
    result_.replicas = static_cast<int>(root_["replicas"].integer(1, most_ranks));
    result_.sites = static_cast<int>(root_["sites"].integer(1, most_ranks));
    result_.site = static_cast<int>(root_["site"].integer(0, result_.sites - 1));
    result_.placement = root_["placement"].line();
    result_.precision = root_["precision"].line();
    result_.rounding_seed = root_["rounding_seed"].unsigned_integer();
    result_.trainer = root_["trainer"].text();
    for_each("rules", [&](const json_field& field) { parse_rule(field); });
    for_each("files", [&](const json_field& field) { parse_file(field); });
    for_each("tensors", [&](const json_field& field) { parse_tensor(field); });
    for_each("arrays", [&](const json_field& field) { parse_array(field); });
    require_parameters();
    return std::move(result_);
  }

 private:
  template <class Parse>
  void for_each(std::string_view name, Parse parse) const {
    const json_field list = root_[name];
    for (std::size_t i = 0; i < list.size(); ++i) parse(list[i]);
  }

  // First, so that a file of another kind or a later version is called what it is.
  void require_format() const {
    if (!root_.has("format") || !root_.has("version") ||
        root_["format"].text() != manifest_format) {
      root_.fail(fmt::format("is no manifest: it has no format '{}'", manifest_format));
    }
    const std::int64_t version =
        root_["version"].integer(1, std::numeric_limits<std::int64_t>::max());
    if (version != manifest_version) {
      root_["version"].fail(fmt::format("is {}; this library reads {}: use the one that wrote it",
                                        version, manifest_version));
    }
  }

  void require_whole_text() const {
    const std::size_t length = manifest_end("").size();
    const std::string_view before = text_.substr(0, text_.size() - std::min(length, text_.size()));
    if (text_.substr(before.size()) != manifest_end(before)) {
      root_.fail(
          "is not what was written, by its checksum: the file is damaged; take another checkpoint");
    }
  }

  void parse_rule(const json_field& field) {
    field.require_members({"name", "options"});
    result_.rules.push_back({field["name"].name(), field["options"].text()});
  }

  void parse_file(const json_field& field) {
    field.require_members({"name", "bytes"});
    const std::string& name = field["name"].line();
    // Nothing that leaves the folder, hides in it, or is not a name on some system.
    if (name.empty() || name.size() > 255 || name[0] == '.' ||
        name.find_first_of("/\\:") != std::string::npos || name == "manifest.json") {
      field["name"].fail(
          fmt::format("is '{}'; it must be the plain name of a file in the folder", shown(name)));
    }
    if (!file_names_.insert(name).second) {
      field["name"].fail(fmt::format("is '{}', which is there twice", shown(name)));
    }
    result_.files.push_back(
        {name, field["bytes"].integer(0, std::numeric_limits<std::int64_t>::max())});
    unclaimed_.push_back(result_.files.back().bytes);
  }

  void parse_tensor(const json_field& field) {
    field.require_members({"name", "shape", "role", "frozen", "optimizer", "updates"});
    stored_tensor tensor;
    tensor.name = field["name"].name();
    tensor.role = field["role"].line();
    if (tensor.role != to_string(tensor_role::matrix) &&
        tensor.role != to_string(tensor_role::vector) &&
        tensor.role != to_string(tensor_role::elementwise)) {
      field["role"].fail(fmt::format("is '{}', no role of a tensor", shown(tensor.role)));
    }
    index_t elements = 1;
    const json_field shape = field["shape"];
    for (std::size_t i = 0; i < shape.size(); ++i) {
      const index_t extent = shape[i].integer(0, most_elements);
      if (extent != 0 && elements > most_elements / extent) {
        shape.fail("has too many elements to count");
      }
      tensor.shape.push_back(extent);
      elements *= extent;
    }
    tensor.frozen = field["frozen"].boolean();
    tensor.optimizer = field["optimizer"].line();
    const json_field updates = field["updates"];
    for (std::size_t i = 0; i < updates.size(); ++i) {
      tensor.updates.push_back(updates[i].integer(0, result_.step));
    }
    if (tensor.frozen != tensor.optimizer.empty() || (tensor.frozen && !tensor.updates.empty())) {
      field.fail("must be frozen or have an optimizer, and only then updates");
    }
    if (!by_name_.emplace(tensor.name, known_tensor{result_.tensors.size(), elements}).second) {
      field["name"].fail(fmt::format("is '{}', which is there twice", shown(tensor.name)));
    }
    result_.tensors.push_back(std::move(tensor));
  }

  void parse_array(const json_field& field) {
    field.require_members(
        {"tensor", "matrix", "optimizer", "state", "dtype", "elements", "checksum", "parts"});
    stored_array array;
    array.tensor = field["tensor"].text();
    const auto known = by_name_.find(array.tensor);
    if (known == by_name_.end()) {
      field["tensor"].fail(
          fmt::format("is '{}', which is not in the list of tensors", shown(array.tensor)));
    }
    const stored_tensor& tensor = result_.tensors[known->second.index];
    array.optimizer = field["optimizer"].line();
    array.state = field["state"].line();
    array.matrix = field["matrix"].integer(0, most_elements);
    array.dtype = field["dtype"].text();
    if (!is_stored_dtype(array.dtype)) {
      field["dtype"].fail(fmt::format("is '{}'; it must be F32, BF16 or F16", shown(array.dtype)));
    }
    array.elements = field["elements"].integer(0, most_elements);
    array.checksum = parse_checksum(field["checksum"]);
    if (array.optimizer.empty() != array.state.empty()) {
      field.fail("must have both an optimizer and a state, or neither");
    }
    if (array.is_parameter()) {
      if (array.matrix != 0) field["matrix"].fail("must be 0 for a parameter");
      if (array.elements != known->second.elements) {
        field["elements"].fail(fmt::format("is {}; the tensor '{}' has {}", array.elements,
                                           shown(array.tensor), known->second.elements));
      }
    } else {
      if (array.optimizer != tensor.optimizer) {
        field["optimizer"].fail(fmt::format("is '{}'; that of the tensor '{}' is '{}'",
                                            shown(array.optimizer), shown(array.tensor),
                                            shown(tensor.optimizer)));
      }
      if (array.matrix >= static_cast<index_t>(tensor.updates.size())) {
        field["matrix"].fail(fmt::format("is {}; the tensor '{}' has {}", array.matrix,
                                         shown(array.tensor), tensor.updates.size()));
      }
    }
    if (!keys_.emplace(known->second.index, array.matrix, array.state).second) {
      field.fail("is there twice");
    }
    parse_parts(field["parts"], array);
    result_.arrays.push_back(std::move(array));
  }

  void parse_parts(const json_field& parts, stored_array& array) {
    const std::int64_t width = safetensors_bits(array.dtype) / 8;
    index_t next = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const json_field field = parts[i];
      field.require_members({"file", "first", "count"});
      stored_part part;
      const auto files = static_cast<std::int64_t>(result_.files.size());
      part.file = static_cast<std::size_t>(field["file"].integer(0, files - 1));
      part.first = field["first"].integer(0, array.elements);
      if (part.first != next) {
        field["first"].fail(fmt::format("is {}; the part before it ends at {}", part.first, next));
      }
      part.count = field["count"].integer(1, array.elements - next);
      next += part.count;
      if (part.count * width > unclaimed_[part.file]) {
        field["count"].fail(fmt::format("is {}; '{}' has no room for that many", part.count,
                                        shown(result_.files[part.file].name)));
      }
      unclaimed_[part.file] -= part.count * width;
      array.parts.push_back(part);
    }
    if (next != array.elements) {
      parts.fail(fmt::format("end at element {} of {}", next, array.elements));
    }
  }

  [[nodiscard]] static std::uint64_t parse_checksum(const json_field& field) {
    const std::string& digits = field.text();
    std::uint64_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, status] = std::from_chars(digits.data(), end, value, 16);
    if (digits.size() != 16 || status != std::errc{} || stop != end) {
      field.fail(fmt::format("is '{}'; it must be 16 hexadecimal digits", shown(digits)));
    }
    return value;
  }

  void require_parameters() const {
    std::string missing;
    for (std::size_t t = 0; t < result_.tensors.size(); ++t) {
      if (keys_.contains(std::tuple(t, index_t{0}, std::string()))) continue;
      missing += fmt::format("{}'{}'", missing.empty() ? "" : ", ", shown(result_.tensors[t].name));
    }
    if (!missing.empty()) root_["arrays"].fail("has no parameter for " + missing);
  }

  struct known_tensor {
    std::size_t index;
    index_t elements;
  };

  json_field root_;
  std::string_view text_;
  manifest result_;
  std::set<std::string> file_names_;
  std::vector<std::int64_t> unclaimed_;  // bytes of each file that no part has been given
  std::map<std::string, known_tensor> by_name_;
  std::set<std::tuple<std::size_t, index_t, std::string>> keys_;  // tensor, matrix, state
};

}  // namespace detail

// The manifest that to_text wrote. Errors: checkpoint_error, beginning with `where` and the field,
// for anything that is not a whole and sound one: parts that do not cover an array once, arrays of
// unknown tensors, names of files that leave the folder.
[[nodiscard]] inline manifest parse_manifest(std::string_view text,
                                             std::string_view where = "manifest") {
  const detail::json root = [&] {
    try {
      return detail::parse_json(text, detail::manifest_limits, where);
    } catch (const checkpoint_error& fault) {
      throw checkpoint_error(fmt::format(
          "{}: the manifest is damaged or incomplete; take another checkpoint", fault.what()));
    }
  }();
  return detail::manifest_parser(root, text, where).parse();
}

// The manifest as JSON. Errors: checkpoint_error if parse_manifest would refuse it.
[[nodiscard]] inline std::string to_text(const manifest& m) {
  using namespace detail;
  using members = nlohmann::ordered_json;
  std::string text = "{\n";
  add_member(text, "format", json(manifest_format));
  add_member(text, "version", json(manifest_version));
  add_member(text, "step", json(m.step));
  add_member(text, "plan_hash", json(m.plan_hash));
  add_member(text, "ranks", json(m.ranks));
  add_member(text, "replicas", json(m.replicas));
  add_member(text, "site", json(m.site));
  add_member(text, "sites", json(m.sites));
  add_member(text, "placement", json(m.placement));
  add_member(text, "precision", json(m.precision));
  add_member(text, "rounding_seed", json(m.rounding_seed));
  add_member(text, "trainer", json(m.trainer));
  add_list(text, "rules", m.rules, [](const stored_rule& rule) {
    return members{{"name", rule.name}, {"options", rule.options}};
  });
  add_list(text, "files", m.files, [](const stored_file& file) {
    return members{{"name", file.name}, {"bytes", file.bytes}};
  });
  add_list(text, "tensors", m.tensors, [](const stored_tensor& tensor) {
    return members{{"name", tensor.name},           {"shape", tensor.shape},
                   {"role", tensor.role},           {"frozen", tensor.frozen},
                   {"optimizer", tensor.optimizer}, {"updates", tensor.updates}};
  });
  add_list(text, "arrays", m.arrays, [](const stored_array& array) {
    members parts = members::array();
    for (const stored_part& part : array.parts) {
      parts.push_back(members{{"file", part.file}, {"first", part.first}, {"count", part.count}});
    }
    return members{{"tensor", array.tensor},
                   {"matrix", array.matrix},
                   {"optimizer", array.optimizer},
                   {"state", array.state},
                   {"dtype", array.dtype},
                   {"elements", array.elements},
                   {"checksum", fmt::format("{:016x}", array.checksum)},
                   {"parts", std::move(parts)}};
  });
  text += manifest_end(text);
  static_cast<void>(parse_manifest(text, "this manifest cannot be written"));
  return text;
}

}  // namespace mfsdp::inline MFSDP_ABI
