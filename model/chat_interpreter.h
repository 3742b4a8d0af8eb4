// Runs a parsed chat template within limits on steps, output and depth.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/chat_syntax.h"
#include "model/chat_template.h"
#include "model/chat_value.h"

namespace warpline::chat {

// Variables of one block of the template; looking up goes outward, setting stays here.
struct Scope {
  std::shared_ptr<Scope> outer;
  std::map<std::string, Value> variables;
};

const Value* Lookup(const Scope* scope, const std::string& name);  // null: not set
std::shared_ptr<Scope> Inner(const std::shared_ptr<Scope>& outer);

struct MacroObject {
  const Statement* statement = nullptr;
  std::shared_ptr<Scope> scope;  // where it was defined
};

struct LoopObject {
  size_t index = 0;
  std::shared_ptr<const ListObject> items;
  int nesting = 1;
  Value changed_last;
  bool has_changed_last = false;
};

// Evaluated arguments of a call, filter or test.
struct Arguments {
  int line = 0;
  List positional;
  std::vector<std::pair<std::string, Value>> named;

  // Argument `index`, or the one called `name`; null when it is not given.
  const Value* Get(size_t index, absl::string_view name) const;
};

constexpr int kBytesPerStep = 16;  // for Interpreter::Charge

// One rendering. Errors are InvalidArgument "line N: reason".
class Interpreter {
 public:
  Interpreter(const ChatLimits& limits, int64_t unix_seconds)
      : limits_(limits), unix_seconds_(unix_seconds) {}

  absl::StatusOr<Text> Render(const Block& block, std::map<std::string, Value> variables);

  // For the built-in filters, tests and functions.
  absl::Status Charge(int line, int64_t steps);  // a step, or kBytesPerStep made
  absl::StatusOr<Value> ApplyFilter(const std::string& name, const Value& input,
                                    const Arguments& arguments);
  absl::StatusOr<bool> ApplyTest(const std::string& name, const Value& input,
                                 const Arguments& arguments);
  absl::StatusOr<Value> Attribute(int line, const Value& object, const std::string& name);
  absl::StatusOr<Value> Item(int line, const Value& object, const Value& key);
  // The elements that a loop over it sees.
  absl::StatusOr<List> Elements(int line, const Value& value);
  int64_t unix_seconds() const { return unix_seconds_; }
  // Of namespace(): it is emptied when the rendering ends, since it may hold itself.
  std::shared_ptr<NamespaceObject> MakeNamespace();

 private:
  enum class Flow { kNext, kBreak, kContinue };

  // Counts the depth of evaluation while it lives.
  class Deeper {
   public:
    explicit Deeper(Interpreter& interpreter) : interpreter_(interpreter) { ++interpreter_.depth_; }
    ~Deeper() { --interpreter_.depth_; }
    absl::Status Check(int line) const;

   private:
    Interpreter& interpreter_;
  };

  // Statements: chat_interpreter.cc.
  absl::StatusOr<Flow> Run(const Block& block, const std::shared_ptr<Scope>& scope, Text& out);
  absl::StatusOr<Flow> RunStatement(const Statement& statement, const std::shared_ptr<Scope>& scope,
                                    Text& out);
  absl::StatusOr<Flow> RunIf(const Statement& statement, const std::shared_ptr<Scope>& scope,
                             Text& out);
  absl::StatusOr<Flow> RunFor(const Statement& statement, const std::shared_ptr<Scope>& scope,
                              Text& out);
  absl::StatusOr<std::shared_ptr<const ListObject>> LoopItems(const Statement& statement,
                                                              const std::shared_ptr<Scope>& scope);
  absl::Status Bind(const Statement& statement, const Value& value, Scope& scope);
  absl::Status RunSet(const Statement& statement, const std::shared_ptr<Scope>& scope);
  absl::StatusOr<Text> RunToText(const Block& block, const std::shared_ptr<Scope>& scope);
  absl::StatusOr<Value> ApplyFilters(const Statement& statement, Value value,
                                     const std::shared_ptr<Scope>& scope);
  absl::Status Emit(int line, const Text& text, Text& out);

  // Expressions: chat_evaluate.cc. The value, which is neither too deep nor too heavy.
  absl::StatusOr<Value> Evaluate(const Expression& expression, const std::shared_ptr<Scope>& scope);
  absl::StatusOr<Value> EvaluateKind(const Expression& expression,
                                     const std::shared_ptr<Scope>& scope);
  absl::StatusOr<Value> EvaluateItems(const Expression& expression,
                                      const std::shared_ptr<Scope>& scope);
  absl::StatusOr<Value> EvaluateSlice(const Expression& expression,
                                      const std::shared_ptr<Scope>& scope);
  absl::StatusOr<Value> EvaluateCompare(const Expression& expression,
                                        const std::shared_ptr<Scope>& scope);
  absl::StatusOr<Value> EvaluateBinary(const Expression& expression,
                                       const std::shared_ptr<Scope>& scope);
  absl::StatusOr<Value> EvaluateUnary(const Expression& expression,
                                      const std::shared_ptr<Scope>& scope);
  absl::StatusOr<Value> EvaluateCall(const Expression& expression,
                                     const std::shared_ptr<Scope>& scope,
                                     std::shared_ptr<const MacroObject> caller = nullptr);
  absl::StatusOr<Arguments> EvaluateArguments(const Expression& expression,
                                              const std::shared_ptr<Scope>& scope);
  absl::StatusOr<Value> CallMacro(const MacroObject& macro, const Arguments& arguments,
                                  std::shared_ptr<const MacroObject> caller);
  absl::StatusOr<Value> CallLoop(LoopObject& loop, const std::string& name,
                                 const Arguments& arguments);

  const ChatLimits limits_;
  const int64_t unix_seconds_;
  int64_t steps_ = 0;
  int depth_ = 0;
  // What can be part of a circle of owners: scopes of macros, which the macros hold, and
  // namespaces.
  std::vector<std::weak_ptr<Scope>> macro_scopes_;
  std::vector<std::weak_ptr<NamespaceObject>> namespaces_;
};

// The built-ins, in files of their own. `method` is "str.split", "dict.get" and so on; an unknown
// one is an error.
absl::StatusOr<Value> CallFunction(Interpreter& interpreter, const std::string& name,
                                   const Arguments& arguments);
absl::StatusOr<Value> CallMethod(Interpreter& interpreter, const Value& self,
                                 const std::string& name, const Arguments& arguments);
bool IsFunction(absl::string_view name);
bool IsMethod(const Value& self, absl::string_view name);
absl::StatusOr<Value> Arithmetic(Interpreter& interpreter, int line, const std::string& name,
                                 const Value& a, const Value& b);
absl::StatusOr<bool> Contains(Interpreter& interpreter, int line, const Value& container,
                              const Value& item);
// Text operations that filters and methods share.
Text Strip(const Text& text, absl::string_view bytes, bool left, bool right);
Text Replace(const Text& text, const Text& from, const Text& to, int64_t most);

}  // namespace warpline::chat
