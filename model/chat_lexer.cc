#include "model/chat_lexer.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status.h"

namespace warpline::chat {
namespace {

bool IsNameStart(char byte) { return absl::ascii_isalpha(byte) || byte == '_'; }
bool IsNameByte(char byte) { return absl::ascii_isalnum(byte) || byte == '_'; }

class Lexer {
 public:
  explicit Lexer(absl::string_view source) : source_(source) {}

  absl::StatusOr<std::vector<Token>> Run() {
    if (absl::EndsWith(source_, "\n")) source_.remove_suffix(1);
    while (at_ < source_.size()) {
      const size_t tag = FindTag();
      AddText(tag);
      if (at_ >= source_.size()) break;
      WL_RETURN_IF_ERROR(ReadTag());
    }
    Add(TokenKind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  void Add(TokenKind kind, std::string text) { tokens_.push_back({kind, std::move(text), line_}); }

  void Advance(size_t end) {
    line_ += static_cast<int>(std::count(source_.begin() + at_, source_.begin() + end, '\n'));
    at_ = end;
  }

  size_t FindTag() const {
    for (size_t index = at_; index + 1 < source_.size(); ++index) {
      if (source_[index] == '{' && absl::StrContains("{%#", source_[index + 1])) return index;
    }
    return source_.size();
  }

  // The text up to the tag at `end`, trimmed as that tag and the one before want it.
  void AddText(size_t end) {
    absl::string_view text = source_.substr(at_, end - at_);
    const bool at_line_start = at_ == 0 || trimmed_newline_;
    if (strip_next_) {
      while (!text.empty() && absl::ascii_isspace(text.front())) text.remove_prefix(1);
    }
    const char kind = end + 1 < source_.size() ? source_[end + 1] : ' ';
    const char mark = end + 2 < source_.size() ? source_[end + 2] : ' ';
    if (end < source_.size() && mark == '-') {
      while (!text.empty() && absl::ascii_isspace(text.back())) text.remove_suffix(1);
    } else if (end < source_.size() && kind != '{' && mark != '+') {
      // lstrip_blocks: blanks between the start of the line and a block tag or comment.
      size_t keep = text.size();
      while (keep > 0 && text[keep - 1] != '\n' && absl::ascii_isspace(text[keep - 1])) --keep;
      if (keep > 0 ? text[keep - 1] == '\n' : at_line_start && !strip_next_)
        text = text.substr(0, keep);
    }
    if (!text.empty()) Add(TokenKind::kText, std::string(text));
    Advance(end);
    strip_next_ = trimmed_newline_ = false;
  }

  // After a tag that closed at at_: what the text behind it loses.
  void AfterTag(bool strip, bool is_print, bool keep_newline) {
    strip_next_ = strip;
    trimmed_newline_ = false;
    if (strip || is_print || keep_newline || at_ >= source_.size() || source_[at_] != '\n') return;
    Advance(at_ + 1);  // trim_blocks
    trimmed_newline_ = true;
  }

  absl::Status ReadTag() {
    if (source_[at_ + 1] == '#') return ReadComment();
    const bool is_print = source_[at_ + 1] == '{';
    const absl::string_view closing = is_print ? "}}" : "%}";
    size_t begin = at_ + 2;
    if (begin < source_.size() && absl::StrContains("-+", source_[begin])) ++begin;
    Advance(begin);
    if (!is_print && IsRaw()) return ReadRaw();
    Add(is_print ? TokenKind::kBeginPrint : TokenKind::kBeginBlock, "");
    int depth = 0;
    for (;;) {
      SkipSpace();
      if (at_ >= source_.size()) return LineError(line_, absl::StrCat("expected '", closing, "'"));
      const absl::string_view rest = source_.substr(at_);
      const size_t mark = absl::StrContains("-+", rest[0]) ? 1 : 0;
      if (depth == 0 && absl::StartsWith(rest.substr(mark), closing)) {
        Add(is_print ? TokenKind::kEndPrint : TokenKind::kEndBlock, "");
        Advance(at_ + mark + 2);
        AfterTag(rest[0] == '-', is_print, rest[0] == '+');
        return absl::OkStatus();
      }
      WL_RETURN_IF_ERROR(ReadToken());
      const Token& token = tokens_.back();
      if (token.kind == TokenKind::kOperator && absl::StrContains("([{", token.text)) ++depth;
      if (token.kind == TokenKind::kOperator && absl::StrContains(")]}", token.text)) --depth;
    }
  }

  absl::Status ReadComment() {
    const size_t end = source_.find("#}", at_ + 2);
    if (end == absl::string_view::npos) return LineError(line_, "expected '#}'");
    const char mark = end > at_ + 2 ? source_[end - 1] : ' ';
    Advance(end + 2);
    AfterTag(mark == '-', false, mark == '+');
    return absl::OkStatus();
  }

  bool IsRaw() {
    const absl::string_view rest = absl::StripLeadingAsciiWhitespace(source_.substr(at_));
    return absl::StartsWith(rest, "raw") && (rest.size() < 4 || !IsNameByte(rest[3]));
  }

  absl::Status ReadRaw() {
    const size_t open = source_.find("%}", at_);
    if (open == absl::string_view::npos) return LineError(line_, "expected '%}'");
    const bool strip = source_[open - 1] == '-';
    Advance(open + 2);
    AfterTag(strip, false, false);
    size_t end = at_;
    for (;;) {
      end = source_.find("{%", end);
      if (end == absl::string_view::npos) return LineError(line_, "expected 'endraw'");
      absl::string_view inside = source_.substr(end + 2);
      absl::ConsumePrefix(&inside, "-");
      if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(inside), "endraw")) break;
      end += 2;
    }
    AddText(end);
    const size_t close = source_.find("%}", at_);
    if (close == absl::string_view::npos) return LineError(line_, "expected '%}'");
    const bool strip_after = source_[close - 1] == '-';
    Advance(close + 2);
    AfterTag(strip_after, false, false);
    return absl::OkStatus();
  }

  void SkipSpace() {
    size_t end = at_;
    while (end < source_.size() && absl::ascii_isspace(source_[end])) ++end;
    Advance(end);
  }

  absl::Status ReadToken() {
    const char byte = source_[at_];
    if (byte == '"' || byte == '\'') return ReadString(byte);
    if (absl::ascii_isdigit(byte)) return ReadNumber();
    if (IsNameStart(byte)) {
      size_t end = at_;
      while (end < source_.size() && IsNameByte(source_[end])) ++end;
      Add(TokenKind::kName, std::string(source_.substr(at_, end - at_)));
      at_ = end;
      return absl::OkStatus();
    }
    static constexpr absl::string_view kOperators[] = {
        "**", "//", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", "+",
        "-",  "*",  "/",  "%",  "~",  "<",  ">", "=", ".", ",", ":", "|"};
    for (const absl::string_view name : kOperators) {
      if (!absl::StartsWith(source_.substr(at_), name)) continue;
      Add(TokenKind::kOperator, std::string(name));
      at_ += name.size();
      return absl::OkStatus();
    }
    return LineError(
        line_, absl::StrCat("unexpected character '", EscapeForLog(source_.substr(at_, 1)), "'"));
  }

  absl::Status ReadString(char quote) {
    const int first_line = line_;
    std::string text;
    size_t index = at_ + 1;
    for (; index < source_.size() && source_[index] != quote; ++index) {
      if (source_[index] != '\\' || index + 1 >= source_.size()) {
        text.push_back(source_[index]);
        continue;
      }
      static constexpr absl::string_view kLetters = "nrtbf0\\'\"";
      static constexpr absl::string_view kBytes("\n\r\t\b\f\0\\'\"", 9);
      const char letter = source_[++index];
      const size_t known = kLetters.find(letter);
      if (letter == 'u' && index + 4 < source_.size()) {
        WL_RETURN_IF_ERROR(AppendCodePoint(source_.substr(index + 1, 4), text));
        index += 4;
      } else if (known != absl::string_view::npos) {
        text.push_back(kBytes[known]);
      } else {
        text.append({'\\', letter});
      }
    }
    if (index >= source_.size()) return LineError(first_line, "unfinished string");
    Advance(index + 1);
    tokens_.push_back({TokenKind::kString, std::move(text), first_line});
    return absl::OkStatus();
  }

  absl::Status AppendCodePoint(absl::string_view digits, std::string& text) const {
    uint32_t code_point = 0;
    if (!std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit) ||
        !absl::SimpleHexAtoi(digits, &code_point) ||
        (code_point >= 0xD800 && code_point < 0xE000)) {
      return LineError(line_, "bad \\u escape");
    }
    if (code_point < 0x80) {
      text.push_back(static_cast<char>(code_point));
    } else if (code_point < 0x800) {
      text.push_back(static_cast<char>(0xC0 | (code_point >> 6)));
      text.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
    } else {
      text.push_back(static_cast<char>(0xE0 | (code_point >> 12)));
      text.push_back(static_cast<char>(0x80 | ((code_point >> 6) & 0x3F)));
      text.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
    }
    return absl::OkStatus();
  }

  absl::Status ReadNumber() {
    size_t end = at_;
    const auto digits = [this, &end] {
      while (end < source_.size() && (absl::ascii_isdigit(source_[end]) || source_[end] == '_'))
        ++end;
    };
    digits();
    bool is_float = false;
    if (end + 1 < source_.size() && source_[end] == '.' && absl::ascii_isdigit(source_[end + 1])) {
      is_float = true;
      ++end;
      digits();
    }
    if (end < source_.size() && absl::StrContains("eE", source_[end])) {
      is_float = true;
      ++end;
      if (end < source_.size() && absl::StrContains("+-", source_[end])) ++end;
      digits();
    }
    std::string text(source_.substr(at_, end - at_));
    text.erase(std::remove(text.begin(), text.end(), '_'), text.end());
    Add(is_float ? TokenKind::kFloat : TokenKind::kInteger, std::move(text));
    at_ = end;
    return absl::OkStatus();
  }

  absl::string_view source_;
  size_t at_ = 0;
  int line_ = 1;
  bool strip_next_ = false;       // the last tag ended with -
  bool trimmed_newline_ = false;  // the last tag took the newline behind it
  std::vector<Token> tokens_;
};

}  // namespace

absl::StatusOr<std::vector<Token>> Tokenise(absl::string_view source) {
  return Lexer(source).Run();
}

absl::Status LineError(int line, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", reason));
}

}  // namespace warpline::chat
