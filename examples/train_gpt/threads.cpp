// Ranks as threads of this process.
#include "choices.hpp"
#include "engines.hpp"

namespace train_gpt {

engine threads(int ranks) {
  return {.ranks = ranks,
          .train = [ranks](const settings& how, const text& data, const progress& report) {
            return train(mfsdp::thread_world{ranks}, how, data, report);
          }};
}

}  // namespace train_gpt
