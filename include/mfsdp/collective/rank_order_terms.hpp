// rank_order_terms: the kernel that adds what ranks have sent, in their order.
#pragma once

#include "mfsdp/cuda/launch.hpp"
#include "mfsdp/dtype.hpp"

namespace mfsdp::inline MFSDP_ABI::cuda {

// out[i] = the sum over ranks 0, 1, 2, ... of their term i, each converted to To, in which the
// additions are; or is increased by it. This rank's term is at own[i], that of another at
// others[place * stride + i], where places count the other ranks. out may be own.
template <class From, class To>
struct rank_order_terms {
  const From* own;
  const From* others;
  index_t stride;
  int rank;
  int ranks;
  To* out;
  bool add;
  index_t count;

  [[nodiscard]] MFSDP_HOST_DEVICE index_t size() const { return count; }
  MFSDP_HOST_DEVICE void operator()(index_t i) const {
    To sum = term(0, i);
    for (int r = 1; r < ranks; ++r) sum = sum + term(r, i);
    out[i] = add ? out[i] + sum : sum;
  }
  template <class Visit>
  void operands(const Visit& visit) const {
    visit(own, count, touch::read);
    for (int place = 0; place + 1 < ranks; ++place) {
      visit(others + place * stride, count, touch::read);
    }
    visit(out, count, touch::write);
  }

 private:
  [[nodiscard]] MFSDP_HOST_DEVICE To term(int r, index_t i) const {
    if (r == rank) return static_cast<To>(own[i]);
    return static_cast<To>(others[(r < rank ? r : r - 1) * stride + i]);
  }
};

}  // namespace mfsdp::inline MFSDP_ABI::cuda
