// The text form of a table, one rule a line:
//
//   drivetrain-nccl-table 1
//   # collective  sizes          ranks  nodes  algorithm  protocol  options
//   all_reduce    64KiB..4MiB    16     2      tree       ll128     channels=8
//   all_gather    1MiB..         *      *      ring       simple    reg_buff=1

#include <algorithm>
#include <array>
#include <climits>
#include <cstdio>

#include "names.hpp"
#include "table.hpp"
#include "words.hpp"

namespace drivetrain::nccl {

namespace {

constexpr std::string_view header = "drivetrain-nccl-table 1";
constexpr std::size_t num_fixed_words = 6;
constexpr std::uint64_t most_channels = 64;

using Words = std::vector<std::string_view>;

template <class Parts>
std::string join(const Parts& parts, const char* between) {
  std::string joined;
  for (const auto& part : parts) {
    if (!joined.empty()) joined += between;
    joined += part;
  }
  return joined;
}

class Parser {
 public:
  explicit Parser(const std::string& source) : source_(source) {}

  std::vector<Rule> parse(std::string_view text) {
    std::vector<Rule> rules;
    bool has_header = false;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      ++line_;
      check_bytes(line);
      const Words words = split(line);
      if (words.empty()) continue;
      if (has_header)
        rules.push_back(parse_rule(words));
      else
        check_header(quote(join(words, " ")));
      has_header = true;
    }
    line_ = std::max(line_, 1);
    if (!has_header) check_header("nothing");
    check_overlap(rules);
    return rules;
  }

 private:
  [[noreturn]] void refuse(const std::string& why) const {
    throw TableError(source_ + ":" + std::to_string(line_) + ": " + why);
  }

  void check_bytes(std::string_view line) const {
    const auto byte = find_unprintable(line);
    if (!byte) return;
    char text[8];
    std::snprintf(text, sizeof text, "0x%02x", *byte);
    refuse(std::string("only comments may hold other than printable ASCII, got ") +
           text);
  }

  void check_header(const std::string& got) const {
    const std::string wanted = quote(header);
    if (got != wanted) refuse("the first line must be " + wanted + ", got " + got);
  }

  Rule parse_rule(const Words& words) const {
    if (words.size() < num_fixed_words)
      refuse(
          "a rule is COLLECTIVE SIZES RANKS NODES ALGORITHM PROTOCOL [OPTION=VALUE "
          "...], got " +
          std::to_string(words.size()) + " words");
    Rule rule{};
    rule.line = line_;
    rule.collective = parse_name("the collective", words[0], collectives);
    parse_sizes(words[1], rule);
    rule.ranks = words[2] == "*" ? any : parse_number("ranks", words[2], INT_MAX);
    rule.nodes = words[3] == "*" ? any : parse_number("nodes", words[3], INT_MAX);
    if (rule.ranks != any && rule.nodes > rule.ranks)
      refuse(std::to_string(rule.ranks) + " ranks cannot be on " +
             std::to_string(rule.nodes) + " nodes");
    rule.algorithm = parse_name("the algorithm", words[4], algorithms);
    rule.protocol = parse_name("the protocol", words[5], protocols);
    parse_options({words.begin() + num_fixed_words, words.end()}, rule);
    if (rule.channels) check_channels(rule);
    return rule;
  }

  template <class Names>
  int parse_name(const char* what, std::string_view word, const Names& names) const {
    for (std::size_t i = 0; i < names.size(); ++i)
      if (word == names[i]) return static_cast<int>(i);
    refuse(std::string(what) + " must be one of " + join(names, ", ") + ", got " +
           quote(word));
  }

  int parse_number(const char* what, std::string_view word, std::uint64_t most) const {
    const auto value = number(word, 1, most);
    if (!value)
      refuse(std::string(what) + " must be a number from 1 to " + std::to_string(most) +
             ", got " + quote(word));
    return static_cast<int>(*value);
  }

  std::uint64_t parse_size(std::string_view word) const {
    const auto value = size(word);
    if (!value)
      refuse(
          "a size must be a whole number with the unit B, KiB, MiB, GiB or TiB, and "
          "below 8 EiB, got " +
          quote(word));
    return *value;
  }

  void parse_sizes(std::string_view word, Rule& rule) const {
    const std::size_t dots = word.find("..");
    if (dots == word.npos)
      refuse("sizes must be BEGIN..END, or BEGIN.. without an end, got " + quote(word));
    rule.first_bytes = parse_size(word.substr(0, dots));
    rule.last_bytes = UINT64_MAX;
    const std::string_view end = word.substr(dots + 2);
    if (end.empty()) return;
    const std::uint64_t end_bytes = parse_size(end);
    if (end_bytes <= rule.first_bytes)
      refuse("sizes must end after they begin, got " + quote(word));
    rule.last_bytes = end_bytes - 1;
  }

  void parse_options(const Words& words, Rule& rule) const {
    rule.num_pipe_ops = rule.reg_buff = any;
    bool has_channels = false, has_ops = false, has_buff = false;
    for (const std::string_view word : words) {
      const std::size_t equals = word.find('=');
      if (equals == word.npos)
        refuse("an option must be NAME=VALUE, got " + quote(word));
      const std::string_view name = word.substr(0, equals);
      const std::string_view value = word.substr(equals + 1);
      if (name == "channels") {
        once(name, has_channels);
        rule.channels = parse_number("channels", value, most_channels);
      } else if (name == "num_pipe_ops") {
        once(name, has_ops);
        rule.num_pipe_ops = parse_number("num_pipe_ops", value, INT_MAX);
      } else if (name == "reg_buff") {
        once(name, has_buff);
        if (value != "0" && value != "1")
          refuse("reg_buff must be 0 or 1, got " + quote(value));
        rule.reg_buff = value == "1";
      } else {
        refuse("an option must be one of channels, num_pipe_ops, reg_buff, got " +
               quote(name));
      }
    }
  }

  // NCCL 2.24 to 2.32 take the channels of these as they are, even of more channels
  // than the communicator has, which would use memory that nobody has set up.
  void check_channels(const Rule& rule) const {
    const bool is_collnet =
        rule.algorithm == collnet_direct || rule.algorithm == collnet_chain;
    if (is_collnet)
      refuse(std::string("channels cannot be set for ") +
             algorithms[static_cast<std::size_t>(rule.algorithm)] +
             ", where NCCL does not check them");
    if (rule.algorithm == nvls && rule.nodes != 1)
      refuse("channels can be set for nvls on 1 node only: NCCL does not check them");
  }

  void once(std::string_view name, bool& is_given) const {
    if (is_given) refuse(std::string(name) + " is given twice");
    is_given = true;
  }

  void check_overlap(const std::vector<Rule>& rules) {
    const auto places = find_overlap(rules);
    if (!places) return;
    line_ = rules[places->second].line;
    refuse("it overlaps the rule of line " + std::to_string(rules[places->first].line));
  }

  const std::string& source_;
  int line_ = 0;
};

}  // namespace

Table parse_table(std::string_view text, const std::string& source) {
  Table table;
  table.rules = Parser(source).parse(text);
  table.hash = hash_of(table.rules);
  return table;
}

}  // namespace drivetrain::nccl
