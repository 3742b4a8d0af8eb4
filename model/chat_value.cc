#include "model/chat_value.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace warpline::chat {
namespace {

constexpr int64_t kBytesPerPart = 16;
constexpr int64_t kMaxWeight = int64_t{1} << 40;

// Python's repr of a float: the shortest digits that give the same value back.
std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char digits[40];
  for (int precision = 1; precision <= 17; ++precision) {
    std::snprintf(digits, sizeof(digits), "%.*e", precision - 1, value);
    if (std::strtod(digits, nullptr) == value) break;
  }
  std::string mantissa(digits);
  const size_t at = mantissa.find('e');
  const int exponent = std::atoi(mantissa.c_str() + at + 1);
  if (exponent < -4 || exponent >= 16) {
    return absl::StrCat(mantissa.substr(0, at), exponent < 0 ? "e-" : "e+",
                        std::abs(exponent) < 10 ? "0" : "", std::abs(exponent));
  }
  const int decimals =
      std::max<int>(1, static_cast<int>(at) - (mantissa[0] == '-' ? 1 : 0) - 2 - exponent);
  std::snprintf(digits, sizeof(digits), "%.*f", decimals, value);
  return digits;
}

// Quotes text as Python does: single quotes unless only double ones are free.
Text QuotedText(const Text& text) {
  const bool use_double =
      absl::StrContains(text.bytes, '\'') && !absl::StrContains(text.bytes, '"');
  const Text quote = Text::Untrusted(use_double ? "\"" : "'");
  Text quoted = quote;
  for (size_t index = 0; index < text.size(); ++index) {
    const char byte = text.bytes[index];
    if (byte == '\n') {
      quoted.Append(Text::Untrusted("\\n"));
    } else if (byte == '\t') {
      quoted.Append(Text::Untrusted("\\t"));
    } else if (byte == '\r') {
      quoted.Append(Text::Untrusted("\\r"));
    } else if (byte == '\\' || byte == quote.bytes[0]) {
      quoted.Append(Text::Untrusted(std::string("\\") + byte));
    } else {
      quoted.Append(text.Slice(index, index + 1));
    }
  }
  quoted.Append(quote);
  return quoted;
}

Text ListText(const ListObject& list) {
  Text text = Text::Untrusted(list.is_tuple ? "(" : "[");
  for (size_t index = 0; index < list.items.size(); ++index) {
    if (index > 0) text.Append(Text::Untrusted(", "));
    text.Append(Repr(list.items[index]));
  }
  if (list.is_tuple && list.items.size() == 1) text.Append(Text::Untrusted(","));
  text.Append(Text::Untrusted(list.is_tuple ? ")" : "]"));
  return text;
}

Text DictText(const DictObject& dict) {
  Text text = Text::Untrusted("{");
  for (size_t index = 0; index < dict.items.size(); ++index) {
    if (index > 0) text.Append(Text::Untrusted(", "));
    text.Append(Repr(dict.items[index].first));
    text.Append(Text::Untrusted(": "));
    text.Append(Repr(dict.items[index].second));
  }
  text.Append(Text::Untrusted("}"));
  return text;
}

}  // namespace

TrustedText ToTrustedText(const Text& text) {
  TrustedText result;
  result.text = text.bytes;
  for (size_t index = 0; index < text.size(); ++index) {
    if (text.trust[index] == 0) continue;
    if (!result.trusted.empty() && result.trusted.back().end == index) {
      ++result.trusted.back().end;
    } else {
      result.trusted.push_back({.begin = index, .end = index + 1});
    }
  }
  return result;
}

double Value::AsDouble() const {
  if (const bool* const flag = If<bool>()) return *flag ? 1 : 0;
  if (const int64_t* const integer = If<int64_t>()) return static_cast<double>(*integer);
  const double* const number = If<double>();
  return number == nullptr ? 0 : *number;
}

int Value::depth() const {
  if (list() != nullptr) return list()->depth;
  return dict() != nullptr ? dict()->depth : 0;
}

int64_t Value::weight() const {
  if (list() != nullptr) return list()->weight;
  if (dict() != nullptr) return dict()->weight;
  return text() == nullptr ? 1 : 1 + static_cast<int64_t>(text()->size()) / kBytesPerPart;
}

Value MakeList(List items, bool is_tuple) {
  int depth = 0;
  int64_t weight = 1;
  for (const Value& item : items) {
    depth = std::max(depth, item.depth());
    weight = std::min(kMaxWeight, weight + item.weight());
  }
  return std::make_shared<const ListObject>(
      ListObject{std::move(items), depth + 1, weight, is_tuple});
}

Value MakeDict(Dict items) {
  int depth = 0;
  int64_t weight = 1;
  for (const auto& [key, value] : items) {
    depth = std::max({depth, key.depth(), value.depth()});
    weight = std::min(kMaxWeight, weight + key.weight() + value.weight());
  }
  return std::make_shared<const DictObject>(DictObject{std::move(items), depth + 1, weight});
}

bool IsTrue(const Value& value) {
  if (value.Is<Undefined>() || value.Is<None>()) return false;
  if (value.is_number()) return value.AsDouble() != 0;
  if (value.text() != nullptr) return !value.text()->empty();
  if (value.list() != nullptr) return !value.list()->items.empty();
  if (value.dict() != nullptr) return !value.dict()->items.empty();
  return true;
}

bool Equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    const int64_t* const left = a.If<int64_t>();
    const int64_t* const right = b.If<int64_t>();
    return left != nullptr && right != nullptr ? *left == *right : a.AsDouble() == b.AsDouble();
  }
  if (a.text() != nullptr && b.text() != nullptr) return a.text()->bytes == b.text()->bytes;
  if (a.list() != nullptr && b.list() != nullptr) {
    const List& left = a.list()->items;
    const List& right = b.list()->items;
    return a.list()->is_tuple == b.list()->is_tuple &&
           std::equal(left.begin(), left.end(), right.begin(), right.end(), Equal);
  }
  if (a.dict() != nullptr && b.dict() != nullptr) {
    if (a.dict()->items.size() != b.dict()->items.size()) return false;
    for (const auto& [key, value] : a.dict()->items) {
      const Value* const other = Find(*b.dict(), key);
      if (other == nullptr || !Equal(value, *other)) return false;
    }
    return true;
  }
  return (a.Is<None>() && b.Is<None>()) || (a.Is<Undefined>() && b.Is<Undefined>());
}

bool Compare(const Value& a, const Value& b, int& order) {
  if (a.is_number() && b.is_number()) {
    const int64_t* const left = a.If<int64_t>();
    const int64_t* const right = b.If<int64_t>();
    if (left != nullptr && right != nullptr) {
      order = *left < *right ? -1 : *left > *right ? 1 : 0;
    } else {
      order = a.AsDouble() < b.AsDouble() ? -1 : a.AsDouble() > b.AsDouble() ? 1 : 0;
    }
    return true;
  }
  if (a.text() != nullptr && b.text() != nullptr) {  // UTF-8 orders bytes as code points.
    const int compared = a.text()->bytes.compare(b.text()->bytes);
    order = compared < 0 ? -1 : compared > 0 ? 1 : 0;
    return true;
  }
  if (a.list() == nullptr || b.list() == nullptr) return false;
  const List& left = a.list()->items;
  const List& right = b.list()->items;
  for (size_t index = 0; index < std::min(left.size(), right.size()); ++index) {
    if (Equal(left[index], right[index])) continue;
    return Compare(left[index], right[index], order);
  }
  order = left.size() < right.size() ? -1 : left.size() > right.size() ? 1 : 0;
  return true;
}

const Value* Find(const DictObject& dict, const Value& key) {
  for (const auto& [name, value] : dict.items) {
    if (Equal(name, key)) return &value;
  }
  return nullptr;
}

const Value* Find(const DictObject& dict, absl::string_view key) {
  for (const auto& [name, value] : dict.items) {
    if (name.text() != nullptr && name.text()->bytes == key) return &value;
  }
  return nullptr;
}

std::string TypeName(const Value& value) {
  if (value.Is<Undefined>()) return "undefined";
  if (value.Is<None>()) return "None";
  if (value.Is<bool>()) return "bool";
  if (value.Is<int64_t>()) return "int";
  if (value.Is<double>()) return "float";
  if (value.text() != nullptr) return "str";
  if (value.list() != nullptr) return value.list()->is_tuple ? "tuple" : "list";
  if (value.dict() != nullptr) return "dict";
  return value.Is<std::shared_ptr<NamespaceObject>>() ? "namespace" : "function";
}

Text ToText(const Value& value) {
  if (value.text() != nullptr) return *value.text();
  if (value.Is<Undefined>()) return Text();
  if (value.Is<None>()) return Text::Trusted("None");
  if (const bool* const flag = value.If<bool>()) return Text::Trusted(*flag ? "True" : "False");
  if (const int64_t* const integer = value.If<int64_t>())
    return Text::Untrusted(absl::StrCat(*integer));
  if (const double* const number = value.If<double>()) return Text::Untrusted(FloatText(*number));
  if (value.list() != nullptr) return ListText(*value.list());
  if (value.dict() != nullptr) return DictText(*value.dict());
  return Text::Trusted(absl::StrCat("<", TypeName(value), ">"));
}

Text Repr(const Value& value) {
  return value.text() != nullptr ? QuotedText(*value.text()) : ToText(value);
}

std::vector<size_t> CharacterStarts(absl::string_view text) {
  std::vector<size_t> starts;
  for (size_t index = 0; index < text.size(); ++index) {
    if ((static_cast<unsigned char>(text[index]) & 0xC0) != 0x80) starts.push_back(index);
  }
  starts.push_back(text.size());
  return starts;
}

}  // namespace warpline::chat
