// What can go wrong, one type for each kind of cure. The only includer of fmt.
#pragma once

#include "mfsdp/config.hpp"
// After what is set for it there.
#include <fmt/format.h>

#include <stdexcept>

namespace mfsdp::inline MFSDP_ABI {

// Base of everything this library throws.
struct error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The model description, the placement or the optimizer options are wrong: fix the program.
struct spec_error : error {
  using error::error;
};

// Ranks disagree about the plan, or a plan does not fit its model: give all ranks the same input.
struct plan_error : error {
  using error::error;
};

// A call of the runtime in the wrong state or with the wrong size: fix the training loop.
struct usage_error : error {
  using error::error;
};

// A collective could not complete: a deadline passed or the ranks called different operations.
struct collective_error : error {
  using error::error;
};

// Another rank failed first; the message names it and carries its own first cause.
struct rank_failure : collective_error {
  using collective_error::collective_error;
};

// A checkpoint cannot be written or read: the disk, damage, or another model.
struct checkpoint_error : error {
  using error::error;
};

// A call of the device's runtime or of one of its libraries failed: memory, a driver, a broken GPU.
struct device_error : error {
  using error::error;
};

// An operation of an elastic_world went on without this member, which had not come to it in time:
// it may join again.
struct member_dropped : collective_error {
  using collective_error::collective_error;
};

}  // namespace mfsdp::inline MFSDP_ABI
