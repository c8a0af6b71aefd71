// A model in which every optimizer has matrices of its own, and every kind of tensor is there.
#pragma once

#include <string>
#include <vector>

#include "mfsdp/mfsdp.hpp"

namespace checkpoint_models {

// Tensors go to optimizers by their units; sizes are no multiple of anything.
inline mfsdp::model_spec spec_of(const std::vector<std::string>& rules) {
  mfsdp::model_spec spec;
  spec.unit("embedding")
      .elementwise("tokens", {61, 37})
      .vector("scale", 1)
      .vector("empty", 0)
      .matrix("frozen", 5, 7, {.frozen = true});
  for (const std::string& rule : rules) {
    spec.unit(rule)
        .matrix("w.qkv", 3 * 6, 11, {.row_groups = 3})
        .stack("w.experts", 2, 9, 5)
        .matrix("w.none", 0, 4)
        .vector("norm", 11);
  }
  spec.unit("head").elementwise("long", {3000}).tied("output", "embedding.tokens");
  return spec;
}

inline const std::vector<std::string> plain_names{"muon", "normuon", "dion", "shampoo",
                                                  "soap", "adamw",   "sgd"};

// `cut` makes of an optimizer of whole matrices one that runs where they are cut.
template <class Cut>
auto plain_rules(Cut cut) {
  using namespace mfsdp;
  return parameter_groups{for_names("muon.w.*", cut(muon{})),
                          for_names("normuon.w.*", cut(normuon{})),
                          for_names("dion.w.*", cut(dion{.rank = 2})),
                          for_names("shampoo.w.*", cut(shampoo{.frequency = 2})),
                          for_names("soap.w.*", cut(soap{.frequency = 2})),
                          for_names("sgd.*", sgd{}),
                          for_rest(adamw{.learning_rate = 3e-3})};
}

// Those that differ in what states they have: less to compile.
template <class Cut>
auto few_rules(Cut cut) {
  using namespace mfsdp;
  return parameter_groups{for_names("muon.w.*", cut(muon{})),
                          for_names("soap.w.*", cut(soap{.frequency = 2})),
                          for_names("sgd.*", sgd{}), for_rest(adamw{.learning_rate = 3e-3})};
}

}  // namespace checkpoint_models
