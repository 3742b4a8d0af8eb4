// Filters and tests of the template language.
#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "model/chat_interpreter.h"
#include "model/chat_json.h"
#include "model/chat_lexer.h"

namespace warpline::chat {
namespace {

constexpr absl::string_view kSpace = " \t\n\r\v\f";

int64_t IntegerOr(const Value* value, int64_t otherwise) {
  const int64_t* const number = value == nullptr ? nullptr : value->If<int64_t>();
  return number == nullptr ? otherwise : *number;
}

bool TrueOr(const Value* value, bool otherwise) {
  return value == nullptr ? otherwise : IsTrue(*value);
}

absl::StatusOr<Value> Length(int line, const Value& input) {
  if (input.text() != nullptr)
    return Value(static_cast<int64_t>(CharacterStarts(input.text()->bytes).size()) - 1);
  if (input.list() != nullptr) return Value(static_cast<int64_t>(input.list()->items.size()));
  if (input.dict() != nullptr) return Value(static_cast<int64_t>(input.dict()->items.size()));
  if (input.Is<Undefined>()) return Value(int64_t{0});
  return LineError(line, absl::StrCat(TypeName(input), " has no length"));
}

// `a.b.0` of each element, as `attribute=` arguments name it.
absl::StatusOr<Value> Path(Interpreter& interpreter, int line, Value value, const Value& path) {
  if (path.Is<int64_t>()) return interpreter.Item(line, value, path);
  for (absl::string_view part : absl::StrSplit(ToText(path).bytes, '.')) {
    int64_t index = 0;
    if (absl::SimpleAtoi(part, &index)) {
      WL_ASSIGN_OR_RETURN(value, interpreter.Item(line, value, Value(index)));
    } else if (value.dict() != nullptr) {  // Filters look at items first.
      WL_ASSIGN_OR_RETURN(value, interpreter.Item(line, value, Text::Trusted(part)));
    } else {
      WL_ASSIGN_OR_RETURN(value, interpreter.Attribute(line, value, std::string(part)));
    }
  }
  return value;
}

absl::StatusOr<Value> ToJsonFilter(Interpreter& interpreter, const Value& input,
                                   const Arguments& arguments) {
  const int64_t indent = std::min<int64_t>(IntegerOr(arguments.Get(0, "indent"), -1), 16);
  std::string item_separator = indent >= 0 ? "," : ", ";
  std::string key_separator = ": ";
  const Value* const separators = arguments.Get(SIZE_MAX, "separators");
  if (separators != nullptr && separators->list() != nullptr &&
      separators->list()->items.size() == 2) {
    item_separator = ToText(separators->list()->items[0]).bytes;
    key_separator = ToText(separators->list()->items[1]).bytes;
  }
  const absl::StatusOr<Text> text =
      ToJson(input, static_cast<int>(indent), TrueOr(arguments.Get(SIZE_MAX, "sort_keys"), false),
             item_separator, key_separator);
  if (!text.ok()) return LineError(arguments.line, text.status().message());
  WL_RETURN_IF_ERROR(interpreter.Charge(arguments.line, static_cast<int64_t>(text->size()) / 16));
  return Value(*text);
}

absl::StatusOr<Value> Join(Interpreter& interpreter, const Value& input,
                           const Arguments& arguments) {
  WL_ASSIGN_OR_RETURN(const List items, interpreter.Elements(arguments.line, input));
  const Value* const given = arguments.Get(0, "d");
  const Text separator = given == nullptr ? Text() : ToText(*given);
  const Value* const attribute = arguments.Get(1, "attribute");
  Text joined;
  for (size_t index = 0; index < items.size(); ++index) {
    if (index > 0) joined.Append(separator);
    Value item = items[index];
    if (attribute != nullptr) {
      WL_ASSIGN_OR_RETURN(item, Path(interpreter, arguments.line, item, *attribute));
    }
    const Text text = ToText(item);
    WL_RETURN_IF_ERROR(interpreter.Charge(
        arguments.line, static_cast<int64_t>(text.size() + separator.size()) / 16));
    joined.Append(text);
  }
  return Value(std::move(joined));
}

absl::StatusOr<Value> Map(Interpreter& interpreter, const Value& input,
                          const Arguments& arguments) {
  WL_ASSIGN_OR_RETURN(List items, interpreter.Elements(arguments.line, input));
  const Value* const attribute = arguments.Get(SIZE_MAX, "attribute");
  const Value* const otherwise = arguments.Get(SIZE_MAX, "default");
  if (attribute == nullptr && arguments.positional.empty())
    return LineError(arguments.line, "map() takes a filter or an attribute");
  Arguments rest{.line = arguments.line};
  if (!arguments.positional.empty())
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
  for (Value& item : items) {
    if (attribute != nullptr) {
      WL_ASSIGN_OR_RETURN(item, Path(interpreter, arguments.line, item, *attribute));
      if (item.Is<Undefined>() && otherwise != nullptr) item = *otherwise;
    } else {
      WL_ASSIGN_OR_RETURN(
          item, interpreter.ApplyFilter(ToText(arguments.positional[0]).bytes, item, rest));
    }
  }
  return MakeList(std::move(items));
}

// select, reject, selectattr, rejectattr.
absl::StatusOr<Value> Select(Interpreter& interpreter, const std::string& name, const Value& input,
                             const Arguments& arguments) {
  const bool by_attribute = name == "selectattr" || name == "rejectattr";
  const bool wanted = name == "select" || name == "selectattr";
  const size_t test_at = by_attribute ? 1 : 0;
  if (by_attribute && arguments.positional.empty())
    return LineError(arguments.line, absl::StrCat(name, "() takes an attribute"));
  WL_ASSIGN_OR_RETURN(const List items, interpreter.Elements(arguments.line, input));
  Arguments rest{.line = arguments.line};
  if (arguments.positional.size() > test_at + 1) {
    rest.positional.assign(arguments.positional.begin() + static_cast<int64_t>(test_at) + 1,
                           arguments.positional.end());
  }
  List kept;
  for (const Value& item : items) {
    Value value = item;
    if (by_attribute) {
      WL_ASSIGN_OR_RETURN(value, Path(interpreter, arguments.line, value, arguments.positional[0]));
    }
    bool holds = IsTrue(value);
    if (arguments.positional.size() > test_at) {
      WL_ASSIGN_OR_RETURN(
          holds, interpreter.ApplyTest(ToText(arguments.positional[test_at]).bytes, value, rest));
    }
    if (holds == wanted) kept.push_back(item);
  }
  return MakeList(std::move(kept));
}

// What elements are ordered or told apart by: an attribute if one is named; strings without case
// unless asked.
absl::StatusOr<List> Keys(Interpreter& interpreter, const List& items, const Arguments& arguments,
                          bool case_sensitive) {
  const Value* const attribute = arguments.Get(SIZE_MAX, "attribute");
  List keys;
  for (const Value& item : items) {
    Value key = item;
    if (attribute != nullptr) {
      WL_ASSIGN_OR_RETURN(key, Path(interpreter, arguments.line, key, *attribute));
    }
    if (key.text() != nullptr && !case_sensitive)
      key = Text::Untrusted(absl::AsciiStrToLower(key.text()->bytes));
    keys.push_back(std::move(key));
  }
  return keys;
}

absl::StatusOr<List> Sorted(Interpreter& interpreter, const List& items, const List& keys,
                            const Arguments& arguments, bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t index = 0; index < order.size(); ++index) order[index] = index;
  for (size_t index = 0; index + 1 < keys.size(); ++index) {
    int compared = 0;
    if (!Compare(keys[index], keys[index + 1], compared)) {
      return LineError(arguments.line, absl::StrCat("cannot order ", TypeName(keys[index]), " and ",
                                                    TypeName(keys[index + 1])));
    }
  }
  WL_RETURN_IF_ERROR(interpreter.Charge(arguments.line, MakeList(keys).weight() * 8));
  std::stable_sort(order.begin(), order.end(), [&keys, reverse](size_t a, size_t b) {
    int compared = 0;
    return Compare(keys[a], keys[b], compared) && (reverse ? compared > 0 : compared < 0);
  });
  List sorted;
  for (const size_t index : order) sorted.push_back(items[index]);
  return sorted;
}

absl::StatusOr<Value> Sort(Interpreter& interpreter, const Value& input,
                           const Arguments& arguments) {
  WL_ASSIGN_OR_RETURN(const List items, interpreter.Elements(arguments.line, input));
  const bool case_sensitive = TrueOr(arguments.Get(1, "case_sensitive"), false);
  WL_ASSIGN_OR_RETURN(const List keys, Keys(interpreter, items, arguments, case_sensitive));
  WL_ASSIGN_OR_RETURN(List sorted, Sorted(interpreter, items, keys, arguments,
                                          TrueOr(arguments.Get(0, "reverse"), false)));
  return MakeList(std::move(sorted));
}

absl::StatusOr<Value> DictSort(Interpreter& interpreter, const Value& input,
                               const Arguments& arguments) {
  if (input.dict() == nullptr) return LineError(arguments.line, "dictsort takes a dict");
  const Value* const by = arguments.Get(1, "by");
  const bool by_value = by != nullptr && ToText(*by).bytes == "value";
  List items;
  List sort_keys;
  for (const auto& [key, value] : input.dict()->items) {
    items.push_back(MakeList({key, value}, true));
    sort_keys.push_back(by_value ? value : key);
  }
  const Arguments plain{.line = arguments.line};
  WL_ASSIGN_OR_RETURN(const List keys, Keys(interpreter, sort_keys, plain,
                                            TrueOr(arguments.Get(0, "case_sensitive"), false)));
  WL_ASSIGN_OR_RETURN(List sorted, Sorted(interpreter, items, keys, arguments,
                                          TrueOr(arguments.Get(2, "reverse"), false)));
  return MakeList(std::move(sorted));
}

absl::StatusOr<Value> Unique(Interpreter& interpreter, const Value& input,
                             const Arguments& arguments) {
  WL_ASSIGN_OR_RETURN(const List items, interpreter.Elements(arguments.line, input));
  WL_ASSIGN_OR_RETURN(const List keys, Keys(interpreter, items, arguments,
                                            TrueOr(arguments.Get(0, "case_sensitive"), false)));
  List kept;
  for (size_t index = 0; index < items.size(); ++index) {
    WL_RETURN_IF_ERROR(
        interpreter.Charge(arguments.line, static_cast<int64_t>(index) * keys[index].weight()));
    if (std::none_of(keys.begin(), keys.begin() + static_cast<int64_t>(index),
                     [&](const Value& key) { return Equal(key, keys[index]); })) {
      kept.push_back(items[index]);
    }
  }
  return MakeList(std::move(kept));
}

absl::StatusOr<Value> Extreme(Interpreter& interpreter, const Value& input,
                              const Arguments& arguments, bool largest) {
  WL_ASSIGN_OR_RETURN(const List items, interpreter.Elements(arguments.line, input));
  WL_ASSIGN_OR_RETURN(const List keys, Keys(interpreter, items, arguments,
                                            TrueOr(arguments.Get(0, "case_sensitive"), false)));
  if (items.empty()) return Value(Undefined{"element of an empty sequence"});
  WL_ASSIGN_OR_RETURN(const List sorted, Sorted(interpreter, items, keys, arguments, largest));
  return sorted.front();
}

absl::StatusOr<Value> Sum(Interpreter& interpreter, const Value& input,
                          const Arguments& arguments) {
  WL_ASSIGN_OR_RETURN(const List items, interpreter.Elements(arguments.line, input));
  WL_ASSIGN_OR_RETURN(const List values, Keys(interpreter, items, arguments, true));
  const Value* const start = arguments.Get(1, "start");
  Value sum = start == nullptr ? Value(int64_t{0}) : *start;
  for (const Value& value : values) {
    WL_ASSIGN_OR_RETURN(sum, Arithmetic(interpreter, arguments.line, "+", sum, value));
  }
  return sum;
}

Value ToInteger(const Value& input, const Arguments& arguments) {
  if (const int64_t* const integer = input.If<int64_t>()) return Value(*integer);
  if (input.is_number() && std::abs(input.AsDouble()) < 9e18)
    return Value(static_cast<int64_t>(input.AsDouble()));
  int64_t integer = 0;
  double number = 0;
  if (input.text() != nullptr && absl::SimpleAtoi(input.text()->bytes, &integer))
    return Value(integer);
  if (input.text() != nullptr && absl::SimpleAtod(input.text()->bytes, &number) &&
      std::abs(number) < 9e18) {
    return Value(static_cast<int64_t>(number));
  }
  const Value* const otherwise = arguments.Get(0, "default");
  return otherwise == nullptr ? Value(int64_t{0}) : *otherwise;
}

Value ToFloat(const Value& input, const Arguments& arguments) {
  if (input.is_number()) return Value(input.AsDouble());
  double number = 0;
  if (input.text() != nullptr && absl::SimpleAtod(input.text()->bytes, &number))
    return Value(number);
  const Value* const otherwise = arguments.Get(0, "default");
  return otherwise == nullptr ? Value(0.0) : *otherwise;
}

absl::StatusOr<Value> Round(const Value& input, const Arguments& arguments) {
  if (!input.is_number()) return LineError(arguments.line, "round takes a number");
  const double factor = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(
                                           IntegerOr(arguments.Get(0, "precision"), 0), -18, 18)));
  const Value* const method = arguments.Get(1, "method");
  const std::string name = method == nullptr ? "common" : ToText(*method).bytes;
  const double scaled = input.AsDouble() * factor;
  const double rounded = name == "ceil"    ? std::ceil(scaled)
                         : name == "floor" ? std::floor(scaled)
                                           : std::nearbyint(scaled);
  return Value(rounded / factor);
}

// Every line but the first (and blank ones) moves in.
absl::StatusOr<Value> Indent(const Text& text, const Arguments& arguments) {
  const Value* const width = arguments.Get(0, "width");
  const Text margin =
      width != nullptr && width->text() != nullptr
          ? *width->text()
          : Text::Trusted(std::string(
                static_cast<size_t>(std::clamp<int64_t>(IntegerOr(width, 4), 0, 64)), ' '));
  const bool first = TrueOr(arguments.Get(1, "first"), false);
  const bool blank = TrueOr(arguments.Get(2, "blank"), false);
  Text result;
  size_t begin = 0;
  for (;;) {
    const size_t end = std::min(text.bytes.find('\n', begin), text.size());
    if ((begin > 0 || first) && (end > begin || blank)) result.Append(margin);
    result.Append(text.Slice(begin, std::min(end + 1, text.size())));
    if (end >= text.size()) return Value(std::move(result));
    begin = end + 1;
  }
}

Text Escape(const Text& text) {
  static constexpr std::pair<char, absl::string_view> kNames[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
  Text escaped;
  for (size_t index = 0; index < text.size(); ++index) {
    const auto* const found =
        std::find_if(std::begin(kNames), std::end(kNames),
                     [&](const auto& name) { return name.first == text.bytes[index]; });
    escaped.Append(found == std::end(kNames) ? text.Slice(index, index + 1)
                                             : Text::Untrusted(found->second));
  }
  return escaped;
}

absl::StatusOr<Value> Items(int line, const Value& input) {
  if (input.Is<Undefined>()) return MakeList({});
  if (input.dict() == nullptr) return LineError(line, "items takes a dict");
  List items;
  for (const auto& [key, value] : input.dict()->items)
    items.push_back(MakeList({key, value}, true));
  return MakeList(std::move(items));
}

absl::StatusOr<Value> FirstOrLast(Interpreter& interpreter, int line, const Value& input,
                                  bool first) {
  WL_ASSIGN_OR_RETURN(const List items, interpreter.Elements(line, input));
  if (items.empty()) return Value(Undefined{"element of an empty sequence"});
  return first ? items.front() : items.back();
}

absl::StatusOr<Value> Reverse(Interpreter& interpreter, int line, const Value& input) {
  WL_ASSIGN_OR_RETURN(List items, interpreter.Elements(line, input));
  std::reverse(items.begin(), items.end());
  if (input.text() == nullptr) return MakeList(std::move(items));
  Text text;
  for (const Value& item : items) text.Append(*item.text());
  return Value(std::move(text));
}

absl::StatusOr<Value> TextFilter(Interpreter& interpreter, const std::string& name,
                                 const Value& input, const Arguments& arguments) {
  const Text text = ToText(input);
  WL_RETURN_IF_ERROR(interpreter.Charge(arguments.line, static_cast<int64_t>(text.size()) / 16));
  if (name == "string" || name == "safe") return Value(text);
  if (name == "trim") {
    const Value* const chars = arguments.Get(0, "chars");
    return Value(Strip(
        text, chars == nullptr || chars->Is<None>() ? std::string(kSpace) : ToText(*chars).bytes,
        true, true));
  }
  if (name == "indent") return Indent(text, arguments);
  if (name == "escape" || name == "e") return Value(Escape(text));
  if (name == "wordcount") {
    WL_ASSIGN_OR_RETURN(const Value words,
                        CallMethod(interpreter, text, "split", Arguments{.line = arguments.line}));
    return Length(arguments.line, words);
  }
  return CallMethod(interpreter, text, name,
                    arguments);  // upper, lower, title, capitalize, replace
}

bool IsTextFilter(const std::string& name) {
  static constexpr absl::string_view kNames[] = {"string", "safe",    "trim",       "indent",
                                                 "escape", "e",       "upper",      "lower",
                                                 "title",  "replace", "capitalize", "wordcount"};
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

}  // namespace

absl::StatusOr<Value> Interpreter::ApplyFilter(const std::string& name, const Value& input,
                                               const Arguments& arguments) {
  const int line = arguments.line;
  WL_RETURN_IF_ERROR(Charge(line, 1));
  if (name == "tojson") return ToJsonFilter(*this, input, arguments);
  if (IsTextFilter(name)) return TextFilter(*this, name, input, arguments);
  if (name == "length" || name == "count") return Length(line, input);
  if (name == "default" || name == "d") {
    const Value* const otherwise = arguments.Get(0, "default_value");
    const bool replace =
        input.Is<Undefined>() || (TrueOr(arguments.Get(1, "boolean"), false) && !IsTrue(input));
    if (!replace) return input;
    return otherwise == nullptr ? Value(Text()) : *otherwise;
  }
  if (name == "first" || name == "last") return FirstOrLast(*this, line, input, name == "first");
  if (name == "join") return Join(*this, input, arguments);
  if (name == "items") return Items(line, input);
  if (name == "list") {
    WL_ASSIGN_OR_RETURN(List items, Elements(line, input));
    return MakeList(std::move(items));
  }
  if (name == "map") return Map(*this, input, arguments);
  if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr") {
    return Select(*this, name, input, arguments);
  }
  if (name == "int") return ToInteger(input, arguments);
  if (name == "float") return ToFloat(input, arguments);
  if (name == "abs" && input.is_number()) {
    if (input.AsDouble() < 0) return Arithmetic(*this, line, "-", Value(int64_t{0}), input);
    return input;
  }
  if (name == "round") return Round(input, arguments);
  if (name == "reverse") return Reverse(*this, line, input);
  if (name == "sort") return Sort(*this, input, arguments);
  if (name == "dictsort") return DictSort(*this, input, arguments);
  if (name == "unique") return Unique(*this, input, arguments);
  if (name == "min" || name == "max") return Extreme(*this, input, arguments, name == "max");
  if (name == "sum") return Sum(*this, input, arguments);
  if (name == "attr" && !arguments.positional.empty())
    return Attribute(line, input, ToText(arguments.positional[0]).bytes);
  return LineError(line, absl::StrCat("unknown filter '", name, "' for ", TypeName(input)));
}

absl::StatusOr<bool> Interpreter::ApplyTest(const std::string& name, const Value& input,
                                            const Arguments& arguments) {
  const int line = arguments.line;
  const Value* const other = arguments.Get(0, "other");
  if (name == "defined") return !input.Is<Undefined>();
  if (name == "undefined") return input.Is<Undefined>();
  if (name == "none") return input.Is<None>();
  if (name == "string") return input.text() != nullptr;
  if (name == "mapping") return input.dict() != nullptr;
  if (name == "sequence" || name == "iterable") {
    return input.list() != nullptr || input.dict() != nullptr || input.text() != nullptr ||
           input.Is<Undefined>();
  }
  if (name == "number") return input.is_number();
  if (name == "integer") return input.Is<int64_t>();
  if (name == "float") return input.Is<double>();
  if (name == "boolean") return input.Is<bool>();
  if (name == "true" || name == "false") {
    const bool* const flag = input.If<bool>();
    return flag != nullptr && *flag == (name == "true");
  }
  if (name == "callable")
    return input.Is<BuiltIn>() || input.Is<std::shared_ptr<const MacroObject>>();
  if (name == "upper")
    return ToText(input).bytes == absl::AsciiStrToUpper(ToText(input).bytes) &&
           !ToText(input).empty();
  if (name == "lower")
    return ToText(input).bytes == absl::AsciiStrToLower(ToText(input).bytes) &&
           !ToText(input).empty();
  if (name == "even" || name == "odd" || (name == "divisibleby" && other != nullptr)) {
    const Value divisor = name == "divisibleby" ? *other : Value(int64_t{2});
    WL_ASSIGN_OR_RETURN(const Value rest, Arithmetic(*this, line, "%", input, divisor));
    return (rest.AsDouble() == 0) == (name != "odd");
  }
  if (other == nullptr) return LineError(line, absl::StrCat("unknown test '", name, "'"));
  if (name == "eq" || name == "equalto" || name == "==" || name == "sameas")
    return Equal(input, *other);
  if (name == "ne" || name == "!=") return !Equal(input, *other);
  if (name == "in") return Contains(*this, line, *other, input);
  static constexpr absl::string_view kOrders[] = {
      "lt", "lessthan", "<", "le", "<=", "gt", "greaterthan", ">", "ge", ">="};
  const auto* const found = std::find(std::begin(kOrders), std::end(kOrders), name);
  int order = 0;
  if (found == std::end(kOrders)) return LineError(line, absl::StrCat("unknown test '", name, "'"));
  if (!Compare(input, *other, order)) {
    return LineError(line,
                     absl::StrCat("cannot order ", TypeName(input), " and ", TypeName(*other)));
  }
  const auto index = found - std::begin(kOrders);
  return index < 3 ? order < 0 : index < 5 ? order <= 0 : index < 8 ? order > 0 : order >= 0;
}

}  // namespace warpline::chat
