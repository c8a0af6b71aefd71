// What rules say of options that make no sense, and of those that matter.
#pragma once

#include <doctest/doctest.h>

#include <limits>
#include <set>
#include <string>

#include "mfsdp/error.hpp"

namespace mfsdp_test {

// Whether check() refuses a rule with this in its message, which is "accepted" if it does not.
template <class Rule>
bool refused(const Rule& rule, const std::string& what) {
  std::string message = "accepted";
  try {
    rule.check();
  } catch (const mfsdp::spec_error& e) {
    message = e.what();
  }
  INFO(message);
  const bool found = message.find(what) != std::string::npos;
  CHECK(found);
  return found;
}

// Of a rule of low-rank Adam. Expects that the options it shares with others are looked at, and
// returns the texts of itself and of rules that differ in one of them: seven different ones.
template <class Rule>
std::set<std::string> check_adam_options(const Rule& good) {
  std::set<std::string> texts{good.options()};
  const auto with = [&](auto Rule::* option, auto bad, auto other, const std::string& what) {
    Rule rule = good;
    rule.*option = bad;
    refused(rule, what);
    rule.*option = other;
    texts.insert(rule.options());
  };
  constexpr double nan = std::numeric_limits<double>::quiet_NaN();
  refused(good, "accepted");
  with(&Rule::rank, 0, good.rank + 1, fmt::format("{}: rank is 0", Rule::name));
  with(&Rule::learning_rate, -1.0, 0.5, "learning_rate is -1");
  with(&Rule::learning_rate, nan, 0.5, "learning_rate is nan");
  with(&Rule::beta1, 1.0, 0.5, "beta1 is 1");
  with(&Rule::beta2, -1.0, 0.5, "beta2 -1");
  with(&Rule::epsilon, 0.0, 0.5, "epsilon is 0");
  with(&Rule::weight_decay, -1.0, 0.5, "weight_decay is -1");
  with(&Rule::weight_decay, nan, 0.5, "weight_decay is nan");
  CHECK(texts.size() == 7);
  return texts;
}

}  // namespace mfsdp_test
