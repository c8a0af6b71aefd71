// Whether a checkpoint is of this model: strict, and all that differs in one message.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint/json.hpp"
#include "mfsdp/checkpoint/manifest.hpp"

namespace mfsdp::inline MFSDP_ABI {

struct load_options {
  // Parameters only: states and counts are then as initialize leaves them, and optimizers do not
  // matter.
  bool parameters_only = false;
  // Converts arrays that are stored in another type, through float and to nearest. If not, they are
  // a difference like any other.
  bool convert_dtype = false;
  // The name that a tensor of the model ("unit.tensor") has in the checkpoint, if it is another.
  std::function<std::string(std::string_view)> stored_name{};
  // The checkpoint of this step and no other; if not, the latest.
  std::optional<std::int64_t> step{};
};

namespace detail {

// Where what a model needs is in a checkpoint.
struct matched_manifest {
  std::vector<std::size_t> arrays;   // of each of the model's arrays: the stored one
  std::vector<std::size_t> tensors;  // likewise
  std::vector<std::string> changed_options;
};

// Names by what is wrong with them.
class difference_list {
 public:
  void add(std::string_view kind, const std::string& name) {
    std::string& names = by_kind_[std::string(kind)];
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  }
  void require_none(std::string_view where) const {
    if (by_kind_.empty()) return;
    std::string text;
    for (const auto& [kind, names] : by_kind_) text += fmt::format("\n  {}: {}", kind, names);
    throw checkpoint_error(fmt::format("{}: the checkpoint is of another model{}", where, text));
  }

 private:
  std::map<std::string, std::string> by_kind_;
};

[[nodiscard]] inline std::string extents_text(const std::vector<index_t>& shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

// "'block.0.up'", or "'block.0.up' momentum of muon".
[[nodiscard]] inline std::string array_text(const stored_array& array) {
  std::string text = fmt::format("'{}'", shown(array.tensor));
  if (array.matrix > 0) text += fmt::format(" #{}", array.matrix);
  if (!array.is_parameter()) {
    text += fmt::format(" {} of {}", shown(array.state), shown(array.optimizer));
  }
  return text;
}

// Which words of two texts of as many words differ: " (0.02 to 0.5)"; nothing for other texts.
[[nodiscard]] inline std::string changed_words(const std::string& then, const std::string& now) {
  const auto words_of = [](const std::string& text) {
    std::istringstream in(text);
    return std::vector<std::string>(std::istream_iterator<std::string>(in), {});
  };
  const std::vector<std::string> before = words_of(then);
  const std::vector<std::string> after = words_of(now);
  if (before.size() != after.size() || before.size() < 2) return {};
  std::string changes;
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (before[i] == after[i]) continue;
    changes +=
        fmt::format("{}{} to {}", changes.empty() ? "" : ", ", shown(before[i]), shown(after[i]));
  }
  return changes.empty() ? "" : fmt::format(" ({})", changes);
}

class manifest_matcher {
 public:
  // `model` describes the model, `stored` the checkpoint at `where`.
  manifest_matcher(const manifest& stored, const manifest& model, const load_options& options,
                   std::string_view where)
      : stored_(stored), model_(model), options_(options), where_(where) {}

  // Errors: checkpoint_error with all differences.
  [[nodiscard]] matched_manifest match() {
    match_tensors();
    match_arrays();
    differences_.require_none(where_);
    if (!options_.parameters_only) compare_options();
    return std::move(result_);
  }

 private:
  void match_tensors() {
    std::map<std::string_view, std::size_t> by_name;
    for (std::size_t t = 0; t < stored_.tensors.size(); ++t) {
      by_name.emplace(stored_.tensors[t].name, t);
    }
    std::set<std::size_t> used;
    for (const stored_tensor& tensor : model_.tensors) {
      std::string name = options_.stored_name ? options_.stored_name(tensor.name) : tensor.name;
      const auto found = by_name.find(name);
      stored_names_.emplace(tensor.name, name);
      result_.tensors.push_back(found == by_name.end() ? stored_.tensors.size() : found->second);
      if (found == by_name.end()) {
        differences_.add("not in the checkpoint",
                         name == tensor.name
                             ? fmt::format("'{}'", name)
                             : fmt::format("'{}', for '{}'", shown(name), tensor.name));
        continue;
      }
      if (!used.insert(found->second).second) {
        differences_.add("wanted twice", fmt::format("'{}'", name));
      }
      compare(tensor, stored_.tensors[found->second]);
    }
    for (std::size_t t = 0; t < stored_.tensors.size(); ++t) {
      if (used.contains(t)) continue;
      differences_.add("not in the model", fmt::format("'{}'", shown(stored_.tensors[t].name)));
    }
  }

  void compare(const stored_tensor& here, const stored_tensor& there) {
    if (here.shape != there.shape) {
      differences_.add("of another shape",
                       fmt::format("'{}' ({} there, {} here)", here.name, extents_text(there.shape),
                                   extents_text(here.shape)));
      return;
    }
    if (options_.parameters_only) return;
    if (here.role != there.role) {
      differences_.add("of another role",
                       fmt::format("'{}' ({} there, {} here)", here.name, there.role, here.role));
    }
    const auto kind = [](const stored_tensor& tensor) {
      return tensor.frozen ? std::string("frozen") : shown(tensor.optimizer);
    };
    if (kind(here) != kind(there)) {
      differences_.add("of another optimizer",
                       fmt::format("'{}' ({} there, {} here)", here.name, kind(there), kind(here)));
    } else if (here.updates.size() != there.updates.size()) {
      differences_.add("of another number of matrices",
                       fmt::format("'{}' ({} there, {} here)", here.name, there.updates.size(),
                                   here.updates.size()));
    }
  }

  // States of tensors that differ anyway are not listed again.
  void match_arrays() {
    using key = std::tuple<std::string_view, index_t, std::string_view>;
    std::map<key, std::size_t> by_key;
    for (std::size_t a = 0; a < stored_.arrays.size(); ++a) {
      const stored_array& array = stored_.arrays[a];
      by_key.emplace(key(array.tensor, array.matrix, array.state), a);
    }
    std::set<std::string_view> comparable;
    for (std::size_t t = 0; t < model_.tensors.size(); ++t) {
      if (result_.tensors[t] == stored_.tensors.size()) continue;
      const stored_tensor& there = stored_.tensors[result_.tensors[t]];
      if (there.optimizer == model_.tensors[t].optimizer &&
          there.updates.size() == model_.tensors[t].updates.size() &&
          there.shape == model_.tensors[t].shape) {
        comparable.insert(there.name);
      }
    }
    std::set<std::size_t> used;
    for (const stored_array& array : model_.arrays) {
      const std::string& name = stored_names_.at(array.tensor);
      const auto found = by_key.find(key(name, array.matrix, array.state));
      const bool wanted = array.is_parameter() || !options_.parameters_only;
      const bool known = wanted && found != by_key.end();
      result_.arrays.push_back(known ? found->second : stored_.arrays.size());
      if (!wanted || (!array.is_parameter() && !comparable.contains(name))) continue;
      if (!known) {
        if (!array.is_parameter()) differences_.add("not in the checkpoint", array_text(array));
        continue;
      }
      used.insert(found->second);
      const stored_array& there = stored_.arrays[found->second];
      if (there.elements != array.elements) {
        if (array.is_parameter()) continue;  // of another shape
        differences_.add("of another size", fmt::format("{} ({} there, {} here)", array_text(array),
                                                        there.elements, array.elements));
      } else if (there.dtype != array.dtype && !options_.convert_dtype) {
        differences_.add(
            "of another type (see load_options.convert_dtype)",
            fmt::format("{} ({} there, {} here)", array_text(array), there.dtype, array.dtype));
      }
    }
    if (options_.parameters_only) return;
    for (std::size_t a = 0; a < stored_.arrays.size(); ++a) {
      const stored_array& array = stored_.arrays[a];
      if (used.contains(a) || array.is_parameter() || !comparable.contains(array.tensor)) continue;
      differences_.add("not in the model", array_text(array));
    }
  }

  void compare_options() {
    const auto changed = [&](std::string_view what, const std::string& then,
                             const std::string& now) {
      if (then == now) return;
      result_.changed_options.push_back(fmt::format("{}: was '{}', is '{}'{}", what, shown(then),
                                                    shown(now), changed_words(then, now)));
    };
    for (std::size_t i = 0; i < model_.rules.size(); ++i) {
      const stored_rule& now = model_.rules[i];
      // Groups may have equal names: those at the same place, else the first of the name.
      auto then =
          stored_.rules.begin() + static_cast<std::ptrdiff_t>(std::min(i, stored_.rules.size()));
      if (then == stored_.rules.end() || then->name != now.name) {
        then = std::ranges::find(stored_.rules, now.name, &stored_rule::name);
      }
      if (then == stored_.rules.end()) {
        result_.changed_options.push_back(
            fmt::format("optimizer '{}' is new: was not there", now.name));
      } else {
        changed(now.name, then->options, now.options);
      }
    }
    for (const stored_rule& then : stored_.rules) {
      if (std::ranges::find(model_.rules, then.name, &stored_rule::name) != model_.rules.end()) {
        continue;
      }
      result_.changed_options.push_back(
          fmt::format("optimizer '{}' is gone: was '{}'", shown(then.name), shown(then.options)));
    }
    changed("precision", stored_.precision, model_.precision);
    changed("rounding_seed", fmt::format("{}", stored_.rounding_seed),
            fmt::format("{}", model_.rounding_seed));
  }

  const manifest& stored_;
  const manifest& model_;
  const load_options& options_;
  std::string_view where_;
  difference_list differences_;
  std::map<std::string_view, std::string> stored_names_;  // of the model's tensors
  matched_manifest result_;
};

}  // namespace detail

}  // namespace mfsdp::inline MFSDP_ABI
