// Recursive descent over the tokens; the depth of nesting is bounded, and with it the stack.
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/chat_lexer.h"
#include "model/chat_syntax.h"

namespace warpline::chat {
namespace {

ExpressionPtr Make(ExpressionKind kind, int line, std::string name = "") {
  auto expression = std::make_unique<Expression>();
  expression->kind = kind;
  expression->line = line;
  expression->name = std::move(name);
  return expression;
}

ExpressionPtr Make(ExpressionKind kind, int line, std::string name, ExpressionPtr first,
                   ExpressionPtr second = nullptr) {
  ExpressionPtr expression = Make(kind, line, std::move(name));
  expression->children.push_back(std::move(first));
  if (second != nullptr) expression->children.push_back(std::move(second));
  return expression;
}

class Parser {
 public:
  Parser(std::vector<Token> tokens, int max_depth)
      : tokens_(std::move(tokens)), max_depth_(max_depth) {}

  absl::StatusOr<Block> Parse() {
    WL_ASSIGN_OR_RETURN(Block block, ParseBlock({}));
    if (Peek().kind != TokenKind::kEnd) return Unexpected();
    return block;
  }

 private:
  // Counts nesting while it lives.
  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) { ++parser_.depth_; }
    ~Nested() { --parser_.depth_; }
    absl::Status status() const {
      if (parser_.depth_ <= parser_.max_depth_) return absl::OkStatus();
      return LineError(parser_.Peek().line,
                       absl::StrCat("nested more than ", parser_.max_depth_, " deep"));
    }

   private:
    Parser& parser_;
  };

  const Token& Peek(size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  Token Take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool IsOperator(absl::string_view text) const {
    return Peek().kind == TokenKind::kOperator && Peek().text == text;
  }
  bool IsWord(absl::string_view text) const {
    return Peek().kind == TokenKind::kName && Peek().text == text;
  }
  bool TakeOperator(absl::string_view text) {
    if (!IsOperator(text)) return false;
    Take();
    return true;
  }
  bool TakeWord(absl::string_view text) {
    if (!IsWord(text)) return false;
    Take();
    return true;
  }
  absl::Status Unexpected() const {
    const Token& token = Peek();
    return LineError(token.line, token.kind == TokenKind::kEnd ? "unexpected end of the template"
                                 : token.text.empty()
                                     ? "unexpected tag"
                                     : absl::StrCat("unexpected '", token.text, "'"));
  }
  absl::Status Expect(absl::string_view text) {
    return TakeOperator(text) ? absl::OkStatus()
                              : LineError(Peek().line, absl::StrCat("expected '", text, "'"));
  }
  absl::Status ExpectEndBlock() {
    if (Peek().kind != TokenKind::kEndBlock) return Unexpected();
    Take();
    return absl::OkStatus();
  }
  absl::StatusOr<std::string> ExpectName() {
    if (Peek().kind != TokenKind::kName) return Unexpected();
    return Take().text;
  }

  // Statements up to a block tag that begins with one of `ends`; its name is left as the next
  // token.
  absl::StatusOr<Block> ParseBlock(const std::set<std::string>& ends) {
    const Nested nested(*this);
    WL_RETURN_IF_ERROR(nested.status());
    Block block;
    for (;;) {
      const Token& token = Peek();
      if (token.kind == TokenKind::kEnd)
        return ends.empty() ? absl::StatusOr<Block>(std::move(block)) : Unexpected();
      if (token.kind == TokenKind::kText) {
        auto statement = std::make_unique<Statement>();
        statement->line = token.line;
        statement->text = Text::Trusted(Take().text);
        block.push_back(std::move(statement));
      } else if (token.kind == TokenKind::kBeginPrint) {
        auto statement = std::make_unique<Statement>();
        statement->kind = StatementKind::kPrint;
        statement->line = Take().line;
        WL_ASSIGN_OR_RETURN(statement->expression, ParseTupleOrExpression());
        if (Peek().kind != TokenKind::kEndPrint) return Unexpected();
        Take();
        block.push_back(std::move(statement));
      } else {
        Take();  // {%
        if (Peek().kind == TokenKind::kName && ends.count(Peek().text) > 0) return block;
        WL_ASSIGN_OR_RETURN(std::unique_ptr<Statement> statement, ParseStatement());
        block.push_back(std::move(statement));
      }
    }
  }

  absl::StatusOr<std::unique_ptr<Statement>> ParseStatement() {
    auto statement = std::make_unique<Statement>();
    statement->line = Peek().line;
    WL_ASSIGN_OR_RETURN(const std::string word, ExpectName());
    absl::Status status;
    if (word == "if") {
      status = ParseIf(*statement);
    } else if (word == "for") {
      status = ParseFor(*statement);
    } else if (word == "set") {
      status = ParseSet(*statement);
    } else if (word == "macro") {
      status = ParseMacro(*statement);
    } else if (word == "call") {
      status = ParseCallBlock(*statement);
    } else if (word == "filter") {
      status = ParseFilterBlock(*statement);
    } else if (word == "generation") {
      statement->kind = StatementKind::kGroup;
      status = ParseBody(*statement, "endgeneration");
    } else if (word == "break" || word == "continue") {
      statement->kind = word == "break" ? StatementKind::kBreak : StatementKind::kContinue;
      if (loop_depth_ == 0)
        return LineError(statement->line, absl::StrCat("'", word, "' outside of a loop"));
      status = ExpectEndBlock();
    } else {
      return LineError(statement->line, absl::StrCat("unknown tag '", word, "'"));
    }
    WL_RETURN_IF_ERROR(status);
    return statement;
  }

  // `%} body {% end %}`
  absl::Status ParseBody(Statement& statement, const std::string& end) {
    WL_RETURN_IF_ERROR(ExpectEndBlock());
    WL_ASSIGN_OR_RETURN(statement.body, ParseBlock({end}));
    Take();
    return ExpectEndBlock();
  }

  absl::Status ParseIf(Statement& statement) {
    statement.kind = StatementKind::kIf;
    for (;;) {
      WL_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseTupleOrExpression());
      WL_RETURN_IF_ERROR(ExpectEndBlock());
      WL_ASSIGN_OR_RETURN(Block block, ParseBlock({"elif", "else", "endif"}));
      statement.branches.emplace_back(std::move(condition), std::move(block));
      const std::string word = Take().text;
      if (word == "elif") continue;
      WL_RETURN_IF_ERROR(ExpectEndBlock());
      if (word == "endif") return absl::OkStatus();
      WL_ASSIGN_OR_RETURN(statement.otherwise, ParseBlock({"endif"}));
      Take();
      return ExpectEndBlock();
    }
  }

  absl::Status ParseFor(Statement& statement) {
    statement.kind = StatementKind::kFor;
    do {
      const bool in_parentheses = TakeOperator("(");
      WL_ASSIGN_OR_RETURN(std::string name, ExpectName());
      statement.names.push_back(std::move(name));
      while (in_parentheses && TakeOperator(",")) {
        WL_ASSIGN_OR_RETURN(name, ExpectName());
        statement.names.push_back(name);
      }
      if (in_parentheses) WL_RETURN_IF_ERROR(Expect(")"));
    } while (TakeOperator(","));
    if (!TakeWord("in")) return LineError(Peek().line, "expected 'in'");
    WL_ASSIGN_OR_RETURN(statement.expression, ParseTupleOrExpression(/*with_condition=*/false));
    if (TakeWord("if")) {
      WL_ASSIGN_OR_RETURN(statement.condition, ParseExpression());
    }
    if (IsWord("recursive")) return LineError(Peek().line, "recursive loops are not supported");
    WL_RETURN_IF_ERROR(ExpectEndBlock());
    ++loop_depth_;
    absl::StatusOr<Block> body = ParseBlock({"else", "endfor"});
    --loop_depth_;
    WL_RETURN_IF_ERROR(body.status());
    statement.body = *std::move(body);
    if (Take().text == "else") {
      WL_RETURN_IF_ERROR(ExpectEndBlock());
      WL_ASSIGN_OR_RETURN(statement.otherwise, ParseBlock({"endfor"}));
      Take();
    }
    return ExpectEndBlock();
  }

  absl::Status ParseSet(Statement& statement) {
    do {
      WL_ASSIGN_OR_RETURN(std::string name, ExpectName());
      statement.names.push_back(std::move(name));
    } while (TakeOperator(","));
    if (statement.names.size() == 1 && TakeOperator(".")) {
      WL_ASSIGN_OR_RETURN(statement.attribute, ExpectName());
    }
    if (TakeOperator("=")) {
      statement.kind = StatementKind::kSet;
      WL_ASSIGN_OR_RETURN(statement.expression, ParseTupleOrExpression());
      return ExpectEndBlock();
    }
    if (statement.names.size() != 1) return Unexpected();
    statement.kind = StatementKind::kSetBlock;
    if (TakeOperator("|")) WL_RETURN_IF_ERROR(ParseFilterChain(statement));
    return ParseBody(statement, "endset");
  }

  absl::Status ParseFilterChain(Statement& statement) {
    do {
      WL_ASSIGN_OR_RETURN(std::string name, ExpectName());
      ExpressionPtr filter = Make(ExpressionKind::kFilter, Peek().line, name);
      if (IsOperator("(")) WL_RETURN_IF_ERROR(ParseArguments(*filter));
      statement.filters.push_back({.name = std::move(name), .value = std::move(filter)});
    } while (TakeOperator("|"));
    return absl::OkStatus();
  }

  absl::Status ParseFilterBlock(Statement& statement) {
    statement.kind = StatementKind::kFilterBlock;
    WL_RETURN_IF_ERROR(ParseFilterChain(statement));
    return ParseBody(statement, "endfilter");
  }

  absl::Status ParseParameters(Statement& statement) {
    WL_RETURN_IF_ERROR(Expect("("));
    while (!TakeOperator(")")) {
      Argument parameter;
      WL_ASSIGN_OR_RETURN(parameter.name, ExpectName());
      if (TakeOperator("=")) {
        WL_ASSIGN_OR_RETURN(parameter.value, ParseExpression());
      }
      statement.parameters.push_back(std::move(parameter));
      if (!IsOperator(")")) WL_RETURN_IF_ERROR(Expect(","));
    }
    return absl::OkStatus();
  }

  absl::Status ParseMacro(Statement& statement) {
    statement.kind = StatementKind::kMacro;
    WL_ASSIGN_OR_RETURN(statement.name, ExpectName());
    WL_RETURN_IF_ERROR(ParseParameters(statement));
    return ParseMacroBody(statement, "endmacro");
  }

  absl::Status ParseCallBlock(Statement& statement) {
    statement.kind = StatementKind::kCallBlock;
    if (IsOperator("(")) WL_RETURN_IF_ERROR(ParseParameters(statement));
    WL_ASSIGN_OR_RETURN(statement.expression, ParseExpression());
    if (statement.expression->kind != ExpressionKind::kCall)
      return LineError(statement.line, "expected a call");
    return ParseMacroBody(statement, "endcall");
  }

  // A loop around the macro is not a loop of its body.
  absl::Status ParseMacroBody(Statement& statement, const std::string& end) {
    const int outer_loops = std::exchange(loop_depth_, 0);
    const absl::Status status = ParseBody(statement, end);
    loop_depth_ = outer_loops;
    return status;
  }

  absl::StatusOr<ExpressionPtr> ParseTupleOrExpression(bool with_condition = true) {
    const int line = Peek().line;
    WL_ASSIGN_OR_RETURN(ExpressionPtr first, with_condition ? ParseExpression() : ParseOr());
    if (!IsOperator(",")) return first;
    ExpressionPtr tuple = Make(ExpressionKind::kTuple, line, "", std::move(first));
    while (TakeOperator(",")) {
      if (!StartsExpression()) break;
      WL_ASSIGN_OR_RETURN(ExpressionPtr next, with_condition ? ParseExpression() : ParseOr());
      tuple->children.push_back(std::move(next));
    }
    return tuple;
  }

  bool StartsExpression() const {
    const Token& token = Peek();
    return token.kind == TokenKind::kName || token.kind == TokenKind::kString ||
           token.kind == TokenKind::kInteger || token.kind == TokenKind::kFloat ||
           (token.kind == TokenKind::kOperator && absl::StrContains("([{-+", token.text));
  }

  // a if b else c
  absl::StatusOr<ExpressionPtr> ParseExpression() {
    const Nested nested(*this);
    WL_RETURN_IF_ERROR(nested.status());
    const int line = Peek().line;
    WL_ASSIGN_OR_RETURN(ExpressionPtr value, ParseOr());
    while (TakeWord("if")) {
      WL_ASSIGN_OR_RETURN(ExpressionPtr condition, ParseOr());
      value = Make(ExpressionKind::kIf, line, "", std::move(value), std::move(condition));
      value->children.emplace_back();
      WL_RETURN_IF_ERROR(CheckChain(*value));
      if (TakeWord("else")) {
        WL_ASSIGN_OR_RETURN(value->children[2], ParseExpression());
      }
    }
    return value;
  }

  absl::StatusOr<ExpressionPtr> ParseOr() {
    WL_ASSIGN_OR_RETURN(ExpressionPtr left, ParseAnd());
    while (IsWord("or")) {
      const int line = Take().line;
      WL_ASSIGN_OR_RETURN(ExpressionPtr right, ParseAnd());
      left = Make(ExpressionKind::kBinary, line, "or", std::move(left), std::move(right));
      WL_RETURN_IF_ERROR(CheckChain(*left));
    }
    return left;
  }

  absl::StatusOr<ExpressionPtr> ParseAnd() {
    WL_ASSIGN_OR_RETURN(ExpressionPtr left, ParseNot());
    while (IsWord("and")) {
      const int line = Take().line;
      WL_ASSIGN_OR_RETURN(ExpressionPtr right, ParseNot());
      left = Make(ExpressionKind::kBinary, line, "and", std::move(left), std::move(right));
      WL_RETURN_IF_ERROR(CheckChain(*left));
    }
    return left;
  }

  absl::StatusOr<ExpressionPtr> ParseNot() {
    if (!IsWord("not")) return ParseComparison();
    const Nested nested(*this);
    WL_RETURN_IF_ERROR(nested.status());
    const int line = Take().line;
    WL_ASSIGN_OR_RETURN(ExpressionPtr value, ParseNot());
    return Make(ExpressionKind::kUnary, line, "not", std::move(value));
  }

  absl::StatusOr<ExpressionPtr> ParseComparison() {
    WL_ASSIGN_OR_RETURN(ExpressionPtr left, ParseSum());
    ExpressionPtr comparison;
    for (;;) {
      std::string name;
      static const std::set<std::string> kOperators = {"==", "!=", "<", ">", "<=", ">="};
      const int line = Peek().line;
      if (Peek().kind == TokenKind::kOperator && kOperators.count(Peek().text) > 0) {
        name = Take().text;
      } else if (TakeWord("in")) {
        name = "in";
      } else if (IsWord("not") && Peek(1).kind == TokenKind::kName && Peek(1).text == "in") {
        Take();
        Take();
        name = "not in";
      } else {
        return comparison != nullptr ? std::move(comparison) : std::move(left);
      }
      if (comparison == nullptr)
        comparison = Make(ExpressionKind::kCompare, line, "", std::move(left));
      WL_ASSIGN_OR_RETURN(ExpressionPtr right, ParseSum());
      comparison->children.push_back(std::move(right));
      comparison->operators.push_back(std::move(name));
    }
  }

  // Jinja's order: + and - bind weaker than ~, that weaker than * / // %.
  absl::StatusOr<ExpressionPtr> ParseSum() {
    return ParseLeft({"+", "-"}, [this] { return ParseConcatenation(); });
  }
  absl::StatusOr<ExpressionPtr> ParseConcatenation() {
    return ParseLeft({"~"}, [this] { return ParseProduct(); });
  }
  absl::StatusOr<ExpressionPtr> ParseProduct() {
    return ParseLeft({"*", "/", "//", "%"}, [this] { return ParsePower(); });
  }
  absl::StatusOr<ExpressionPtr> ParsePower() {
    return ParseLeft({"**"}, [this] { return ParseUnary(); });
  }

  template <typename Next>
  absl::StatusOr<ExpressionPtr> ParseLeft(const std::set<std::string>& operators, Next next) {
    WL_ASSIGN_OR_RETURN(ExpressionPtr left, next());
    while (Peek().kind == TokenKind::kOperator && operators.count(Peek().text) > 0) {
      const Token token = Take();
      WL_ASSIGN_OR_RETURN(ExpressionPtr right, next());
      left =
          Make(ExpressionKind::kBinary, token.line, token.text, std::move(left), std::move(right));
      WL_RETURN_IF_ERROR(CheckChain(*left));
    }
    return left;
  }

  // Chains such as a + b + c nest to the left, one level for each operator: evaluation recurses
  // over them.
  absl::Status CheckChain(const Expression& expression) const {
    int length = 0;
    for (const Expression* node = &expression;
         !node->children.empty() && node->children[0] != nullptr; node = node->children[0].get()) {
      if (++length > kMaxChain)
        return LineError(expression.line,
                         absl::StrCat("more than ", kMaxChain, " operators in a row"));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ExpressionPtr> ParseUnary(bool with_filters = true) {
    if (IsOperator("-") || IsOperator("+")) {
      const Nested nested(*this);
      WL_RETURN_IF_ERROR(nested.status());
      const Token token = Take();
      WL_ASSIGN_OR_RETURN(ExpressionPtr value, ParseUnary(/*with_filters=*/false));
      value = Make(ExpressionKind::kUnary, token.line, token.text, std::move(value));
      return with_filters ? ParseFilters(std::move(value)) : std::move(value);
    }
    WL_ASSIGN_OR_RETURN(ExpressionPtr value, ParsePrimary());
    WL_ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
    return with_filters ? ParseFilters(std::move(value)) : std::move(value);
  }

  // .name [item] (call)
  absl::StatusOr<ExpressionPtr> ParsePostfix(ExpressionPtr value) {
    for (;;) {
      const int line = Peek().line;
      if (TakeOperator(".")) {
        if (Peek().kind == TokenKind::kInteger) {
          ExpressionPtr index = Make(ExpressionKind::kLiteral, line);
          WL_ASSIGN_OR_RETURN(index->value, IntegerOf(Take()));
          value = Make(ExpressionKind::kItem, line, "", std::move(value), std::move(index));
        } else {
          WL_ASSIGN_OR_RETURN(std::string name, ExpectName());
          value = Make(ExpressionKind::kAttribute, line, std::move(name), std::move(value));
        }
      } else if (TakeOperator("[")) {
        WL_ASSIGN_OR_RETURN(value, ParseSubscript(std::move(value), line));
      } else if (IsOperator("(")) {
        value = Make(ExpressionKind::kCall, line, "", std::move(value));
        WL_RETURN_IF_ERROR(ParseArguments(*value));
      } else {
        return value;
      }
      WL_RETURN_IF_ERROR(CheckChain(*value));
    }
  }

  // | filter, is test
  absl::StatusOr<ExpressionPtr> ParseFilters(ExpressionPtr value) {
    for (;;) {
      const int line = Peek().line;
      if (TakeOperator("|")) {
        WL_ASSIGN_OR_RETURN(std::string name, ExpectName());
        value = Make(ExpressionKind::kFilter, line, std::move(name), std::move(value));
        if (IsOperator("(")) WL_RETURN_IF_ERROR(ParseArguments(*value));
      } else if (TakeWord("is")) {
        const bool negated = TakeWord("not");
        WL_ASSIGN_OR_RETURN(std::string name, ExpectName());
        value = Make(ExpressionKind::kTest, line, std::move(name), std::move(value));
        WL_RETURN_IF_ERROR(ParseTestArguments(*value));
        if (negated) value = Make(ExpressionKind::kUnary, line, "not", std::move(value));
      } else if (IsOperator("(")) {
        value = Make(ExpressionKind::kCall, line, "", std::move(value));
        WL_RETURN_IF_ERROR(ParseArguments(*value));
      } else {
        return value;
      }
      WL_RETURN_IF_ERROR(CheckChain(*value));
    }
  }

  // `is divisibleby 3` needs no parentheses.
  absl::Status ParseTestArguments(Expression& test) {
    if (IsOperator("(")) return ParseArguments(test);
    static const std::set<std::string> kWords = {"else", "or", "and", "is", "if", "in", "not"};
    if (!StartsExpression() || IsOperator("-") || IsOperator("+") ||
        (Peek().kind == TokenKind::kName && kWords.count(Peek().text) > 0)) {
      return absl::OkStatus();
    }
    WL_ASSIGN_OR_RETURN(ExpressionPtr value, ParsePrimary());
    WL_ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
    test.arguments.push_back({.value = std::move(value)});
    return absl::OkStatus();
  }

  absl::Status ParseArguments(Expression& call) {
    WL_RETURN_IF_ERROR(Expect("("));
    while (!TakeOperator(")")) {
      Argument argument;
      if (IsOperator("*") || IsOperator("**"))
        return LineError(Peek().line, "* and ** arguments are not supported");
      if (Peek().kind == TokenKind::kName && Peek(1).kind == TokenKind::kOperator &&
          Peek(1).text == "=") {
        argument.name = Take().text;
        Take();
      }
      WL_ASSIGN_OR_RETURN(argument.value, ParseExpression());
      call.arguments.push_back(std::move(argument));
      if (!IsOperator(")")) WL_RETURN_IF_ERROR(Expect(","));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ExpressionPtr> ParseSubscript(ExpressionPtr value, int line) {
    std::vector<ExpressionPtr> parts(1);
    bool is_slice = false;
    while (!TakeOperator("]")) {
      if (TakeOperator(":")) {
        is_slice = true;
        parts.emplace_back();
        if (parts.size() > 3) return LineError(line, "a slice has at most three parts");
        continue;
      }
      if (parts.back() != nullptr) return Unexpected();
      WL_ASSIGN_OR_RETURN(parts.back(), ParseTupleOrExpression());
    }
    if (!is_slice && parts[0] == nullptr) return LineError(line, "expected an index");
    ExpressionPtr result =
        Make(is_slice ? ExpressionKind::kSlice : ExpressionKind::kItem, line, "", std::move(value));
    if (is_slice) parts.resize(3);
    for (ExpressionPtr& part : parts) result->children.push_back(std::move(part));
    return result;
  }

  static absl::StatusOr<Value> IntegerOf(const Token& token) {
    int64_t integer = 0;
    if (!absl::SimpleAtoi(token.text, &integer))
      return LineError(token.line, "integer of more than 64 bits");
    return Value(integer);
  }

  absl::StatusOr<ExpressionPtr> ParsePrimary() {
    const Nested nested(*this);
    WL_RETURN_IF_ERROR(nested.status());
    if (!StartsExpression()) return Unexpected();
    const Token token = Take();
    ExpressionPtr literal = Make(ExpressionKind::kLiteral, token.line);
    if (token.kind == TokenKind::kString) {
      std::string text = token.text;
      while (Peek().kind == TokenKind::kString) text += Take().text;
      literal->value = Text::Trusted(text);
    } else if (token.kind == TokenKind::kInteger) {
      WL_ASSIGN_OR_RETURN(literal->value, IntegerOf(token));
    } else if (token.kind == TokenKind::kFloat) {
      double number = 0;
      if (!absl::SimpleAtod(token.text, &number)) return LineError(token.line, "bad number");
      literal->value = number;
    } else if (token.kind == TokenKind::kName) {
      if (token.text == "true" || token.text == "True") {
        literal->value = true;
      } else if (token.text == "false" || token.text == "False") {
        literal->value = false;
      } else if (token.text == "none" || token.text == "None") {
        literal->value = None{};
      } else {
        return Make(ExpressionKind::kName, token.line, token.text);
      }
    } else if (token.text == "(") {
      return ParseParenthesis(token.line);
    } else if (token.text == "[") {
      ExpressionPtr list = Make(ExpressionKind::kList, token.line);
      WL_RETURN_IF_ERROR(ParseItems(*list, "]"));
      return list;
    } else {
      return ParseDict(token.line);
    }
    return literal;
  }

  absl::StatusOr<ExpressionPtr> ParseParenthesis(int line) {
    if (TakeOperator(")")) return Make(ExpressionKind::kTuple, line);
    WL_ASSIGN_OR_RETURN(ExpressionPtr value, ParseTupleOrExpression());
    WL_RETURN_IF_ERROR(Expect(")"));
    return value;
  }

  absl::Status ParseItems(Expression& list, absl::string_view end) {
    while (!TakeOperator(end)) {
      WL_ASSIGN_OR_RETURN(ExpressionPtr item, ParseExpression());
      list.children.push_back(std::move(item));
      if (!IsOperator(end)) WL_RETURN_IF_ERROR(Expect(","));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ExpressionPtr> ParseDict(int line) {
    if (tokens_[at_ - 1].text != "{") return LineError(line, "unexpected operator");
    ExpressionPtr dict = Make(ExpressionKind::kDict, line);
    while (!TakeOperator("}")) {
      WL_ASSIGN_OR_RETURN(ExpressionPtr key, ParseExpression());
      WL_RETURN_IF_ERROR(Expect(":"));
      WL_ASSIGN_OR_RETURN(ExpressionPtr value, ParseExpression());
      dict->children.push_back(std::move(key));
      dict->children.push_back(std::move(value));
      if (!IsOperator("}")) WL_RETURN_IF_ERROR(Expect(","));
    }
    return dict;
  }

  static constexpr int kMaxChain = 200;

  std::vector<Token> tokens_;
  const int max_depth_;
  size_t at_ = 0;
  int depth_ = 0;
  int loop_depth_ = 0;
};

}  // namespace

absl::StatusOr<Block> ParseTemplate(absl::string_view source, int max_depth) {
  WL_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenise(source));
  return Parser(std::move(tokens), max_depth).Parse();
}

}  // namespace warpline::chat
