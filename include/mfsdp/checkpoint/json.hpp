// JSON from files that anyone may have written: strict, bounded, every fault with its place. The
// only includer of nlohmann/json.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mfsdp/error.hpp"

namespace mfsdp::inline MFSDP_ABI::detail {

using json = nlohmann::json;

// Text of a file as an error may show it: cut at 120 bytes, what is not printable ASCII as \xNN.
[[nodiscard]] inline std::string shown(std::string_view text) {
  constexpr std::size_t longest = 120;
  std::string result;
  for (const char c : text.substr(0, longest)) {
    if (c >= ' ' && c <= '~') {
      result += c;
    } else {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > longest) result += "...";
  return result;
}

[[nodiscard]] inline bool has_control_characters(std::string_view text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < ' ' || c == 127; });
}

// Builds a value from the events of nlohmann's parser.
class json_builder {
 public:
  json_builder(std::size_t depth, std::string_view where) : depth_(depth), where_(where) {}

  [[nodiscard]] json take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(json::number_integer_t value) { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) { return add(value); }
  bool number_float(json::number_float_t value, const std::string&) { return add(value); }
  bool string(std::string& value) { return add(std::move(value)); }
  bool binary(json::binary_t&) { return false; }  // not in text
  bool start_object(std::size_t) { return open(json::object()); }
  bool start_array(std::size_t) { return open(json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string& name) {
    const auto [member, fresh] =
        open_.back()->get_ref<json::object_t&>().try_emplace(std::move(name));
    if (!fresh) {
      throw checkpoint_error(fmt::format("{}: '{}' is there twice", where_, shown(member->first)));
    }
    member_ = &member->second;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception& fault) {
    std::string_view what = fault.what();
    what.remove_prefix(std::min(what.find("] ") + 2, what.size()));
    throw checkpoint_error(
        fmt::format("{}: not JSON at byte {}: {}", where_, position, shown(what)));
  }

 private:
  template <class T>
  json& place(T&& value) {
    if (open_.empty()) return root_ = std::forward<T>(value);
    if (open_.back()->is_array()) {
      return open_.back()->get_ref<json::array_t&>().emplace_back(std::forward<T>(value));
    }
    return *member_ = std::forward<T>(value);
  }
  template <class T>
  bool add(T&& value) {
    place(std::forward<T>(value));
    return true;
  }
  bool open(json&& value) {
    if (open_.size() == depth_) {
      throw checkpoint_error(fmt::format("{}: JSON nested deeper than {}", where_, depth_));
    }
    open_.push_back(&place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::size_t depth_;
  std::string_view where_;
  json root_;
  std::vector<json*> open_;  // objects and arrays, outermost first
  json* member_ = nullptr;   // of the innermost object, the one whose key was read last
};

struct json_limits {
  std::size_t bytes;
  std::size_t depth;  // of objects and arrays within each other
};

// The value that `text` is. Errors: checkpoint_error, beginning with `where`, if it is longer or
// deeper than the limits, not JSON, not UTF-8, or has a key twice. Cost: memory of at most about 30
// times the text, 5 times for those that the library writes.
[[nodiscard]] inline json parse_json(std::string_view text, json_limits limits,
                                     std::string_view where) {
  if (text.size() > limits.bytes) {
    throw checkpoint_error(fmt::format("{}: {} bytes of JSON; more than {} are not read", where,
                                       text.size(), limits.bytes));
  }
  // The parser takes it for the end of the text.
  if (const std::size_t zero = text.find('\0'); zero != text.npos) {
    throw checkpoint_error(fmt::format("{}: not JSON at byte {}: a zero byte", where, zero + 1));
  }
  json_builder builder(limits.depth, where);
  static_cast<void>(json::sax_parse(text.begin(), text.end(), &builder));
  return builder.take();
}

// The JSON text of a value. Errors: checkpoint_error if a text in it is not UTF-8.
template <class Json>
[[nodiscard]] std::string dump_json(const Json& value, std::string_view where) {
  try {
    return value.dump();
  } catch (const nlohmann::json::type_error&) {
    throw checkpoint_error(fmt::format("{}: a text is not UTF-8, which JSON has to be", where));
  }
}

// A value that is read, and where it stands ("arrays[3].parts[0].first"), for errors. The value
// must outlive it. Errors of all members: checkpoint_error with the place.
class json_field {
 public:
  json_field(const json& value, std::string_view where, std::string path = {})
      : value_(&value), where_(where), path_(std::move(path)) {}

  // An object with exactly these members.
  void require_members(std::initializer_list<std::string_view> names) const {
    if (!value_->is_object()) fail("is no object");
    for (const auto& [name, value] : value_->get_ref<const json::object_t&>()) {
      if (std::find(names.begin(), names.end(), name) == names.end()) {
        fail(fmt::format("has a member '{}', which is unknown", shown(name)));
      }
    }
    for (const std::string_view name : names) {
      if (!value_->contains(name)) fail(fmt::format("has no member '{}'", name));
    }
  }
  [[nodiscard]] bool has(std::string_view name) const {
    return value_->is_object() && value_->contains(name);
  }
  // Of one that is there.
  [[nodiscard]] json_field operator[](std::string_view name) const {
    return {*value_->find(name), where_,
            path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name)};
  }
  [[nodiscard]] json_field operator[](std::size_t index) const {
    return {(*value_)[index], where_, fmt::format("{}[{}]", path_, index)};
  }
  // Of an array.
  [[nodiscard]] std::size_t size() const {
    if (!value_->is_array()) fail("is no array");
    return value_->size();
  }
  [[nodiscard]] std::int64_t integer(std::int64_t least, std::int64_t most) const {
    bool inside = value_->is_number_integer();
    if (inside && value_->is_number_unsigned()) {
      inside = value_->get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX);
    }
    const std::int64_t number = inside ? value_->get<std::int64_t>() : 0;
    if (!inside || number < least || number > most) {
      fail(fmt::format("is {}; it must be an integer from {} to {}", shown_value(), least, most));
    }
    return number;
  }
  [[nodiscard]] std::uint64_t unsigned_integer() const {
    if (!value_->is_number_unsigned()) {
      fail(fmt::format("is {}; it must be an integer from 0 to {}", shown_value(), UINT64_MAX));
    }
    return value_->get<std::uint64_t>();
  }
  [[nodiscard]] bool boolean() const {
    if (!value_->is_boolean()) fail(fmt::format("is {}; it must be true or false", shown_value()));
    return value_->get<bool>();
  }
  // Any text.
  [[nodiscard]] const std::string& text() const {
    if (!value_->is_string()) fail(fmt::format("is {}; it must be a text", shown_value()));
    return value_->get_ref<const std::string&>();
  }
  // A text of one line.
  [[nodiscard]] const std::string& line() const {
    if (has_control_characters(text())) {
      fail(fmt::format("is '{}'; it must be without control characters", shown(text())));
    }
    return text();
  }
  // A text of one line that is not empty.
  [[nodiscard]] const std::string& name() const {
    if (line().empty()) fail("is empty");
    return line();
  }

  [[noreturn]] void fail(std::string_view fault) const {
    throw checkpoint_error(
        fmt::format("{}: {} {}", where_, path_.empty() ? "the JSON" : path_, fault));
  }

 private:
  [[nodiscard]] std::string shown_value() const {
    if (value_->is_structured()) return value_->is_array() ? "an array" : "an object";
    return shown(value_->dump());
  }

  const json* value_;
  std::string_view where_;
  std::string path_;
};

}  // namespace mfsdp::inline MFSDP_ABI::detail
