// The syntax tree of a chat template.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/chat_value.h"

namespace warpline::chat {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Argument {
  std::string name;  // empty: by position
  ExpressionPtr value;
};

enum class ExpressionKind {
  kLiteral,    // value
  kName,       // name
  kList,       // children
  kTuple,      // children
  kDict,       // children: key, value, key, value
  kAttribute,  // children[0].name
  kItem,       // children[0][children[1]]
  kSlice,      // children[0][children[1]:children[2]:children[3]], any of the last three null
  kCall,       // children[0](arguments)
  kFilter,     // children[0] | name(arguments)
  kTest,       // children[0] is name(arguments)
  kUnary,      // name children[0]: not, -, +
  kBinary,     // children[0] name children[1]; `and` and `or` too
  kCompare,    // children[0] operators[0] children[1] operators[1] children[2] ..
  kIf,         // children[0] if children[1] else children[2] (may be null)
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  int line = 0;
  Value value;
  std::string name;
  std::vector<ExpressionPtr> children;
  std::vector<Argument> arguments;
  std::vector<std::string> operators;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

enum class StatementKind {
  kText,         // text
  kPrint,        // expression
  kIf,           // branches; `otherwise`
  kFor,          // names in expression if condition; body; otherwise
  kSet,          // names (or name.attribute) = expression
  kSetBlock,     // names[0] = rendered body, through `filters`
  kMacro,        // name, parameters, body
  kCallBlock,    // expression (a call) with a macro `caller` of parameters and body
  kFilterBlock,  // body through `filters`
  kGroup,        // body: {% generation %}
  kBreak,
  kContinue,
};

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  Text text;
  ExpressionPtr expression;
  ExpressionPtr condition;
  std::string name;
  std::string attribute;
  std::vector<std::string> names;
  std::vector<Argument> parameters;  // with default values, or null ones
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block body;
  Block otherwise;
  std::vector<Argument> filters;  // expression trees over the null expression, innermost first
};

// Errors: InvalidArgument "line N: reason". Nesting is bounded by `max_depth`.
absl::StatusOr<Block> ParseTemplate(absl::string_view source, int max_depth);

}  // namespace warpline::chat
