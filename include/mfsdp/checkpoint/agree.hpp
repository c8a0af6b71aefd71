// What ranks tell each other of a checkpoint, so that all of them end alike: well, or with the same
// error.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

// Numbers of this rank and a label in; those of all ranks, in order, out. A collective call.
using gather_numbers =
    std::function<std::vector<std::uint64_t>(const std::vector<std::uint64_t>&, std::string_view)>;

// How the ranks of a model's site do that.
template <class Model>
[[nodiscard]] gather_numbers gather_of(Model& model) {
  return [&model](const std::vector<std::uint64_t>& own, std::string_view label) {
    return model.persistence().gather(own, label);
  };
}

// What went wrong in f, as text; empty if nothing did. f makes no collective calls.
template <class F>
[[nodiscard]] std::string fault_of(F&& f) {
  try {
    f();
  } catch (const std::exception& fault) {
    const std::string text = fault.what();
    return text.empty() ? "an error without a message" : text;
  }
  return {};
}

// Lists of all ranks; a collective call, or two if there is anything in them.
[[nodiscard]] inline std::vector<std::vector<std::uint64_t>> gather_lists(
    const gather_numbers& gather, const std::vector<std::uint64_t>& own, std::string_view label) {
  const std::vector<std::uint64_t> sizes = gather({own.size()}, label);
  const auto longest = static_cast<std::size_t>(*std::ranges::max_element(sizes));
  std::vector<std::vector<std::uint64_t>> lists(sizes.size());
  if (longest == 0) return lists;
  std::vector<std::uint64_t> padded = own;
  padded.resize(longest);
  const std::vector<std::uint64_t> all = gather(padded, label);
  for (std::size_t rank = 0; rank < lists.size(); ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * longest);
    lists[rank].assign(begin, begin + static_cast<std::ptrdiff_t>(sizes[rank]));
  }
  return lists;
}

// A text of at most so many bytes: a longer one is cut between two UTF-8 characters and ends with
// how much is left out.
[[nodiscard]] inline std::string shortened(const std::string& text, std::size_t longest) {
  if (text.size() <= longest) return text;
  constexpr std::size_t note = 40;
  std::size_t end = longest > note ? longest - note : 0;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return fmt::format("{}... ({} more bytes)", text.substr(0, end), text.size() - end);
}

// The texts of all ranks, each of at most 64 KiB.
[[nodiscard]] inline std::vector<std::string> gather_texts(const gather_numbers& gather,
                                                           const std::string& own,
                                                           std::string_view label) {
  constexpr std::size_t longest = std::size_t{1} << 16;
  const std::string sent = shortened(own, longest);
  std::vector<std::uint64_t> words;
  for (std::size_t i = 0; i < sent.size(); ++i) {
    if (i % 8 == 0) words.push_back(0);
    words.back() |= std::uint64_t{static_cast<unsigned char>(sent[i])} << (8 * (i % 8));
  }
  std::vector<std::string> texts;
  for (const std::vector<std::uint64_t>& list : gather_lists(gather, words, label)) {
    std::string& text = texts.emplace_back();
    for (std::size_t i = 0; i < 8 * list.size(); ++i) {
      const auto byte = static_cast<char>(list[i / 8] >> (8 * (i % 8)) & 0xFF);
      if (byte != 0) text += byte;
    }
  }
  return texts;
}

// Faults of all ranks in one text: each once, with the ranks that have it unless all do. Empty if
// there are none.
[[nodiscard]] inline std::string join_faults(const std::vector<std::string>& by_rank) {
  std::map<std::string, std::string> ranks;
  std::map<std::string, std::size_t> counts;
  std::vector<std::string> order;
  for (std::size_t rank = 0; rank < by_rank.size(); ++rank) {
    const std::string& fault = by_rank[rank];
    if (fault.empty()) continue;
    if (counts[fault]++ == 0) order.push_back(fault);
    ranks[fault] += fmt::format("{}{}", ranks[fault].empty() ? "rank " : ", ", rank);
  }
  std::string text;
  for (const std::string& fault : order) {
    text += text.empty() ? "" : "\n";
    text += counts[fault] == by_rank.size() ? fault : fmt::format("{}: {}", ranks[fault], fault);
  }
  return text;
}

// Goes on if no rank has a fault. Errors: the same checkpoint_error on all ranks, which names those
// that have one. A collective call.
inline void require_no_fault(const gather_numbers& gather, const std::string& own,
                             std::string_view doing) {
  const std::string faults = join_faults(gather_texts(gather, own, doing));
  if (!faults.empty()) throw checkpoint_error(fmt::format("{}: {}", doing, faults));
}

}  // namespace mfsdp::inline MFSDP_ABI::detail
