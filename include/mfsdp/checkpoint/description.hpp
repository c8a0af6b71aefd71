// A model as a manifest: what a checkpoint of it has, before anything is known of values and files.
#pragma once

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mfsdp/checkpoint/division.hpp"
#include "mfsdp/checkpoint/manifest.hpp"
#include "mfsdp/checkpoint/types.hpp"
#include "mfsdp/plan_text.hpp"
#include "mfsdp/runtime/arrays.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Tensors in the order of the spec; arrays in that of model_persistence::arrays(), without parts.
[[nodiscard]] inline manifest describe_arrays(const plan& p, std::span<const model_array> arrays,
                                              std::span<const model_rule> rules) {
  manifest m;
  for (const model_rule& rule : rules) m.rules.push_back({rule.name, rule.options});
  std::vector<std::size_t> first_item(p.tensors.size(), p.items.size());
  for (std::size_t i = p.items.size(); i-- > 0;) first_item[p.items[i].tensor] = i;
  for (std::size_t t = 0; t < p.tensors.size(); ++t) {
    const tensor_spec& tensor = p.spec.tensors()[t];
    stored_tensor& stored = m.tensors.emplace_back();
    stored.name = tensor.name;
    stored.shape = tensor.extents;
    stored.role = to_string(tensor.role);
    stored.frozen = p.tensors[t].optimizer < 0;
    if (stored.frozen) continue;
    stored.optimizer = rules[static_cast<std::size_t>(p.tensors[t].optimizer)].kind;
    stored.updates.resize(static_cast<std::size_t>(tensor.matrices()));
  }
  for (const model_array& array : arrays) {
    stored_array& stored = m.arrays.emplace_back();
    stored.tensor = m.tensors[array.tensor].name;
    stored.dtype = dtype_of(array.type);
    stored.elements = array.elements;
    if (!array.is_state()) continue;
    stored.matrix = static_cast<index_t>(array.item - first_item[array.tensor]);
    stored.optimizer = array.optimizer;
    stored.state = array.state;
  }
  return m;
}

template <class Model>
[[nodiscard]] manifest describe_model(Model& model) {
  const auto persistence = model.persistence();
  manifest m = describe_arrays(model.plan(), persistence.arrays(), persistence.rules());
  m.plan_hash = fmt::format("{:016x}", plan_hash(model.plan()));
  m.ranks = model.plan().ranks;
  m.replicas = model.ranks() / model.plan().ranks;
  m.site = model.site();
  m.sites = model.sites();
  m.placement = model.plan().placement;
  m.precision = persistence.precision_text();
  m.rounding_seed = persistence.options().rounding_seed;
  return m;
}

// Which of the matrices of its tensor an item is.
[[nodiscard]] inline std::size_t matrix_of_item(const placement_item& item) {
  return static_cast<std::size_t>(item.elements() == 0 ? 0 : item.offset / item.elements());
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
