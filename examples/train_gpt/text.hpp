// A text as tokens: one token per distinct byte, the last tenth held out for validation.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace train_gpt {

class text {
 public:
  // Throws std::invalid_argument if the bytes are of no use for training at this context length:
  // both parts must hold a window of context + 1 bytes, inputs and targets.
  text(std::string_view bytes, int context) {
    if (bytes.empty()) throw std::invalid_argument("the text is empty");
    std::array<bool, 256> occurs{};
    for (const char c : bytes) occurs[static_cast<unsigned char>(c)] = true;
    for (std::size_t byte = 0; byte < occurs.size(); ++byte) {
      if (!occurs[byte]) continue;
      token_of_[byte] = static_cast<int>(alphabet_.size());
      alphabet_.push_back(static_cast<char>(byte));
    }
    if (alphabet_.size() < 2) throw std::invalid_argument("the text repeats a single byte");
    tokens_ = encode(bytes);
    training_size_ = tokens_.size() - tokens_.size() / 10;
    if (context < 1 || std::min(training().size(), validation().size()) <= std::size_t(context)) {
      throw std::invalid_argument("a text of " + std::to_string(bytes.size()) +
                                  " bytes is too short for context " + std::to_string(context) +
                                  ": its last tenth, too, must be longer than the context");
    }
  }

  int vocabulary() const { return static_cast<int>(alphabet_.size()); }
  std::span<const std::uint8_t> training() const {
    return std::span(tokens_).first(training_size_);
  }
  std::span<const std::uint8_t> validation() const {
    return std::span(tokens_).subspan(training_size_);
  }

  // A part of the training text, the same validation text and the same alphabet: blocks are dealt
  // in turn, so that parts are disjoint and alike. Throws std::invalid_argument if no full block is
  // there for each part.
  text dealt(int part, int parts) const {
    constexpr std::size_t block = 8192;
    const std::size_t blocks = training_size_ / block;
    if (blocks < static_cast<std::size_t>(parts)) {
      throw std::invalid_argument("a text of " + std::to_string(training_size_) +
                                  " bytes is too short for " + std::to_string(parts) + " parts");
    }
    text own = *this;
    own.tokens_.clear();
    for (auto b = static_cast<std::size_t>(part); b < blocks;
         b += static_cast<std::size_t>(parts)) {
      const auto from = tokens_.begin() + static_cast<std::ptrdiff_t>(b * block);
      own.tokens_.insert(own.tokens_.end(), from, from + static_cast<std::ptrdiff_t>(block));
    }
    own.training_size_ = own.tokens_.size();
    own.tokens_.insert(own.tokens_.end(), validation().begin(), validation().end());
    return own;
  }

  std::vector<std::uint8_t> encode(std::string_view bytes) const {
    std::vector<std::uint8_t> tokens;
    tokens.reserve(bytes.size());
    for (const char c : bytes) {
      const int token = token_of_[static_cast<unsigned char>(c)];
      if (token < 0) {
        throw std::invalid_argument("byte " + std::to_string(static_cast<unsigned char>(c)) +
                                    " does not occur in the text");
      }
      tokens.push_back(static_cast<std::uint8_t>(token));
    }
    return tokens;
  }

  std::string decode(std::span<const std::uint8_t> tokens) const {
    std::string bytes;
    bytes.reserve(tokens.size());
    for (const std::uint8_t token : tokens) bytes.push_back(alphabet_.at(token));
    return bytes;
  }

 private:
  static std::array<int, 256> no_tokens() {
    std::array<int, 256> none;
    none.fill(-1);
    return none;
  }

  std::string alphabet_;  // the byte of each token, in ascending order
  std::array<int, 256> token_of_ = no_tokens();
  std::vector<std::uint8_t> tokens_;
  std::size_t training_size_ = 0;
};

inline text load_text(const std::filesystem::path& path, int context) {
  std::ifstream file(path, std::ios::binary);
  // Opening a directory succeeds on Linux; only reading from it fails.
  if (!file || std::filesystem::is_directory(path)) {
    throw std::runtime_error("cannot read the text '" + path.string() + "'");
  }
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (file.bad()) throw std::runtime_error("reading the text '" + path.string() + "' failed");
  try {
    return text(bytes, context);
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error("'" + path.string() + "': " + error.what());
  }
}

// Sentences of made-up words, each of which tends to be followed by one of four others: there is
// something to learn beyond pairs of letters, and no test depends on an installed text.
inline std::string synthetic_text(std::size_t size, std::uint64_t seed) {
  std::mt19937_64 random(seed);  // its output is the same everywhere, unlike a distribution's
  const auto below = [&](std::size_t bound) { return static_cast<std::size_t>(random() % bound); };
  constexpr std::string_view consonants = "bdfghklmnprstvwz", vowels = "aeiou";

  struct word {
    std::string letters;
    std::array<std::size_t, 4> followers;
  };
  std::vector<word> lexicon(200);
  for (word& w : lexicon) {
    for (std::size_t syllables = 1 + below(3); syllables > 0; --syllables) {
      w.letters += consonants[below(consonants.size())];
      w.letters += vowels[below(vowels.size())];
    }
    for (std::size_t& follower : w.followers) follower = below(lexicon.size());
  }

  std::string bytes;
  bytes.reserve(size + 16);
  for (std::size_t current = 0; bytes.size() < size;) {
    bytes += lexicon[current].letters;
    bytes += below(8) == 0 ? ".\n" : " ";
    current = below(10) == 0 ? below(lexicon.size()) : lexicon[current].followers[below(4)];
  }
  bytes.resize(size);
  return bytes;
}

// Copies the window at `offset`: the targets are the inputs, one token later.
inline void copy_window(std::span<const std::uint8_t> tokens, std::size_t offset,
                        std::span<std::uint8_t> inputs, std::span<std::uint8_t> targets) {
  if (inputs.size() != targets.size() || offset + inputs.size() >= tokens.size()) {
    throw std::out_of_range("copy_window: the window leaves the text");
  }
  std::ranges::copy(tokens.subspan(offset, inputs.size()), inputs.begin());
  std::ranges::copy(tokens.subspan(offset + 1, targets.size()), targets.begin());
}

// A random window as a pure function of (seed, step, sequence), `sequence` counting over the batch
// of all ranks: the data of a step do not depend on how many ranks share it.
inline void training_window(std::span<const std::uint8_t> tokens, std::uint64_t seed,
                            std::uint64_t step, std::uint64_t sequence,
                            std::span<std::uint8_t> inputs, std::span<std::uint8_t> targets) {
  if (tokens.size() <= inputs.size()) {
    throw std::out_of_range("training_window: the text is shorter than the window");
  }
  // seed_seq takes 32 bits of each value.
  std::seed_seq mixed{seed, seed >> 32, step, step >> 32, sequence, sequence >> 32};
  const std::uint64_t draw = std::mt19937_64(mixed)();
  copy_window(tokens, static_cast<std::size_t>(draw % (tokens.size() - inputs.size())), inputs,
              targets);
}

// Window `i` of `count` that are spread evenly from the first to the last possible offset.
inline void validation_window(std::span<const std::uint8_t> tokens, std::size_t i,
                              std::size_t count, std::span<std::uint8_t> inputs,
                              std::span<std::uint8_t> targets) {
  if (i >= count || tokens.size() <= inputs.size()) {
    throw std::out_of_range("validation_window: no such window");
  }
  const std::size_t last = tokens.size() - inputs.size() - 1;
  copy_window(tokens, count == 1 ? 0 : i * last / (count - 1), inputs, targets);
}

// The loss of the bigram model of the training part, smoothed by one count per pair, on the
// validation part, in nats per byte: what a model must beat to have learned more than pairs.
inline double bigram_loss(const text& t) {
  const auto vocabulary = static_cast<std::size_t>(t.vocabulary());
  std::vector<double> pairs(vocabulary * vocabulary, 1.0);
  std::vector<double> totals(vocabulary, static_cast<double>(vocabulary));
  const auto training = t.training(), validation = t.validation();
  for (std::size_t i = 1; i < training.size(); ++i) {
    pairs[training[i - 1] * vocabulary + training[i]] += 1;
    totals[training[i - 1]] += 1;
  }
  double loss = 0;
  for (std::size_t i = 1; i < validation.size(); ++i) {
    const std::size_t previous = validation[i - 1];
    loss -= std::log(pairs[previous * vocabulary + validation[i]] / totals[previous]);
  }
  return loss / static_cast<double>(validation.size() - 1);
}

}  // namespace train_gpt
