// A plan as text, to keep, compare and hash. Only choices are written; the rest follows from them.
//
//   mfsdp plan 1
//   ranks 2
//   placement sharded owner                     or: replicated NAME
//   bytes 4 4 4 0 4                             of an element: compute, gradient, reduce, master
//                                               (0: none), state
//   optimizer muon                              one line each; "gathering" if it gathers matrices
//   unit block                                  one line each
//   tensor block up matrix 0 1 8 4              unit, name, role or "stack", optimizer or "frozen",
//                                               row groups, extents; then a line for each item:
//   item 1024 384 1:0:32                        FLOPs, bytes, segments as rank:offset:count
//   tied block head block.up                    unit, name, tensor
//   end
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "mfsdp/fnv1a.hpp"
#include "mfsdp/plan.hpp"
#include "mfsdp/plan_layout.hpp"
#include "mfsdp/planner.hpp"

namespace mfsdp::inline MFSDP_ABI {

namespace detail {

inline constexpr std::string_view plan_text_version = "mfsdp plan 1";

// Reads a text line by line and word by word. Errors: plan_error with the line number.
class plan_reader {
 public:
  explicit plan_reader(std::string_view text) : text_(text) {}

  // Moves to the next line and returns its first word.
  std::string_view next_line() {
    ++line_;
    if (text_.empty()) fail("the text ends before its 'end' line");
    rest_ = cut(text_, '\n');
    return word();
  }
  [[nodiscard]] bool has_word() const { return !rest_.empty(); }
  std::string_view word() {
    const std::string_view result = cut(rest_, ' ');
    if (result.empty()) fail("a word is missing");
    return result;
  }
  std::string_view rest_of_line() { return std::exchange(rest_, {}); }
  void expect(std::string_view found, std::string_view wanted) const {
    if (found != wanted) fail(fmt::format("'{}' where '{}' is expected", found, wanted));
  }
  index_t number(index_t largest = std::numeric_limits<index_t>::max()) {
    return parse(word(), largest);
  }

  segment rank_segment(int ranks) {
    std::string_view parts = word();
    segment result;
    result.rank = static_cast<int>(parse(cut(parts, ':'), ranks - 1));
    result.offset = parse(cut(parts, ':'), std::numeric_limits<index_t>::max());
    result.count = parse(parts, std::numeric_limits<index_t>::max());
    return result;
  }

  [[noreturn]] void fail(std::string_view fault) const { fail_at(line_, fault); }
  [[noreturn]] static void fail_at(index_t line, std::string_view fault) {
    throw plan_error(fmt::format("plan text, line {}: {}", line, fault));
  }

 private:
  // Splits off the part before the mark.
  static std::string_view cut(std::string_view& text, char mark) {
    const std::size_t end = std::min(text.find(mark), text.size());
    const std::string_view head = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return head;
  }
  [[nodiscard]] index_t parse(std::string_view digits, index_t largest) const {
    index_t value = 0;
    const char* const end = digits.data() + digits.size();
    const auto [stop, status] = std::from_chars(digits.data(), end, value);
    if (status != std::errc{} || stop != end || value < 0 || value > largest) {
      fail(fmt::format("'{}' is not a number from 0 to {}", digits, largest));
    }
    return value;
  }

  std::string_view text_;
  std::string_view rest_;
  index_t line_ = 0;
};

// The plan under construction, one function for each kind of line.
class plan_parser {
 public:
  explicit plan_parser(std::string_view text) : reader_(text) {}

  plan parse() {
    try {
      parse_lines();
      require_units(result_.spec);
      require_layout_size();
    } catch (const spec_error& fault) {
      reader_.fail(fault.what());
    }
    lay_out(result_);
    return std::move(result_);
  }

 private:
  void parse_lines() {
    reader_.expect(reader_.next_line(), "mfsdp");
    reader_.expect(reader_.rest_of_line(), plan_text_version.substr(6));
    reader_.expect(reader_.next_line(), "ranks");
    result_.ranks = static_cast<int>(reader_.number(1 << 20));
    if (result_.ranks < 1) reader_.fail("a plan needs at least one rank");
    reader_.expect(reader_.next_line(), "placement");
    result_.replicated = reader_.word() == "replicated";
    result_.placement = reader_.rest_of_line();
    parse_bytes();
    for (;;) {
      const std::string_view kind = reader_.next_line();
      if (kind == "end") return;
      if (kind == "optimizer" || kind == "gathering") {
        result_.gathers.push_back(kind == "gathering");
        result_.optimizers.emplace_back(reader_.rest_of_line());
      } else if (kind == "unit") {
        units_.push_back(result_.spec.unit(reader_.word()));
      } else if (kind == "tensor") {
        parse_tensor();
      } else if (kind == "tied") {
        model_spec::unit_builder& unit = find_unit();
        const std::string_view name = reader_.word();
        unit.tied(name, reader_.word());
      } else {
        reader_.fail(fmt::format("'{}' starts no line of a plan", kind));
      }
    }
  }

  void parse_bytes() {
    reader_.expect(reader_.next_line(), "bytes");
    storage_bytes& bytes = result_.bytes;
    for (index_t* kind :
         {&bytes.compute, &bytes.gradient, &bytes.reduce, &bytes.master, &bytes.state}) {
      *kind = reader_.number(4);
      if (*kind != 2 && *kind != 4 && (*kind != 0 || kind != &bytes.master)) {
        reader_.fail(fmt::format("no element has {} bytes", *kind));
      }
    }
  }

  model_spec::unit_builder& find_unit() {
    const std::string_view name = reader_.word();
    const std::vector<unit_spec>& known = result_.spec.units();
    const auto unit = std::find_if(known.begin(), known.end(),
                                   [&](const unit_spec& u) { return u.name == name; });
    if (unit == known.end()) reader_.fail(fmt::format("no unit is named '{}'", name));
    return units_[static_cast<std::size_t>(unit - known.begin())];
  }

  void parse_tensor() {
    model_spec::unit_builder& unit = find_unit();
    const std::string_view name = reader_.word();
    const std::string_view role = reader_.word();
    tensor_slot& slot = result_.tensors.emplace_back();
    tensor_options options;
    const std::string_view optimizer = reader_.word();
    for (std::size_t o = 0; o < result_.optimizers.size(); ++o) {
      if (optimizer == std::to_string(o)) slot.optimizer = static_cast<int>(o);
    }
    options.frozen = optimizer == "frozen";
    if (slot.optimizer < 0 && !options.frozen) {
      reader_.fail(fmt::format("no optimizer has the number '{}'", optimizer));
    }
    options.row_groups = reader_.number();
    std::vector<index_t> extents;
    while (reader_.has_word()) extents.push_back(reader_.number());

    if (role == "matrix" && extents.size() == 2) {
      unit.matrix(name, extents[0], extents[1], options);
    } else if (role == "matrix" && extents.size() > 2) {
      unit.convolution(name, std::move(extents), options);
    } else if (role == "stack" && extents.size() == 3) {
      unit.stack(name, extents[0], extents[1], extents[2], options);
    } else if (role == "vector" && extents.size() == 1) {
      unit.vector(name, extents[0], options);
    } else if (role == "elementwise") {
      unit.elementwise(name, std::move(extents), options);
    } else {
      reader_.fail(fmt::format("'{}' with {} extents is no tensor", role, extents.size()));
    }
    const tensor_spec& tensor = result_.spec.tensors().back();
    if (tensor.elements() > std::numeric_limits<index_t>::max() / 2 - elements_) {
      reader_.fail("the model has too many elements to count");
    }
    elements_ += tensor.elements();
    const index_t items = tensor.matrices();
    for (index_t position = 0; position < items; ++position) parse_item(position);
  }

  void parse_item(index_t position) {
    reader_.expect(reader_.next_line(), "item");
    placement_item& item = result_.items.emplace_back(
        make_item(result_.spec, result_.spec.tensors().size() - 1, position));
    item.update_flops = reader_.number();
    item.resident_bytes = reader_.number();
    add_cost(total_.update_flops, item.update_flops, item);
    add_cost(total_.resident_bytes, item.resident_bytes, item);
    std::vector<segment>& segments = result_.segments.emplace_back();
    while (reader_.has_word()) segments.push_back(reader_.rank_segment(result_.ranks));
    if (!result_.replicated) {
      require_cover(result_.placement, item, segments, result_.ranks);
    } else if (!segments.empty()) {
      reader_.fail("a replicated plan has no segments");
    }
  }

  // A layout has an entry for each rank and group, and for each rank and replicated item: a short
  // text could ask for any amount of memory.
  void require_layout_size() const {
    constexpr index_t most_bytes = index_t{512} << 20;
    index_t groups = std::ssize(result_.spec.units());
    for (const unit_spec& unit : result_.spec.units()) groups += std::ssize(unit.tensors);
    groups -= std::ssize(result_.spec.tensors());  // tied tensors may be groups of their own
    const index_t items = result_.replicated ? std::ssize(result_.items) : 0;
    constexpr index_t of_item = sizeof(local_segment) + 2 * sizeof(piece);
    const index_t bytes =
        result_.ranks * (groups * 2 * static_cast<index_t>(sizeof(index_t)) + items * of_item);
    if (bytes > most_bytes) {
      reader_.fail(
          fmt::format("the layout of {} ranks would take {} MiB; more than {} are not read",
                      result_.ranks, bytes >> 20, most_bytes >> 20));
    }
  }

  plan_reader reader_;
  plan result_;
  placement_item total_;  // its costs are those of all items
  index_t elements_ = 0;
  std::vector<model_spec::unit_builder> units_;
};

// What a piece of a plan's text says something about.
enum class plan_topic : std::size_t { model, precision, optimizers, placement };

// Calls take(topic, piece) for the pieces of a plan's text, in order.
template <class Take>
void for_each_plan_piece(const plan& p, Take&& take) {
  using enum plan_topic;
  const auto put = [&]<class... Args>(plan_topic topic, fmt::format_string<Args...> format,
                                      Args&&... args) {
    take(topic, fmt::format(format, std::forward<Args>(args)...));
  };
  const std::vector<unit_spec>& units = p.spec.units();
  const std::vector<tensor_spec>& tensors = p.spec.tensors();
  put(model, "{}\n", plan_text_version);
  put(placement, "ranks {}\n", p.ranks);
  put(placement, "placement {} {}\n", p.replicated ? "replicated" : "sharded", p.placement);
  put(precision, "bytes {} {} {} {} {}\n", p.bytes.compute, p.bytes.gradient, p.bytes.reduce,
      p.bytes.master, p.bytes.state);
  for (std::size_t o = 0; o < p.optimizers.size(); ++o) {
    put(optimizers, "{} {}\n", p.gathers[o] ? "gathering" : "optimizer", p.optimizers[o]);
  }
  for (const unit_spec& unit : units) put(model, "unit {}\n", unit.name);

  // Tensors in spec order; a tied name comes as soon as its turn in its unit allows.
  std::vector<std::size_t> written(units.size());
  const auto write_tied = [&](std::size_t u) {
    const tensor_reference& reference = units[u].tensors[written[u]++];
    put(model, "tied {} {} {}\n", units[u].name, reference.name, tensors[reference.tensor].name);
  };
  std::size_t item = 0;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const std::size_t u = tensors[t].unit;
    while (units[u].tensors[written[u]].tensor != t) write_tied(u);
    put(model, "tensor {} {} {}", units[u].name, units[u].tensors[written[u]++].name,
        tensors[t].stacked ? "stack" : to_string(tensors[t].role));
    const int optimizer = p.tensors[t].optimizer;
    if (optimizer < 0) {
      put(model, " frozen");
    } else {
      put(optimizers, " {}", optimizer);
    }
    put(model, " {}", tensors[t].options.row_groups);
    for (const index_t extent : tensors[t].extents) put(model, " {}", extent);
    put(model, "\n");
    for (; item < p.items.size() && p.items[item].tensor == t; ++item) {
      put(placement, "item {} {}", p.items[item].update_flops, p.items[item].resident_bytes);
      for (const segment& s : p.segments[item]) {
        put(placement, " {}:{}:{}", s.rank, s.offset, s.count);
      }
      put(placement, "\n");
    }
  }
  for (std::size_t u = 0; u < units.size(); ++u) {
    while (written[u] < units[u].tensors.size()) write_tied(u);
  }
  put(model, "end\n");
}

}  // namespace detail

// The canonical text of a plan: equal plans have equal texts, on every machine.
[[nodiscard]] inline std::string to_text(const plan& p) {
  std::string text;
  detail::for_each_plan_piece(p, [&](auto, std::string_view piece) { text += piece; });
  return text;
}

// The plan that to_text wrote. Errors: plan_error with the line number for any other text, and for
// a plan whose layout would take more than 512 MiB.
[[nodiscard]] inline plan parse_plan(std::string_view text) {
  plan result = detail::plan_parser(text).parse();
  const std::string canonical = to_text(result);
  if (canonical != text) {
    const auto [expected, found] =
        std::mismatch(canonical.begin(), canonical.end(), text.begin(), text.end());
    detail::plan_reader::fail_at(1 + std::count(canonical.begin(), expected, '\n'),
                                 "not as to_text writes it");
  }
  return result;
}

// Plans are equal if their texts are; a hash to compare across ranks and runs.
[[nodiscard]] inline std::uint64_t plan_hash(const plan& p) {
  return detail::fnv1a(to_text(p));
}

}  // namespace mfsdp::inline MFSDP_ABI
