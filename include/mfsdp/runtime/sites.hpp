// Where sites meet: which ranks hold the same part of a parameter on each site, and the means that
// they form of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "mfsdp/kernel.hpp"
#include "mfsdp/runtime/bits_hash.hpp"
#include "mfsdp/runtime/context.hpp"
#include "mfsdp/runtime/gather.hpp"

namespace mfsdp::inline MFSDP_ABI {

// The sites on their axis, which has all ranks of all sites: one site after the other, each in the
// order of its shard axis.
struct site_map {
  std::vector<int> first;  // of each site: its first rank on the axis
  std::vector<int> ranks;  // of each site
  int own = 0;             // this rank's site

  [[nodiscard]] int count() const { return static_cast<int>(ranks.size()); }
};

// A part of an item that one rank of each site holds whole.
struct shared_part {
  std::size_t item = 0;
  index_t offset = 0;  // from the start of the item
  index_t count = 0;
  std::vector<int> holders{};  // of each site: rank on the axis
};

// What the sites share of their trainable tensors, by item and offset; the same on every rank.
// segments[s] is the plan's of site s. Errors: spec_error if every rank holds everything and sites
// have different numbers of ranks.
[[nodiscard]] inline std::vector<shared_part> shared_parts(
    const plan& p, const site_map& sites,
    std::span<const std::vector<std::vector<segment>>* const> segments) {
  std::vector<shared_part> parts;
  for (std::size_t i = 0; i < p.items.size(); ++i) {
    const index_t elements = p.items[i].elements();
    if (p.tensors[p.items[i].tensor].optimizer < 0 || elements == 0) continue;
    if (p.replicated) {
      for (int r = 0; r < p.ranks; ++r) {
        shared_part& part = parts.emplace_back(shared_part{i, 0, elements});
        for (int s = 0; s < sites.count(); ++s) {
          const auto site = static_cast<std::size_t>(s);
          if (sites.ranks[site] != p.ranks) {
            throw spec_error(fmt::format(
                "with placement '{}' all sites need equally many ranks, but site {} has {} and "
                "site {} has {}; owner_placement does not",
                p.placement, s, sites.ranks[site], sites.own, p.ranks));
          }
          part.holders.push_back(sites.first[site] + r);
        }
      }
      continue;
    }
    std::set<index_t> cuts{0};
    for (const auto* of_site : segments) {
      for (const segment& s : (*of_site)[i]) cuts.insert(s.offset + s.count);
    }
    for (auto cut = cuts.begin(); std::next(cut) != cuts.end(); ++cut) {
      shared_part& part = parts.emplace_back(shared_part{i, *cut, *std::next(cut) - *cut});
      for (std::size_t s = 0; s < segments.size(); ++s) {
        const auto& all = (*segments[s])[i];
        const auto holder = std::ranges::upper_bound(all, part.offset, {}, &segment::offset) - 1;
        part.holders.push_back(sites.first[s] + holder->rank);
      }
    }
  }
  return parts;
}

// A state of which every site has equal bits after an exchange, if the rule keeps its promise.
struct equal_state {
  std::span<const float> values{};
  std::string_view state;
  std::string_view source;  // who computes it on each site
};

// What a rule has put in place of what will be the mean over the sites.
struct contribution {
  std::size_t segment = 0;  // of plan.local_segments
  std::vector<std::span<float>> values{};
  bool counts = true;    // if not, this site takes the mean of the others
  std::size_t kept = 0;  // the first values, that stay as they are where no site counts; others are
                         // zero there
  bool heard = true;     // afterwards: whether a site counted for each part of it
  std::vector<equal_state> equal{};
};

template <class Context>
class site_exchange {
  using axis = typename Context::site_axis;

 public:
  // `most` bounds the elements that one call of average may exchange. A collective call on the axis
  // if sites have several ranks. Errors: spec_error if the axis cannot be split and must be.
  site_exchange(Context& context, const site_map& sites, const std::vector<shared_part>& parts,
                index_t most)
      : context_(context), sites_(sites) {
    if (sites_.count() == 1) return;
    form_groups(parts);
    staged_ = std::min(most, largest_message) + std::ssize(parts_);
    staging_ = context_.template allocate<float>(memory_kind::exchange_buffers,
                                                 2 * std::ssize(slots_) * staged_);
  }
  site_exchange(const site_exchange&) = delete;
  site_exchange& operator=(const site_exchange&) = delete;

  [[nodiscard]] const site_map& sites() const { return sites_; }

  // Two buffers of equal size that are free between calls.
  [[nodiscard]] std::array<std::span<float>, 2> buffers() {
    return {slice(staging_.span(), 0, staged_), slice(staging_.span(), staged_, staged_)};
  }

  // Replaces all values by their means over the sites that count, in place: sums in the order of
  // sites, divided by how many there are, so the same bits on all sites. Contributions come in the
  // order of segments, of model step `step`. Every message holds as many numbers as are exchanged
  // and one for each shared part in it, which counts the sites.
  void average(std::span<contribution> all, std::int64_t step) {
    for (contribution& own : all) {
      own.heard = own.counts || sites_.count() > 1;
      if (own.heard) continue;
      for (std::size_t i = own.kept; i < own.values.size(); ++i) {
        context_.backend.fill(own.values[i], 0.0f);
      }
    }
    if (sites_.count() == 1) return;
    label_ = fmt::format("mean over sites, step {}", step);
    form_messages(all);
    for (std::size_t i = 0; i < used_ + 1; ++i) {
      if (i < used_) start(messages_[i], all, slots_[i % slots_.size()]);
      if (i > 0) finish(messages_[i - 1], all, slots_[(i - 1) % slots_.size()]);
    }
  }

  // Do all sites that are there hold the same bits of what each of them computes? Contributions as
  // above, after they were adopted. Errors: spec_error on all ranks that hold what differs.
  void require_equal(std::span<const contribution> all, std::int64_t step) {
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      std::vector<std::pair<std::size_t, const equal_state*>> held;  // item, state
      std::vector<std::uint64_t> own;
      for (const own_part& part : parts_) {
        const auto given = contribution_of(part, all);
        if (part.group != group || given == all.end()) continue;
        for (const equal_state& state : given->equal) {
          held.emplace_back(context_.plan.local_segments[part.segment].item, &state);
          own.push_back(detail::bits_hash(context_.backend, of_part(part, state.values), 0));
        }
      }
      if (own.empty()) continue;
      own.push_back(1);  // zero where nobody is
      const auto hashes = detail::gather_over<std::uint64_t>(context_, groups_[group], own,
                                                             "equal states", phase::setup);
      std::vector<std::size_t> there;
      for (std::size_t site = 0; site < hashes.size() / own.size(); ++site) {
        if (hashes[(site + 1) * own.size() - 1] == 1) there.push_back(site);
      }
      for (const std::size_t site : there) {
        for (std::size_t i = 0; i < held.size(); ++i) {
          const auto hash_on = [&](std::size_t s) { return hashes[s * own.size() + i]; };
          if (hash_on(site) == hash_on(there.front())) continue;
          const auto& [item, state] = held[i];
          throw spec_error(fmt::format(
              "tensor '{}': state '{}' has other bits on site {} than on site {} in step {}; '{}' "
              "computes it on every site and must give equal bits for equal arguments",
              context_.plan.items[item].name, state->state, site, there.front(), step,
              state->source));
        }
      }
    }
  }

 private:
  static constexpr index_t largest_message = 256 * 1024;

  // What this rank holds of a shared part.
  struct own_part {
    std::size_t group = 0;
    std::size_t segment = 0;  // of plan.local_segments
    index_t from = 0;         // in that segment
    index_t count = 0;
  };

  struct message {
    struct entry {
      std::size_t part;         // which of the message's parts counts the sites for it
      std::span<float> values;  // that are exchanged
      index_t at;               // where, in the message
      bool kept;                // where no site counts
    };
    struct part {
      const own_part* shared;
      std::size_t contribution;
    };
    std::size_t group = 0;
    index_t elements = 0;
    std::vector<entry> entries{};
    std::vector<part> parts{};
    std::array<piece, 1> all{};
  };

  struct slot {
    typename axis::request sum{};
  };

  [[nodiscard]] const placement_item& item_of(const own_part& part) const {
    return context_.plan.items[context_.plan.local_segments[part.segment].item];
  }

  // A group for each set of ranks that hold the same; disjoint ones are split off together.
  void form_groups(const std::vector<shared_part>& parts) {
    std::map<std::vector<int>, std::size_t> numbers;
    std::vector<const std::vector<int>*> sets;
    for (const shared_part& part : parts) {
      if (numbers.try_emplace(part.holders, numbers.size()).second) sets.push_back(&part.holders);
    }
    std::vector<std::size_t> group_of(sets.size(), none);
    std::vector<bool> done(sets.size(), false);
    for (std::size_t first = 0; first < sets.size(); ++first) {
      if (done[first]) continue;
      std::set<int> taken;
      std::size_t own = none;
      for (std::size_t i = first; i < sets.size(); ++i) {
        const auto is_taken = [&](int rank) { return taken.contains(rank); };
        if (done[i] || std::ranges::any_of(*sets[i], is_taken)) continue;
        done[i] = true;
        taken.insert(sets[i]->begin(), sets[i]->end());
        if (std::ranges::find(*sets[i], context_.sites.rank()) != sets[i]->end()) own = i;
      }
      add_group(own, sets.size(), group_of);
    }
    for (std::size_t group = 0; group < groups_.size(); ++group) {
      for (const shared_part& part : parts) {
        if (group_of[numbers.at(part.holders)] == group) parts_.push_back(locate(part, group));
      }
    }
  }

  void add_group(std::size_t own, std::size_t sets, std::vector<std::size_t>& group_of) {
    if (std::ranges::all_of(sites_.ranks, [](int ranks) { return ranks == 1; })) {
      group_of[own] = groups_.size();
      groups_.push_back(context_.sites);
    } else if constexpr (requires { context_.sites.split(0); }) {
      // What belongs to no set now is a group of its own, which nobody uses.
      auto group = context_.sites.split(static_cast<int>(own == none ? sets : own));
      context_.book(phase::setup);
      if (own == none) return;
      group_of[own] = groups_.size();
      groups_.push_back(std::move(group));
    } else {
      throw spec_error(
          "the collective of the site axis has no 'split(int color)', which sites of several ranks "
          "need");
    }
  }

  [[nodiscard]] own_part locate(const shared_part& part, std::size_t group) const {
    const auto& segments = context_.plan.local_segments;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const local_segment& s = segments[i];
      if (s.item == part.item && s.rank == context_.rank() && s.offset <= part.offset &&
          part.offset < s.offset + s.count) {
        return {group, i, part.offset - s.offset, part.count};
      }
    }
    throw spec_error(fmt::format("tensor '{}': rank {} holds nothing of its part at {}",
                                 context_.plan.items[part.item].name, context_.rank(),
                                 part.offset));
  }

  [[nodiscard]] static auto contribution_of(const own_part& part,
                                            std::span<const contribution> all) {
    const auto own = std::ranges::lower_bound(all, part.segment, {}, &contribution::segment);
    return own == all.end() || own->segment != part.segment ? all.end() : own;
  }
  // What of a segment's parameter or state belongs to a part of it: the states of a cut tensor have
  // an element for each of its own.
  template <class T>
  [[nodiscard]] std::span<T> of_part(const own_part& part, std::span<T> of_segment) const {
    const bool whole = part.count == item_of(part).elements();
    return whole ? of_segment : slice(of_segment, part.from, part.count);
  }

  // Every site forms the same ones of a group, since it knows the same shared parts; how they are
  // cut into segments differs between sites. The memory of messages is used again.
  void form_messages(std::span<const contribution> all) {
    used_ = 0;
    for (const own_part& part : parts_) {
      const auto own = contribution_of(part, all);
      if (own == all.end()) continue;
      for (std::size_t i = 0; i < own->values.size(); ++i) {
        std::span<float> left = of_part(part, own->values[i]);
        while (!left.empty()) {
          message& last = message_with_room(part.group);
          if (last.parts.empty() || last.parts.back().shared != &part) {
            last.parts.push_back({&part, static_cast<std::size_t>(own - all.begin())});
          }
          const index_t count = std::min(std::ssize(left), largest_message - last.elements);
          last.entries.push_back(
              {last.parts.size() - 1, slice(left, 0, count), last.elements, i < own->kept});
          last.elements += count;
          left = slice(left, count, std::ssize(left) - count);
        }
      }
    }
    for (std::size_t i = 0; i < used_; ++i) {
      message& each = messages_[i];
      each.all = {{{0, 0, 0, each.elements + std::ssize(each.parts)}}};
    }
  }

  [[nodiscard]] message& message_with_room(std::size_t group) {
    if (used_ > 0) {
      message& last = messages_[used_ - 1];
      if (last.group == group && last.elements < largest_message) return last;
    }
    if (used_ == messages_.size()) messages_.emplace_back();
    message& fresh = messages_[used_++];
    fresh.group = group;
    fresh.elements = 0;
    fresh.entries.clear();
    fresh.parts.clear();
    return fresh;
  }

  // Where a message is before and after it is summed.
  [[nodiscard]] std::span<float> staged(const slot& where, bool summed) {
    const index_t place = 2 * (&where - slots_.data()) + (summed ? 1 : 0);
    return slice(staging_.span(), place * staged_, staged_);
  }

  // What this site has of what does not count may be anything, and stays where it is.
  void start(const message& now, std::span<const contribution> all, slot& in) {
    const std::span<float> data = staged(in, false);
    const auto counts = [&](std::size_t part) { return all[now.parts[part].contribution].counts; };
    for (const auto& entry : now.entries) {
      const std::span<float> place = slice(data, entry.at, std::ssize(entry.values));
      if (counts(entry.part)) {
        context_.backend.copy(std::span<const float>(entry.values), place);
      } else {
        context_.backend.fill(place, 0.0f);
      }
    }
    for (std::size_t p = 0; p < now.parts.size(); ++p) {
      context_.backend.fill(slice(data, now.elements + static_cast<index_t>(p), 1),
                            counts(p) ? 1.0f : 0.0f);
    }
    in.sum = groups_[now.group].start_all_reduce(std::span<const float>(data), staged(in, true),
                                                 std::span<const piece>(now.all),
                                                 reduce_into::write, label_);
    context_.book(phase::sync);
  }

  void finish(const message& then, std::span<contribution> all, slot& in) {
    in.sum.wait(context_.until());
    const std::span<const float> sums = staged(in, true);
    counted_.resize(then.parts.size());
    context_.backend.copy(slice(sums, then.elements, std::ssize(counted_)), std::span(counted_));
    for (std::size_t p = 0; p < counted_.size(); ++p) {
      if (counted_[p] == 0) all[then.parts[p].contribution].heard = false;
    }
    for (const auto& entry : then.entries) {
      const float sites = counted_[entry.part];
      if (sites == 0 && entry.kept) continue;
      context_.backend.transform(detail::divided_copy{std::max(sites, 1.0f)}, entry.values,
                                 slice(sums, entry.at, std::ssize(entry.values)));
    }
    in.sum.drain(context_.until());
  }

  static constexpr std::size_t none = static_cast<std::size_t>(-1);

  Context& context_;
  const site_map sites_;
  std::vector<counting<axis>> groups_;
  std::vector<own_part> parts_;  // by group, item and offset
  index_t staged_ = 0;           // elements of the largest message
  typename Context::template storage<float> staging_;
  std::string label_;
  std::vector<message> messages_;  // of the last call of average, `used_` of them
  std::size_t used_ = 0;
  std::vector<float> counted_;
  std::array<slot, 2> slots_{};  // last: requests read what is above
};

}  // namespace mfsdp::inline MFSDP_ABI
