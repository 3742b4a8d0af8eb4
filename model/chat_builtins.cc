// Functions and operators of the template language.
#include <algorithm>
#include <cmath>
#include <ctime>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/chat_interpreter.h"
#include "model/chat_lexer.h"

namespace warpline::chat {
namespace {

constexpr int64_t kMaxRange = 100'000;
constexpr int64_t kMaxRepeat = 1 << 20;

absl::StatusOr<Value> Range(Interpreter& interpreter, const Arguments& arguments) {
  int64_t numbers[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty())
    return LineError(arguments.line, "range() takes 1 to 3 integers");
  for (size_t index = 0; index < count; ++index) {
    const int64_t* const number = arguments.positional[index].If<int64_t>();
    if (number == nullptr) return LineError(arguments.line, "range() takes integers");
    numbers[count == 1 ? 1 : index] = *number;
  }
  if (numbers[2] == 0) return LineError(arguments.line, "range() step cannot be zero");
  List items;
  for (int64_t number = numbers[0]; numbers[2] > 0 ? number < numbers[1] : number > numbers[1];) {
    if (static_cast<int64_t>(items.size()) >= kMaxRange) {
      return LineError(arguments.line,
                       absl::StrCat("range() of more than ", kMaxRange, " numbers"));
    }
    items.emplace_back(number);
    if (__builtin_add_overflow(number, numbers[2], &number)) break;
  }
  WL_RETURN_IF_ERROR(interpreter.Charge(arguments.line, static_cast<int64_t>(items.size())));
  return MakeList(std::move(items));
}

absl::StatusOr<Value> Namespace(Interpreter& interpreter, const Arguments& arguments) {
  std::shared_ptr<NamespaceObject> object = interpreter.MakeNamespace();
  for (const Value& value : arguments.positional) {
    if (value.dict() == nullptr)
      return LineError(arguments.line, "namespace() takes a dict or named values");
    for (const auto& [key, member] : value.dict()->items)
      object->members.emplace_back(ToText(key).bytes, member);
  }
  for (const auto& [name, value] : arguments.named) {
    if (value.Is<std::shared_ptr<NamespaceObject>>() ||
        value.Is<std::shared_ptr<const MacroObject>>()) {
      return LineError(arguments.line, "a namespace cannot hold namespaces or macros");
    }
    object->members.emplace_back(name, value);
  }
  return Value(std::move(object));
}

absl::StatusOr<Value> Strftime(Interpreter& interpreter, const Arguments& arguments) {
  const Value* const format = arguments.Get(0, "format");
  if (format == nullptr || format->text() == nullptr || format->text()->size() > 256) {
    return LineError(arguments.line, "strftime_now() takes a short format");
  }
  const time_t seconds = interpreter.unix_seconds();
  tm parts{};
  gmtime_r(&seconds, &parts);
  char buffer[1024];
  const size_t size = strftime(buffer, sizeof(buffer), format->text()->bytes.c_str(), &parts);
  return Value(Text::Untrusted(absl::string_view(buffer, size)));
}

absl::StatusOr<Value> IntegerArithmetic(int line, const std::string& name, int64_t a, int64_t b) {
  int64_t result = 0;
  bool overflow = false;
  if (name == "+") {
    overflow = __builtin_add_overflow(a, b, &result);
  } else if (name == "-") {
    overflow = __builtin_sub_overflow(a, b, &result);
  } else if (name == "*") {
    overflow = __builtin_mul_overflow(a, b, &result);
  } else if (name == "**") {
    result = 1;
    for (int64_t count = 0; count < b && !overflow && count < 64; ++count)
      overflow = __builtin_mul_overflow(result, a, &result);
    if (b >= 64 && a != 0 && a != 1) overflow = true;
  } else {
    if (b == 0) return LineError(line, "division by zero");
    overflow = a == INT64_MIN && b == -1;
    if (!overflow) {  // Python rounds down.
      const int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
      result = name == "//" ? quotient : a - quotient * b;
    }
  }
  if (overflow) return LineError(line, "integer of more than 64 bits");
  return Value(result);
}

absl::StatusOr<Value> FloatArithmetic(int line, const std::string& name, double a, double b) {
  if (name == "+") return Value(a + b);
  if (name == "-") return Value(a - b);
  if (name == "*") return Value(a * b);
  if (name == "**") return Value(std::pow(a, b));
  if (b == 0) return LineError(line, "division by zero");
  if (name == "/") return Value(a / b);
  const double quotient = std::floor(a / b);
  return Value(name == "//" ? quotient : a - quotient * b);
}

absl::StatusOr<Value> Repeat(Interpreter& interpreter, int line, const Value& sequence,
                             int64_t count) {
  const int64_t size = static_cast<int64_t>(
      sequence.text() != nullptr ? sequence.text()->size() : sequence.list()->items.size());
  count = std::max<int64_t>(count, 0);
  if (size > 0 && count > kMaxRepeat / size)
    return LineError(line, absl::StrCat("'*' makes more than ", kMaxRepeat, " elements"));
  WL_RETURN_IF_ERROR(interpreter.Charge(line, size * count / 16));
  Text text;
  List items;
  for (int64_t round = 0; round < count; ++round) {
    if (sequence.text() != nullptr) {
      text.Append(*sequence.text());
    } else {
      items.insert(items.end(), sequence.list()->items.begin(), sequence.list()->items.end());
    }
  }
  return sequence.text() != nullptr ? Value(std::move(text)) : MakeList(std::move(items));
}

}  // namespace

bool IsFunction(absl::string_view name) {
  return name == "range" || name == "namespace" || name == "raise_exception" ||
         name == "strftime_now" || name == "dict";
}

absl::StatusOr<Value> CallFunction(Interpreter& interpreter, const std::string& name,
                                   const Arguments& arguments) {
  if (name == "range") return Range(interpreter, arguments);
  if (name == "namespace") return Namespace(interpreter, arguments);
  if (name == "strftime_now") return Strftime(interpreter, arguments);
  if (name == "dict") {
    Dict items;
    for (const auto& [key, value] : arguments.named) items.emplace_back(Text::Trusted(key), value);
    return MakeDict(std::move(items));
  }
  const Value* const message = arguments.Get(0, "message");
  return LineError(arguments.line,
                   message == nullptr ? "raise_exception()" : ToText(*message).bytes);
}

absl::StatusOr<Value> Arithmetic(Interpreter& interpreter, int line, const std::string& name,
                                 const Value& a, const Value& b) {
  if (name == "~") {
    Text text = ToText(a);
    text.Append(ToText(b));
    return Value(std::move(text));
  }
  if (a.is_number() && b.is_number()) {
    if (a.Is<double>() || b.Is<double>() || name == "/" || (name == "**" && b.AsDouble() < 0)) {
      return FloatArithmetic(line, name, a.AsDouble(), b.AsDouble());
    }
    const auto integer = [](const Value& value) {
      const int64_t* const number = value.If<int64_t>();
      return number != nullptr ? *number : static_cast<int64_t>(value.AsDouble());
    };
    return IntegerArithmetic(line, name, integer(a), integer(b));
  }
  if (name == "+" && a.text() != nullptr && b.text() != nullptr) {
    Text text = *a.text();
    text.Append(*b.text());
    return Value(std::move(text));
  }
  if (name == "+" && a.list() != nullptr && b.list() != nullptr &&
      a.list()->is_tuple == b.list()->is_tuple) {
    List items = a.list()->items;
    items.insert(items.end(), b.list()->items.begin(), b.list()->items.end());
    return MakeList(std::move(items), a.list()->is_tuple);
  }
  if (name == "*") {
    const bool left = a.text() != nullptr || a.list() != nullptr;
    const Value& sequence = left ? a : b;
    const int64_t* const count = (left ? b : a).If<int64_t>();
    if (count != nullptr && (sequence.text() != nullptr || sequence.list() != nullptr)) {
      return Repeat(interpreter, line, sequence, *count);
    }
  }
  if (const Undefined* const undefined =
          a.Is<Undefined>() ? a.If<Undefined>() : b.If<Undefined>()) {
    return LineError(line, absl::StrCat("'", undefined->name, "' is undefined"));
  }
  return LineError(line,
                   absl::StrCat("'", name, "' cannot take ", TypeName(a), " and ", TypeName(b)));
}

absl::StatusOr<bool> Contains(Interpreter& interpreter, int line, const Value& container,
                              const Value& item) {
  if (container.text() != nullptr) {
    if (item.text() == nullptr)
      return LineError(line, absl::StrCat("'in' a str takes a str, not ", TypeName(item)));
    WL_RETURN_IF_ERROR(
        interpreter.Charge(line, static_cast<int64_t>(container.text()->size()) / 16));
    return absl::StrContains(container.text()->bytes, item.text()->bytes);
  }
  WL_ASSIGN_OR_RETURN(const List elements, interpreter.Elements(line, container));
  WL_RETURN_IF_ERROR(
      interpreter.Charge(line, static_cast<int64_t>(elements.size()) * (item.weight() - 1)));
  return std::any_of(elements.begin(), elements.end(),
                     [&item](const Value& value) { return Equal(value, item); });
}

}  // namespace warpline::chat
