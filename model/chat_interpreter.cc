#include "model/chat_interpreter.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/chat_lexer.h"

namespace warpline::chat {
namespace {

constexpr int kBytesPerStep = 16;
constexpr int kRunDepthFactor =
    6;  // Evaluation nests a few calls for each level of the source, and macros nest too.
constexpr int kMaxValueDepth = 128;

const Value* Lookup(const Scope* scope, const std::string& name) {
  for (; scope != nullptr; scope = scope->outer.get()) {
    const auto found = scope->variables.find(name);
    if (found != scope->variables.end()) return &found->second;
  }
  return nullptr;
}

std::shared_ptr<Scope> Inner(const std::shared_ptr<Scope>& outer) {
  auto scope = std::make_shared<Scope>();
  scope->outer = outer;
  return scope;
}

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

const Value* Arguments::Get(size_t index, absl::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [given, value] : named) {
    if (given == name) return &value;
  }
  return nullptr;
}

// Counts the depth of evaluation while it lives.
class Interpreter::Deeper {
 public:
  explicit Deeper(Interpreter& interpreter) : interpreter_(interpreter) { ++interpreter_.depth_; }
  ~Deeper() { --interpreter_.depth_; }
  absl::Status Check(int line) const {
    if (interpreter_.depth_ <= interpreter_.limits_.max_depth * kRunDepthFactor)
      return absl::OkStatus();
    return LineError(line, "nested too deep");
  }

 private:
  Interpreter& interpreter_;
};

absl::StatusOr<Text> Interpreter::Render(const Block& block,
                                         std::map<std::string, Value> variables) {
  auto global = std::make_shared<Scope>();
  global->variables = std::move(variables);
  Text out;
  const absl::Status status = Run(block, global, out).status();
  // Opens the circles of owners.
  for (const std::weak_ptr<Scope>& weak : macro_scopes_) {
    if (const std::shared_ptr<Scope> scope = weak.lock()) scope->variables.clear();
  }
  for (const std::weak_ptr<NamespaceObject>& weak : namespaces_) {
    if (const auto object = weak.lock()) object->members.clear();
  }
  WL_RETURN_IF_ERROR(status);
  return out;
}

std::shared_ptr<NamespaceObject> Interpreter::MakeNamespace() {
  auto object = std::make_shared<NamespaceObject>();
  namespaces_.push_back(object);
  return object;
}

absl::Status Interpreter::Charge(int line, int64_t steps) {
  steps_ += steps;
  if (steps_ <= limits_.max_steps) return absl::OkStatus();
  return LineError(line, absl::StrCat("the template took more than ", limits_.max_steps, " steps"));
}

absl::Status Interpreter::Emit(int line, const Text& text, Text& out) {
  WL_RETURN_IF_ERROR(Charge(line, static_cast<int64_t>(text.size()) / kBytesPerStep));
  if (static_cast<int64_t>(out.size() + text.size()) > limits_.max_output_bytes) {
    return LineError(
        line, absl::StrCat("the template wrote more than ", limits_.max_output_bytes, " bytes"));
  }
  out.Append(text);
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::Run(const Block& block,
                                                   const std::shared_ptr<Scope>& scope, Text& out) {
  for (const std::unique_ptr<Statement>& statement : block) {
    const Deeper deeper(*this);
    WL_RETURN_IF_ERROR(deeper.Check(statement->line));
    WL_RETURN_IF_ERROR(Charge(statement->line, 1));
    WL_ASSIGN_OR_RETURN(const Flow flow, RunStatement(*statement, scope, out));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Text> Interpreter::RunToText(const Block& block,
                                            const std::shared_ptr<Scope>& scope) {
  Text text;
  WL_RETURN_IF_ERROR(Run(block, scope, text).status());
  return text;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunStatement(const Statement& statement,
                                                            const std::shared_ptr<Scope>& scope,
                                                            Text& out) {
  switch (statement.kind) {
    case StatementKind::kText:
      WL_RETURN_IF_ERROR(Emit(statement.line, statement.text, out));
      return Flow::kNext;
    case StatementKind::kPrint: {
      WL_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression, scope));
      WL_RETURN_IF_ERROR(Emit(statement.line, ToText(value), out));
      return Flow::kNext;
    }
    case StatementKind::kIf:
      return RunIf(statement, scope, out);
    case StatementKind::kFor:
      return RunFor(statement, scope, out);
    case StatementKind::kSet:
    case StatementKind::kSetBlock:
      WL_RETURN_IF_ERROR(RunSet(statement, scope));
      return Flow::kNext;
    case StatementKind::kMacro:
      macro_scopes_.push_back(scope);
      scope->variables[statement.name] =
          std::make_shared<const MacroObject>(MacroObject{&statement, scope});
      return Flow::kNext;
    case StatementKind::kCallBlock: {
      macro_scopes_.push_back(scope);
      auto caller = std::make_shared<const MacroObject>(MacroObject{&statement, scope});
      WL_ASSIGN_OR_RETURN(const Value value,
                          EvaluateCall(*statement.expression, scope, std::move(caller)));
      WL_RETURN_IF_ERROR(Emit(statement.line, ToText(value), out));
      return Flow::kNext;
    }
    case StatementKind::kFilterBlock: {
      WL_ASSIGN_OR_RETURN(const Text body, RunToText(statement.body, Inner(scope)));
      WL_ASSIGN_OR_RETURN(const Value value, ApplyFilters(statement, body, scope));
      WL_RETURN_IF_ERROR(Emit(statement.line, ToText(value), out));
      return Flow::kNext;
    }
    case StatementKind::kGroup:
      return Run(statement.body, scope, out);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunIf(const Statement& statement,
                                                     const std::shared_ptr<Scope>& scope,
                                                     Text& out) {
  for (const auto& [condition, block] : statement.branches) {
    WL_ASSIGN_OR_RETURN(const Value value, Evaluate(*condition, scope));
    if (IsTrue(value)) return Run(block, scope, out);
  }
  return Run(statement.otherwise, scope, out);
}

absl::Status Interpreter::Bind(const Statement& statement, const Value& value, Scope& scope) {
  if (statement.names.size() == 1) {
    scope.variables[statement.names[0]] = value;
    return absl::OkStatus();
  }
  WL_ASSIGN_OR_RETURN(List elements, Elements(statement.line, value));
  if (elements.size() != statement.names.size()) {
    return LineError(statement.line, absl::StrCat("expected ", statement.names.size(),
                                                  " values to unpack, got ", elements.size()));
  }
  for (size_t index = 0; index < elements.size(); ++index) {
    scope.variables[statement.names[index]] = std::move(elements[index]);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const ListObject>> Interpreter::LoopItems(
    const Statement& statement, const std::shared_ptr<Scope>& scope) {
  WL_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.expression, scope));
  WL_ASSIGN_OR_RETURN(List elements, Elements(statement.line, value));
  if (statement.condition != nullptr) {
    List kept;
    for (Value& element : elements) {
      const std::shared_ptr<Scope> inner = Inner(scope);
      WL_RETURN_IF_ERROR(Bind(statement, element, *inner));
      WL_ASSIGN_OR_RETURN(const Value condition, Evaluate(*statement.condition, inner));
      if (IsTrue(condition)) kept.push_back(std::move(element));
    }
    elements = std::move(kept);
  }
  return std::make_shared<const ListObject>(ListObject{.items = std::move(elements)});
}

absl::StatusOr<Interpreter::Flow> Interpreter::RunFor(const Statement& statement,
                                                      const std::shared_ptr<Scope>& scope,
                                                      Text& out) {
  WL_ASSIGN_OR_RETURN(const std::shared_ptr<const ListObject> items, LoopItems(statement, scope));
  if (items->items.empty()) return Run(statement.otherwise, Inner(scope), out);
  auto loop = std::make_shared<LoopObject>();
  loop->items = items;
  const Value* const outer = Lookup(scope.get(), "loop");
  if (outer != nullptr && outer->Is<std::shared_ptr<LoopObject>>()) {
    loop->nesting = (*outer->If<std::shared_ptr<LoopObject>>())->nesting + 1;
  }
  for (; loop->index < items->items.size(); ++loop->index) {
    WL_RETURN_IF_ERROR(Charge(statement.line, 1));
    const std::shared_ptr<Scope> inner = Inner(scope);
    inner->variables["loop"] = loop;
    WL_RETURN_IF_ERROR(Bind(statement, items->items[loop->index], *inner));
    WL_ASSIGN_OR_RETURN(const Flow flow, Run(statement.body, inner, out));
    if (flow == Flow::kBreak) break;
  }
  return Flow::kNext;
}

absl::Status Interpreter::RunSet(const Statement& statement, const std::shared_ptr<Scope>& scope) {
  Value value;
  if (statement.kind == StatementKind::kSetBlock) {
    WL_ASSIGN_OR_RETURN(value, RunToText(statement.body, Inner(scope)));
    WL_ASSIGN_OR_RETURN(value, ApplyFilters(statement, std::move(value), scope));
  } else {
    WL_ASSIGN_OR_RETURN(value, Evaluate(*statement.expression, scope));
  }
  if (statement.attribute.empty()) return Bind(statement, value, *scope);
  const Value* const object = Lookup(scope.get(), statement.names[0]);
  const auto* const target =
      object == nullptr ? nullptr : object->If<std::shared_ptr<NamespaceObject>>();
  if (target == nullptr)
    return LineError(statement.line, "only attributes of a namespace can be set");
  if (value.Is<std::shared_ptr<NamespaceObject>>() ||
      value.Is<std::shared_ptr<const MacroObject>>()) {
    return LineError(
        statement.line,
        "a namespace cannot hold namespaces or macros");  // They could hold it in turn.
  }
  for (auto& [name, member] : (*target)->members) {
    if (name != statement.attribute) continue;
    member = std::move(value);
    return absl::OkStatus();
  }
  (*target)->members.emplace_back(statement.attribute, std::move(value));
  return absl::OkStatus();
}

absl::StatusOr<Value> Interpreter::ApplyFilters(const Statement& statement, Value value,
                                                const std::shared_ptr<Scope>& scope) {
  for (const Argument& filter : statement.filters) {
    WL_ASSIGN_OR_RETURN(const Arguments arguments, EvaluateArguments(*filter.value, scope));
    WL_ASSIGN_OR_RETURN(value, ApplyFilter(filter.name, value, arguments));
  }
  return value;
}

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
    WL_ASSIGN_OR_RETURN(Value value, Evaluate(*child, scope));
    values.push_back(std::move(value));
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

absl::StatusOr<Value> Interpreter::CallMacro(const MacroObject& macro, const Arguments& arguments,
                                             std::shared_ptr<const MacroObject> caller) {
  const Statement& statement = *macro.statement;
  if (arguments.positional.size() > statement.parameters.size()) {
    return LineError(arguments.line, absl::StrCat("macro '", statement.name, "' takes at most ",
                                                  statement.parameters.size(), " arguments"));
  }
  const std::shared_ptr<Scope> scope = Inner(macro.scope);
  for (size_t index = 0; index < statement.parameters.size(); ++index) {
    const Argument& parameter = statement.parameters[index];
    const Value* const given = arguments.Get(index, parameter.name);
    Value value = Undefined{parameter.name};
    if (given != nullptr) {
      value = *given;
    } else if (parameter.value != nullptr) {
      WL_ASSIGN_OR_RETURN(value, Evaluate(*parameter.value, scope));
    }
    scope->variables[parameter.name] = std::move(value);
  }
  for (const auto& [name, value] : arguments.named) {
    if (scope->variables.count(name) > 0) continue;
    return LineError(arguments.line,
                     absl::StrCat("macro '", statement.name, "' has no parameter '", name, "'"));
  }
  if (caller != nullptr) scope->variables["caller"] = std::move(caller);
  WL_ASSIGN_OR_RETURN(Text text, RunToText(statement.body, scope));
  return Value(std::move(text));
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
