// One parameter of a rule on a backend, whose update does nothing but what the rule does.
#pragma once

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "conformance/host_copy.hpp"
#include "mfsdp/concepts.hpp"

namespace mfsdp_test {

template <class O, class B>
class device_trial {
 public:
  device_trial(const O& rule, const B& backend, mfsdp::matrix_shape shape)
      : rule_(rule),
        backend_(backend),
        shape_(shape),
        parameter_(wave(0.3)),
        gradient_(wave(0.8)),
        workspace_(backend_.template allocate<float>(rule.workspace_size(shape))) {
    for (const mfsdp::state_spec& state : rule.states(shape)) {
      states_.push_back(backend_.template allocate<float>(state.elements));
      backend_.fill(states_.back().span(), 0.0f);
    }
  }

  void update(std::int64_t step, double rate = 1) {
    mfsdp::state_spans<O, float> states;
    for (std::size_t i = 0; i < states.size(); ++i) states[i] = states_[i].span();
    rule_.update(backend_, states, mfsdp::matrix_view<float>(parameter_.span().data(), shape_),
                 mfsdp::matrix_view<const float>(gradient_.span().data(), shape_),
                 mfsdp::update_context<float>{.step = step,
                                              .learning_rate_scale = rate,
                                              .workspace = workspace_.span(),
                                              .model_step = step});
  }
  std::vector<float> parameter() { return on_host(backend_, parameter_.span()); }

 private:
  auto wave(double phase) {
    auto buffer = backend_.template allocate<float>(shape_.elements());
    to_backend(backend_,
               host_values<float>(shape_.elements(),
                                  [&](std::ptrdiff_t i) {
                                    return static_cast<float>(
                                        std::sin(phase + 2.3 * static_cast<double>(i)));
                                  }),
               buffer.span());
    return buffer;
  }

  using memory = decltype(std::declval<B&>().template allocate<float>(1));
  O rule_;
  B backend_;
  mfsdp::matrix_shape shape_;
  memory parameter_, gradient_, workspace_;
  std::vector<memory> states_;
};

}  // namespace mfsdp_test
