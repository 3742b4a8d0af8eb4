// Expressions of the template language.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/chat_interpreter.h"
#include "model/chat_lexer.h"

namespace warpline::chat {
namespace {

constexpr int kMaxValueDepth = 128;

// Python's slice borders for a sequence of `size` elements.
struct SliceRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t step = 1;
};

absl::StatusOr<SliceRange> ResolveSlice(int line, const Value (&parts)[3], int64_t size) {
  int64_t numbers[3] = {0, 0, 1};
  bool given[3] = {};
  for (int index = 0; index < 3; ++index) {
    if (parts[index].Is<None>()) continue;
    const int64_t* const number = parts[index].If<int64_t>();
    if (number == nullptr) return LineError(line, "a slice needs integers");
    numbers[index] = *number;
    given[index] = true;
  }
  SliceRange range{.step = numbers[2]};
  if (range.step == 0) return LineError(line, "slice step cannot be zero");
  const int64_t least = range.step > 0 ? 0 : -1;
  const int64_t most = range.step > 0 ? size : size - 1;
  const auto border = [&](int index, int64_t otherwise) {
    if (!given[index]) return otherwise;
    const int64_t number = numbers[index] < 0 ? numbers[index] + size : numbers[index];
    return std::clamp(number, least, most);
  };
  range.begin = border(0, range.step > 0 ? least : most);
  range.end = border(1, range.step > 0 ? most : least);
  return range;
}

}  // namespace

absl::StatusOr<Value> Interpreter::Evaluate(const Expression& expression,
                                            const std::shared_ptr<Scope>& scope) {
  const Deeper deeper(*this);
  WL_RETURN_IF_ERROR(deeper.Check(expression.line));
  WL_RETURN_IF_ERROR(Charge(expression.line, 1));
  WL_ASSIGN_OR_RETURN(Value value, EvaluateKind(expression, scope));
  if (value.depth() > kMaxValueDepth)
    return LineError(expression.line, "containers nested too deep");
  if (value.weight() > limits_.max_steps) {
    return LineError(expression.line,
                     absl::StrCat("a value of more than ", limits_.max_steps, " parts"));
  }
  return value;
}

absl::StatusOr<Value> Interpreter::EvaluateKind(const Expression& expression,
                                                const std::shared_ptr<Scope>& scope) {
  switch (expression.kind) {
    case ExpressionKind::kLiteral:
      return expression.value;
    case ExpressionKind::kName: {
      const Value* const found = Lookup(scope.get(), expression.name);
      if (found != nullptr) return *found;
      if (IsFunction(expression.name)) return Value(BuiltIn{expression.name, nullptr});
      return Value(Undefined{expression.name});
    }
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
    case ExpressionKind::kDict:
      return EvaluateItems(expression, scope);
    case ExpressionKind::kAttribute: {
      WL_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.children[0], scope));
      return Attribute(expression.line, object, expression.name);
    }
    case ExpressionKind::kItem: {
      WL_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.children[0], scope));
      WL_ASSIGN_OR_RETURN(const Value key, Evaluate(*expression.children[1], scope));
      return Item(expression.line, object, key);
    }
    case ExpressionKind::kSlice:
      return EvaluateSlice(expression, scope);
    case ExpressionKind::kCall:
      return EvaluateCall(expression, scope);
    case ExpressionKind::kFilter: {
      WL_ASSIGN_OR_RETURN(const Value input, Evaluate(*expression.children[0], scope));
      WL_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression, scope));
      return ApplyFilter(expression.name, input, arguments);
    }
    case ExpressionKind::kTest: {
      WL_ASSIGN_OR_RETURN(const Value input, Evaluate(*expression.children[0], scope));
      WL_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression, scope));
      WL_ASSIGN_OR_RETURN(const bool holds, ApplyTest(expression.name, input, arguments));
      return Value(holds);
    }
    case ExpressionKind::kUnary:
      return EvaluateUnary(expression, scope);
    case ExpressionKind::kBinary:
      return EvaluateBinary(expression, scope);
    case ExpressionKind::kCompare:
      return EvaluateCompare(expression, scope);
    case ExpressionKind::kIf: {
      WL_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expression.children[1], scope));
      if (IsTrue(condition)) return Evaluate(*expression.children[0], scope);
      if (expression.children[2] == nullptr) return Value();
      return Evaluate(*expression.children[2], scope);
    }
  }
  return LineError(expression.line, "unknown expression");
}

absl::StatusOr<Value> Interpreter::EvaluateItems(const Expression& expression,
                                                 const std::shared_ptr<Scope>& scope) {
  List values;
  for (const ExpressionPtr& child : expression.children) {
    WL_ASSIGN_OR_RETURN(values.emplace_back(), Evaluate(*child, scope));
  }
  if (expression.kind == ExpressionKind::kDict) {
    DictObject dict;
    for (size_t index = 0; index < values.size(); index += 2) {
      auto* const known = const_cast<Value*>(Find(dict, values[index]));
      if (known != nullptr) {
        *known = std::move(values[index + 1]);
      } else {
        dict.items.emplace_back(std::move(values[index]), std::move(values[index + 1]));
      }
    }
    return MakeDict(std::move(dict.items));
  }
  return MakeList(std::move(values), expression.kind == ExpressionKind::kTuple);
}

absl::StatusOr<Value> Interpreter::EvaluateSlice(const Expression& expression,
                                                 const std::shared_ptr<Scope>& scope) {
  WL_ASSIGN_OR_RETURN(const Value object, Evaluate(*expression.children[0], scope));
  Value parts[3] = {None{}, None{}, None{}};
  for (int index = 0; index < 3; ++index) {
    if (expression.children[index + 1] == nullptr) continue;
    WL_ASSIGN_OR_RETURN(parts[index], Evaluate(*expression.children[index + 1], scope));
  }
  const Text* const text = object.text();
  const ListObject* const list = object.list();
  if (text == nullptr && list == nullptr) {
    return LineError(expression.line, absl::StrCat(TypeName(object), " cannot be sliced"));
  }
  const std::vector<size_t> starts =
      text != nullptr ? CharacterStarts(text->bytes) : std::vector<size_t>();
  const int64_t size =
      static_cast<int64_t>(text != nullptr ? starts.size() - 1 : list->items.size());
  WL_RETURN_IF_ERROR(Charge(expression.line, size / kBytesPerStep));
  WL_ASSIGN_OR_RETURN(const SliceRange range, ResolveSlice(expression.line, parts, size));
  Text out_text;
  List out_list;
  for (int64_t index = range.begin; range.step > 0 ? index < range.end : index > range.end;
       index += range.step) {
    if (text != nullptr) {
      out_text.Append(text->Slice(starts[index], starts[index + 1]));
    } else {
      out_list.push_back(list->items[index]);
    }
    if (range.step > size || range.step < -size)
      break;  // One element; the next index could overflow.
  }
  return text != nullptr ? Value(std::move(out_text))
                         : MakeList(std::move(out_list), list->is_tuple);
}

absl::StatusOr<Value> Interpreter::EvaluateUnary(const Expression& expression,
                                                 const std::shared_ptr<Scope>& scope) {
  WL_ASSIGN_OR_RETURN(const Value value, Evaluate(*expression.children[0], scope));
  if (expression.name == "not") return Value(!IsTrue(value));
  if (!value.is_number()) {
    return LineError(expression.line, absl::StrCat("bad operand for unary ", expression.name, ": ",
                                                   TypeName(value)));
  }
  return Arithmetic(*this, expression.line, expression.name, Value(int64_t{0}), value);
}

absl::StatusOr<Value> Interpreter::EvaluateBinary(const Expression& expression,
                                                  const std::shared_ptr<Scope>& scope) {
  WL_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.children[0], scope));
  if (expression.name == "and" || expression.name == "or") {
    if (IsTrue(left) == (expression.name == "or")) return left;
    return Evaluate(*expression.children[1], scope);
  }
  WL_ASSIGN_OR_RETURN(const Value right, Evaluate(*expression.children[1], scope));
  WL_ASSIGN_OR_RETURN(Value result,
                      Arithmetic(*this, expression.line, expression.name, left, right));
  if (result.text() != nullptr) {
    WL_RETURN_IF_ERROR(
        Charge(expression.line, static_cast<int64_t>(result.text()->size()) / kBytesPerStep));
  }
  if (result.list() != nullptr) {
    WL_RETURN_IF_ERROR(Charge(expression.line, static_cast<int64_t>(result.list()->items.size())));
  }
  return result;
}

absl::StatusOr<Value> Interpreter::EvaluateCompare(const Expression& expression,
                                                   const std::shared_ptr<Scope>& scope) {
  WL_ASSIGN_OR_RETURN(Value left, Evaluate(*expression.children[0], scope));
  for (size_t index = 0; index < expression.operators.size(); ++index) {
    WL_ASSIGN_OR_RETURN(Value right, Evaluate(*expression.children[index + 1], scope));
    const std::string& name = expression.operators[index];
    WL_RETURN_IF_ERROR(Charge(expression.line, std::min(left.weight(), right.weight())));
    bool holds = false;
    if (name == "==" || name == "!=") {
      holds = Equal(left, right) == (name == "==");
    } else if (name == "in" || name == "not in") {
      WL_ASSIGN_OR_RETURN(const bool contains, Contains(*this, expression.line, right, left));
      holds = contains == (name == "in");
    } else {
      int order = 0;
      if (!Compare(left, right, order)) {
        return LineError(expression.line, absl::StrCat("'", name, "' cannot compare ",
                                                       TypeName(left), " and ", TypeName(right)));
      }
      holds = name == "<"    ? order < 0
              : name == "<=" ? order <= 0
              : name == ">"  ? order > 0
                             : order >= 0;
    }
    if (!holds) return Value(false);
    left = std::move(right);
  }
  return Value(true);
}

absl::StatusOr<Arguments> Interpreter::EvaluateArguments(const Expression& expression,
                                                         const std::shared_ptr<Scope>& scope) {
  Arguments arguments{.line = expression.line};
  for (const Argument& argument : expression.arguments) {
    WL_ASSIGN_OR_RETURN(Value value, Evaluate(*argument.value, scope));
    if (!argument.name.empty()) {
      arguments.named.emplace_back(argument.name, std::move(value));
    } else if (arguments.named.empty()) {
      arguments.positional.push_back(std::move(value));
    } else {
      return LineError(expression.line, "a positional argument follows a named one");
    }
  }
  return arguments;
}

absl::StatusOr<Value> Interpreter::EvaluateCall(const Expression& expression,
                                                const std::shared_ptr<Scope>& scope,
                                                std::shared_ptr<const MacroObject> caller) {
  WL_ASSIGN_OR_RETURN(const Value function, Evaluate(*expression.children[0], scope));
  WL_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(expression, scope));
  if (const auto* const macro = function.If<std::shared_ptr<const MacroObject>>()) {
    return CallMacro(**macro, arguments, std::move(caller));
  }
  const BuiltIn* const built_in = function.If<BuiltIn>();
  if (built_in == nullptr) {
    return LineError(expression.line, absl::StrCat(TypeName(function), " cannot be called"));
  }
  if (built_in->self == nullptr) return CallFunction(*this, built_in->name, arguments);
  if (const auto* const loop = built_in->self->If<std::shared_ptr<LoopObject>>()) {
    return CallLoop(**loop, built_in->name, arguments);
  }
  return CallMethod(*this, *built_in->self, built_in->name, arguments);
}

absl::StatusOr<Value> Interpreter::CallLoop(LoopObject& loop, const std::string& name,
                                            const Arguments& arguments) {
  if (name == "cycle") {
    if (arguments.positional.empty()) return LineError(arguments.line, "cycle() needs values");
    return arguments.positional[loop.index % arguments.positional.size()];
  }
  const Value now = MakeList(arguments.positional, true);
  WL_RETURN_IF_ERROR(Charge(arguments.line, now.weight()));
  const bool changed = !loop.has_changed_last || !Equal(loop.changed_last, now);
  loop.changed_last = now;
  loop.has_changed_last = true;
  return Value(changed);
}

absl::StatusOr<List> Interpreter::Elements(int line, const Value& value) {
  List elements;
  if (value.list() != nullptr) {
    elements = value.list()->items;
  } else if (value.dict() != nullptr) {
    for (const auto& [key, item] : value.dict()->items) elements.push_back(key);
  } else if (value.text() != nullptr) {
    const std::vector<size_t> starts = CharacterStarts(value.text()->bytes);
    for (size_t index = 0; index + 1 < starts.size(); ++index) {
      elements.push_back(value.text()->Slice(starts[index], starts[index + 1]));
    }
  } else if (!value.Is<Undefined>()) {
    return LineError(line, absl::StrCat(TypeName(value), " is not iterable"));
  }
  WL_RETURN_IF_ERROR(Charge(line, static_cast<int64_t>(elements.size())));
  return elements;
}

absl::StatusOr<Value> Interpreter::Attribute(int line, const Value& object,
                                             const std::string& name) {
  if (const Undefined* const undefined = object.If<Undefined>()) {
    return LineError(line, absl::StrCat("'", undefined->name, "' is undefined"));
  }
  if (const auto* const target = object.If<std::shared_ptr<NamespaceObject>>()) {
    for (const auto& [member, value] : (*target)->members) {
      if (member == name) return value;
    }
    return Value(Undefined{name});
  }
  if (const auto* const pointer = object.If<std::shared_ptr<LoopObject>>()) {
    const LoopObject& loop = **pointer;
    const auto index = static_cast<int64_t>(loop.index);
    const auto size = static_cast<int64_t>(loop.items->items.size());
    if (name == "index") return Value(index + 1);
    if (name == "index0") return Value(index);
    if (name == "revindex") return Value(size - index);
    if (name == "revindex0") return Value(size - index - 1);
    if (name == "first") return Value(index == 0);
    if (name == "last") return Value(index == size - 1);
    if (name == "length") return Value(size);
    if (name == "depth") return Value(int64_t{loop.nesting});
    if (name == "depth0") return Value(int64_t{loop.nesting - 1});
    if (name == "previtem")
      return index > 0 ? loop.items->items[index - 1] : Value(Undefined{"previtem"});
    if (name == "nextitem")
      return index + 1 < size ? loop.items->items[index + 1] : Value(Undefined{"nextitem"});
    if (name == "cycle" || name == "changed")
      return Value(BuiltIn{name, std::make_shared<Value>(object)});
    return Value(Undefined{name});
  }
  if (IsMethod(object, name)) return Value(BuiltIn{name, std::make_shared<Value>(object)});
  if (object.dict() != nullptr) return Item(line, object, Value(Text::Trusted(name)));
  return Value(Undefined{name});
}

absl::StatusOr<Value> Interpreter::Item(int line, const Value& object, const Value& key) {
  if (const Undefined* const undefined = object.If<Undefined>()) {
    return LineError(line, absl::StrCat("'", undefined->name, "' is undefined"));
  }
  if (object.dict() != nullptr) {
    WL_RETURN_IF_ERROR(Charge(
        line, static_cast<int64_t>(object.dict()->items.size()) * key.weight() / kBytesPerStep));
    const Value* const found = Find(*object.dict(), key);
    return found != nullptr ? *found : Value(Undefined{ToText(key).bytes});
  }
  const int64_t* const number = key.If<int64_t>();
  if (number == nullptr && key.text() != nullptr) return Attribute(line, object, key.text()->bytes);
  if (number == nullptr) return Value(Undefined{ToText(key).bytes});
  if (object.list() != nullptr) {
    const auto size = static_cast<int64_t>(object.list()->items.size());
    const int64_t index = *number < 0 ? *number + size : *number;
    return index >= 0 && index < size ? object.list()->items[index]
                                      : Value(Undefined{"list element"});
  }
  if (object.text() != nullptr) {
    const std::vector<size_t> starts = CharacterStarts(object.text()->bytes);
    WL_RETURN_IF_ERROR(Charge(line, static_cast<int64_t>(starts.size()) / kBytesPerStep));
    const auto size = static_cast<int64_t>(starts.size()) - 1;
    const int64_t index = *number < 0 ? *number + size : *number;
    if (index < 0 || index >= size) return Value(Undefined{"character"});
    return Value(object.text()->Slice(starts[index], starts[index + 1]));
  }
  return Value(Undefined{ToText(key).bytes});
}

}  // namespace warpline::chat
