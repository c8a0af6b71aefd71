// What a model consists of, for those who go through all of it: every parameter, and every
// optimizer state of every matrix, wherever they are held.
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mfsdp/planner.hpp"

namespace mfsdp::inline MFSDP_ABI {

// A parameter, or one state of one of its matrices. Its elements are in row-major order; what ranks
// hold of it are ranges of them.
struct model_array {
  std::size_t tensor = 0;        // of the spec
  std::size_t item = 0;          // of a state: of the plan, the matrix that it is of
  std::string_view optimizer{};  // of a state: whose; empty for a parameter
  std::string_view state{};
  std::string_view type{};  // type_name of what is stored
  index_t elements = 0;
  bool everywhere = false;  // all ranks of a shard group hold all of it

  [[nodiscard]] bool is_state() const { return !state.empty(); }
};

// A range of an array that a rank holds.
struct held_part {
  std::size_t array = 0;  // of model_persistence::arrays()
  std::size_t item = 0;   // of the plan: what placed it here
  index_t first = 0;      // of the array's elements
};

// An optimizer of a model.
struct model_rule {
  std::string name;       // its kind, and the label of its group
  std::string_view kind;  // whose states it keeps
  std::string options;    // as the optimizer writes them
};

// How far a model has been trained.
struct training_counts {
  std::int64_t steps = 0;
  std::vector<std::int64_t> updates;  // by item of the plan
};

namespace detail {

// The optimizer whose states these are: a rule that does the same as another by other means says so
// with `states_of`, so that a checkpoint of one loads into the other.
template <class O>
[[nodiscard]] constexpr std::string_view name_of_states() {
  if constexpr (requires {
                  { O::states_of } -> std::convertible_to<std::string_view>;
                }) {
    return O::states_of;
  } else {
    return O::name;
  }
}

// All arrays: the parameter of each tensor, then the states of each item in order.
struct array_list {
  std::vector<model_array> all;
  std::vector<std::size_t> first_state;  // by item

  template <class Precision, class Members>
  [[nodiscard]] static array_list of(const plan& p, const Members& members, const Precision&) {
    array_list list;
    for (std::size_t t = 0; t < p.tensors.size(); ++t) {
      list.all.push_back({.tensor = t,
                          .type = p.tensors[t].optimizer < 0
                                      ? type_name<typename Precision::compute>()
                                      : type_name<typename Precision::master>(),
                          .elements = p.spec.tensors()[t].elements(),
                          .everywhere = p.replicated});
    }
    for (const placement_item& item : p.items) {
      list.first_state.push_back(list.all.size());
      const int optimizer = p.tensors[item.tensor].optimizer;
      if (optimizer < 0 || item.elements() == 0) continue;
      with_member(members, static_cast<std::size_t>(optimizer), [&]<class O>(const O& rule) {
        const matrix_shape shape = O::whole_matrix ? item.shape : matrix_shape{1, item.elements()};
        for (const state_spec& state : rule.states(shape)) {
          list.all.push_back(
              {.tensor = item.tensor,
               .item = list.first_state.size() - 1,
               .optimizer = name_of_states<O>(),
               .state = state.name,
               .type = state.exact ? type_name<float>() : type_name<typename Precision::state>(),
               .elements = state.elements,
               .everywhere = p.replicated || GathersMatrices<O>});
        }
      });
    }
    return list;
  }
};

// What the optimizers are called and say about their options.
template <class Members>
[[nodiscard]] std::vector<model_rule> rules_of(const plan& p, const Members& members) {
  std::vector<model_rule> rules;
  const auto add = [&]<class O>(const O& member) {
    constexpr std::string_view kind = name_of_states<O>();
    const std::string label = p.optimizers[rules.size()].substr(std::string_view(O::name).size());
    model_rule& rule = rules.emplace_back(model_rule{std::string(kind) + label, kind, {}});
    rule.options = options_of(member);
  };
  std::apply([&](const auto&... member) { (add(member), ...); }, members);
  return rules;
}

}  // namespace detail

}  // namespace mfsdp::inline MFSDP_ABI
