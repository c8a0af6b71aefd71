// One training run on several sites, each with data of its own.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lordo/diagnostics.hpp"
#include "mfsdp/view.hpp"
#include "rules.hpp"
#include "train_gpt/text.hpp"
#include "train_gpt/transformer.hpp"

namespace train_sites {

using train_gpt::text;

struct settings {
  std::vector<int> ranks{1, 1, 1, 1};  // of each site
  int steps = 512;
  int sequences = 32;  // of all sites together, in a step
  train_gpt::transformer_shape shape{.layers = 3, .heads = 4, .width = 64, .context = 64};
  std::uint64_t seed = 1;
  int period = 32;                 // steps between two meetings
  int rank = 8;                    // of what is low-rank
  double rate = 0;                 // of the matrices; 0: the method's own
  double elementwise_rate = 6e-3;  // AdamW's, on everything else
  int warmup = 50;                 // of the steps a quarter at most
  double cooldown = 0.3;           // of the steps
  int validation_windows = 1536;
  int curve_every = 16;  // steps between two points of the loss curve

  [[nodiscard]] int sites() const { return static_cast<int>(ranks.size()); }
};

struct outcome {
  std::vector<std::pair<int, double>> losses;  // training loss of all sites, nats per byte
  double validation = 0;                       // nats per byte, after the last meeting
  double seconds = 0;
  // Numbers that a site sends to each other one, in all steps and in `step` itself.
  double sent = 0;
  double sent_in_step = 0;
  std::map<std::string, mfsdp::index_t, std::less<>> states;  // numbers of a site, by name
  mfsdp::index_t parameters = 0;
  mfsdp::index_t matrix_parameters = 0;
  lordo::basis_report bases;  // of the first site, at the end
};

// A low-rank exchange is so much smaller that four of them fit into one of whole matrices.
inline constexpr int exchanges_a_period = 4;

// Trains with two of these rules. Errors: std::invalid_argument if the sequences cannot be shared
// out evenly, or if the run ends between two meetings.
outcome run(const settings& how, const text& data, const rules& chosen);

}  // namespace train_sites
