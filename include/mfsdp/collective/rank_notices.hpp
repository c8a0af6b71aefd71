// rank_notices: how ranks tell each other that one has failed, beside what moves their data.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI {

// Called by one thread at a time.
class rank_notices {
 public:
  struct failure {
    int rank = 0;
    std::string cause{};
  };

  rank_notices() = default;
  rank_notices(const rank_notices&) = delete;
  rank_notices& operator=(const rank_notices&) = delete;
  virtual ~rank_notices() = default;

  // Tells all other ranks, once. Does not wait for them, does not throw.
  virtual void tell(std::string_view cause) = 0;
  // The first failure of another rank that has been heard of. Does not wait.
  virtual std::optional<failure> heard() = 0;
};

}  // namespace mfsdp::inline MFSDP_ABI
