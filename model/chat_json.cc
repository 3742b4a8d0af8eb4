#include "model/chat_json.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/utf8.h"

namespace warpline::chat {
namespace {

constexpr int kMaxDepth = 64;

class JsonParser {
 public:
  explicit JsonParser(absl::string_view text) : text_(text) {}

  absl::StatusOr<Value> Parse() {
    WL_ASSIGN_OR_RETURN(Value value, ParseValue(0));
    SkipSpace();
    if (at_ != text_.size()) return Error("expected the end");
    return value;
  }

 private:
  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("JSON at byte ", at_, ": ", what));
  }

  void SkipSpace() {
    while (at_ < text_.size() && absl::StrContains(absl::string_view(" \t\r\n"), text_[at_])) ++at_;
  }

  bool Take(char byte) {
    SkipSpace();
    if (at_ >= text_.size() || text_[at_] != byte) return false;
    ++at_;
    return true;
  }

  bool TakeWord(absl::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  absl::StatusOr<Value> ParseValue(int depth) {
    if (depth > kMaxDepth) return Error(absl::StrCat("nested more than ", kMaxDepth, " deep"));
    SkipSpace();
    if (at_ >= text_.size()) return Error("expected a value");
    const char byte = text_[at_];
    if (byte == '{') return ParseObject(depth);
    if (byte == '[') return ParseArray(depth);
    if (byte == '"') {
      WL_ASSIGN_OR_RETURN(const std::string text, ParseString());
      return Value(Text::Untrusted(text));
    }
    if (TakeWord("true")) return Value(true);
    if (TakeWord("false")) return Value(false);
    if (TakeWord("null")) return Value(None{});
    return ParseNumber();
  }

  absl::StatusOr<Value> ParseObject(int depth) {
    ++at_;
    Dict items;
    if (Take('}')) return MakeDict(std::move(items));
    do {
      SkipSpace();
      if (at_ >= text_.size() || text_[at_] != '"') return Error("expected a key");
      WL_ASSIGN_OR_RETURN(const std::string key, ParseString());
      if (!Take(':')) return Error("expected ':'");
      WL_ASSIGN_OR_RETURN(Value value, ParseValue(depth + 1));
      items.emplace_back(Text::Untrusted(key), std::move(value));
    } while (Take(','));
    if (!Take('}')) return Error("expected ',' or '}'");
    return MakeDict(KeepLast(std::move(items)));
  }

  // Of equal keys the last value counts, at the place of the first.
  static Dict KeepLast(Dict items) {
    std::vector<size_t> order(items.size());
    for (size_t index = 0; index < order.size(); ++index) order[index] = index;
    const auto key = [&items](size_t index) -> const std::string& {
      return items[index].first.text()->bytes;
    };
    std::stable_sort(order.begin(), order.end(),
                     [&key](size_t a, size_t b) { return key(a) < key(b); });
    std::vector<bool> dropped(items.size());
    for (size_t index = 1; index < order.size(); ++index) {
      if (key(order[index - 1]) != key(order[index])) continue;
      std::swap(items[order[index - 1]].second, items[order[index]].second);
      dropped[order[index]] = true;
      std::swap(order[index - 1], order[index]);
    }
    Dict kept;
    for (size_t index = 0; index < items.size(); ++index) {
      if (!dropped[index]) kept.push_back(std::move(items[index]));
    }
    return kept;
  }

  absl::StatusOr<Value> ParseArray(int depth) {
    ++at_;
    List items;
    if (Take(']')) return MakeList(std::move(items));
    do {
      WL_ASSIGN_OR_RETURN(Value value, ParseValue(depth + 1));
      items.push_back(std::move(value));
    } while (Take(','));
    if (!Take(']')) return Error("expected ',' or ']'");
    return MakeList(std::move(items));
  }

  absl::StatusOr<uint32_t> ParseHex4() {
    uint32_t unit = 0;
    const absl::string_view digits = text_.substr(at_, 4);
    if (digits.size() < 4 || !std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit) ||
        !absl::SimpleHexAtoi(digits, &unit)) {
      return Error("expected four hex digits");
    }
    at_ += 4;
    return unit;
  }

  absl::Status ParseEscape(std::string& out) {
    static constexpr absl::string_view kLetters = "\"\\/bfnrt";
    static constexpr absl::string_view kBytes = "\"\\/\b\f\n\r\t";
    if (at_ >= text_.size()) return Error("unfinished escape");
    const char letter = text_[at_++];
    if (const size_t index = kLetters.find(letter); index != absl::string_view::npos) {
      out.push_back(kBytes[index]);
      return absl::OkStatus();
    }
    if (letter != 'u') return Error("unknown escape");
    WL_ASSIGN_OR_RETURN(uint32_t unit, ParseHex4());
    if (unit >= 0xD800 && unit < 0xDC00 && TakeWord("\\u")) {
      WL_ASSIGN_OR_RETURN(const uint32_t low, ParseHex4());
      if (low < 0xDC00 || low > 0xDFFF) return Error("lone surrogate");
      unit = 0x10000 + ((unit - 0xD800) << 10) + (low - 0xDC00);
    }
    if (unit >= 0xD800 && unit <= 0xDFFF) return Error("lone surrogate");
    AppendUtf8(unit, &out);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ParseString() {
    ++at_;
    std::string out;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char byte = text_[at_++];
      if (static_cast<unsigned char>(byte) < 0x20) return Error("control byte in a string");
      if (byte == '\\') {
        WL_RETURN_IF_ERROR(ParseEscape(out));
      } else {
        out.push_back(byte);
      }
    }
    if (at_ >= text_.size()) return Error("unfinished string");
    ++at_;
    return out;
  }

  absl::StatusOr<Value> ParseNumber() {
    const size_t begin = at_;
    while (at_ < text_.size() &&
           (absl::ascii_isdigit(text_[at_]) || absl::StrContains("+-.eE", text_[at_])))
      ++at_;
    const absl::string_view digits = text_.substr(begin, at_ - begin);
    int64_t integer = 0;
    if (digits.find_first_of(".eE") == absl::string_view::npos) {
      if (absl::SimpleAtoi(digits, &integer)) return Value(integer);
      return Error("expected a value, or an integer of at most 64 bits");
    }
    double number = 0;
    if (!absl::SimpleAtod(digits, &number) || !std::isfinite(number))
      return Error("expected a finite number");
    return Value(number);
  }

  absl::string_view text_;
  size_t at_ = 0;
};

class JsonWriter {
 public:
  JsonWriter(int indent, bool sort_keys, absl::string_view item_separator,
             absl::string_view key_separator)
      : indent_(indent),
        sort_keys_(sort_keys),
        item_separator_(item_separator),
        key_separator_(key_separator) {}

  absl::Status Write(const Value& value, int level) {
    if (value.text() != nullptr) {
      WriteString(*value.text());
    } else if (value.Is<None>()) {
      Add("null");
    } else if (const bool* const flag = value.If<bool>()) {
      Add(*flag ? "true" : "false");
    } else if (value.is_number()) {
      out_.Append(ToText(value));
    } else if (value.list() != nullptr) {
      return WriteList(value.list()->items, level);
    } else if (value.dict() != nullptr) {
      return WriteDict(value.dict()->items, level);
    } else {
      return absl::InvalidArgumentError(absl::StrCat("tojson cannot write ", TypeName(value)));
    }
    return absl::OkStatus();
  }

  Text Take() { return std::move(out_); }

 private:
  void Add(absl::string_view text) { out_.Append(Text::Untrusted(text)); }

  void NewLine(int level) {
    if (indent_ >= 0)
      Add(absl::StrCat("\n", std::string(static_cast<size_t>(indent_ * level), ' ')));
  }

  void WriteString(const Text& text) {
    Add("\"");
    for (size_t index = 0; index < text.size(); ++index) {
      const char byte = text.bytes[index];
      static constexpr absl::string_view kBytes = "\"\\\b\f\n\r\t";
      static constexpr absl::string_view kLetters = "\"\\bfnrt";
      if (const size_t at = kBytes.find(byte); at != absl::string_view::npos) {
        Add(absl::StrCat("\\", kLetters.substr(at, 1)));
      } else if (static_cast<unsigned char>(byte) < 0x20) {
        Add(absl::StrFormat("\\u%04x", byte));
      } else {
        out_.bytes.push_back(byte);
        out_.trust.push_back(text.trust[index]);
      }
    }
    Add("\"");
  }

  absl::Status WriteList(const List& items, int level) {
    Add("[");
    for (size_t index = 0; index < items.size(); ++index) {
      if (index > 0) Add(item_separator_);
      NewLine(level + 1);
      WL_RETURN_IF_ERROR(Write(items[index], level + 1));
    }
    if (!items.empty()) NewLine(level);
    Add("]");
    return absl::OkStatus();
  }

  absl::Status WriteDict(Dict items, int level) {
    if (sort_keys_) {
      std::stable_sort(items.begin(), items.end(), [](const auto& a, const auto& b) {
        return ToText(a.first).bytes < ToText(b.first).bytes;
      });
    }
    Add("{");
    for (size_t index = 0; index < items.size(); ++index) {
      if (index > 0) Add(item_separator_);
      NewLine(level + 1);
      WriteString(ToText(items[index].first));
      Add(key_separator_);
      WL_RETURN_IF_ERROR(Write(items[index].second, level + 1));
    }
    if (!items.empty()) NewLine(level);
    Add("}");
    return absl::OkStatus();
  }

  const int indent_;
  const bool sort_keys_;
  const std::string item_separator_;
  const std::string key_separator_;
  Text out_;
};

}  // namespace

absl::StatusOr<Value> ParseJson(absl::string_view text) { return JsonParser(text).Parse(); }

absl::StatusOr<Text> ToJson(const Value& value, int indent, bool sort_keys,
                            absl::string_view item_separator, absl::string_view key_separator) {
  JsonWriter writer(indent, sort_keys, item_separator, key_separator);
  WL_RETURN_IF_ERROR(writer.Write(value, 0));
  return writer.Take();
}

}  // namespace warpline::chat
