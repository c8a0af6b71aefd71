#include "emulation/order.hpp"

#include <iterator>

namespace emulation {

std::optional<touch_history::conflict> touch_history::find(const cell& in, bool reads_too,
                                                           const vector_clock& now) {
  if (in.write && !in.write->before(now)) return conflict{*in.write, true};
  if (reads_too) {
    for (const touch& read : in.reads) {
      if (!read.before(now)) return conflict{read, false};
    }
  }
  return {};
}

// A cell begins at `at` afterwards; the end of all is no cell.
touch_history::cells::iterator touch_history::split(std::size_t at) {
  const auto next = cells_.lower_bound(at);
  if (next != cells_.end() && next->first == at) return next;
  cell& before = std::prev(next)->second;
  if (before.end == at) return next;
  const auto made = cells_.emplace_hint(next, at, before);
  before.end = at;
  return made;
}

std::optional<touch_history::conflict> touch_history::read(std::size_t first, std::size_t last,
                                                           const touch& by,
                                                           const vector_clock& now) {
  std::optional<conflict> found;
  const auto begin = split(first), end = split(last);
  for (auto i = begin; i != end; ++i) {
    if (!found) found = find(i->second, false, now);
    std::erase_if(i->second.reads, [&](const touch& old) { return old.before(now); });
    i->second.reads.push_back(by);
  }
  return found;
}

std::optional<touch_history::conflict> touch_history::write(std::size_t first, std::size_t last,
                                                            const touch& by,
                                                            const vector_clock& now) {
  std::optional<conflict> found;
  const auto begin = split(first), end = split(last);
  for (auto i = begin; i != end && !found; ++i) found = find(i->second, true, now);
  cells_.erase(begin, end);
  cells_.emplace(first, cell{last, by, {}});
  return found;
}

std::optional<touch_history::conflict> touch_history::pending(const vector_clock& now) const {
  for (const auto& [first, each] : cells_) {
    if (auto found = find(each, true, now)) return found;
  }
  return {};
}

bool touch_history::written(std::size_t first, std::size_t last) const {
  for (auto i = std::prev(cells_.upper_bound(first)); i != cells_.end() && i->first < last; ++i) {
    if (!i->second.write) return false;
  }
  return true;
}

}  // namespace emulation
