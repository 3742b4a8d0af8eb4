#include "model/chat_interpreter.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/chat_lexer.h"

namespace warpline::chat {
namespace {

constexpr int kRunDepthFactor =
    6;  // Evaluation nests a few calls for each level of the source, and macros nest too.

}  // namespace

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

const Value* Arguments::Get(size_t index, absl::string_view name) const {
  if (index < positional.size()) return &positional[index];
  for (const auto& [given, value] : named) {
    if (given == name) return &value;
  }
  return nullptr;
}

absl::Status Interpreter::Deeper::Check(int line) const {
  if (interpreter_.depth_ <= interpreter_.limits_.max_depth * kRunDepthFactor)
    return absl::OkStatus();
  return LineError(line, "nested too deep");
}

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

}  // namespace warpline::chat
