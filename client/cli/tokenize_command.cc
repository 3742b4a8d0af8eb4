#include "client/cli/tokenize_command.h"

#include <boost/json.hpp>
#include <iostream>
#include <iterator>
#include <limits>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status.h"
#include "model/gguf.h"
#include "model/tokenizer.h"

namespace warpline {
namespace {

namespace json = boost::json;

constexpr size_t kMaxTextBytes = size_t{512} << 20;

struct TokenizeOptions {
  std::string model;
  CLI::Option* text_option = nullptr;  // tells an empty text from none
  std::string text;
  bool jsonl = false;
  bool detokenize = false;
  bool add_special = false;
  bool parse_special = false;
};

absl::StatusOr<bool> BoolField(const json::object& line, absl::string_view name) {
  const json::value* const value = line.if_contains({name.data(), name.size()});
  if (value == nullptr || value->is_null()) return false;
  if (!value->is_bool())
    return absl::InvalidArgumentError(absl::StrCat(name, " is neither true nor false"));
  return value->get_bool();
}

absl::StatusOr<std::string> TextField(const json::object& line) {
  const json::value* const value = line.if_contains("text_b64");
  std::string text;
  const json::string* const encoded = value == nullptr ? nullptr : value->if_string();
  if (encoded == nullptr || !absl::Base64Unescape({encoded->data(), encoded->size()}, &text)) {
    return absl::InvalidArgumentError("text_b64 is no base64 text");
  }
  return text;
}

absl::Status CheckIds(const Tokenizer& tokenizer, absl::Span<const int32_t> ids) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < tokenizer.vocab_size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("token id ", id, " is outside 0 to ", tokenizer.vocab_size() - 1,
                     ": the vocabulary has ", tokenizer.vocab_size(), " tokens"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> IdsField(const json::object& line) {
  const json::value* const value = line.if_contains("ids");
  if (value == nullptr || !value->is_array()) return absl::InvalidArgumentError("ids is no array");
  std::vector<int32_t> ids;
  for (const json::value& id : value->get_array()) {
    if (!id.is_int64() || id.get_int64() < std::numeric_limits<int32_t>::min() ||
        id.get_int64() > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError("ids holds something that is no token id");
    }
    ids.push_back(static_cast<int32_t>(id.get_int64()));
  }
  return ids;
}

absl::StatusOr<json::object> ParseLine(const std::string& line) {
  boost::system::error_code error;
  json::value value = json::parse(line, error);
  if (error) return absl::InvalidArgumentError(absl::StrCat("not JSON: ", error.message()));
  if (!value.is_object()) return absl::InvalidArgumentError("no JSON object");
  return std::move(value.get_object());
}

absl::StatusOr<json::object> AnswerLine(const Tokenizer& tokenizer, bool detokenize,
                                        const std::string& line) {
  WL_ASSIGN_OR_RETURN(const json::object request, ParseLine(line));
  if (detokenize) {
    DecodeOptions options;
    WL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsField(request));
    WL_RETURN_IF_ERROR(CheckIds(tokenizer, ids));
    WL_ASSIGN_OR_RETURN(options.remove_special, BoolField(request, "remove_special"));
    WL_ASSIGN_OR_RETURN(options.unparse_special, BoolField(request, "unparse_special"));
    return json::object{{"text_b64", absl::Base64Escape(tokenizer.Decode(ids, options))}};
  }
  EncodeOptions options;
  WL_ASSIGN_OR_RETURN(const std::string text, TextField(request));
  WL_ASSIGN_OR_RETURN(options.add_special, BoolField(request, "add_special"));
  WL_ASSIGN_OR_RETURN(options.parse_special, BoolField(request, "parse_special"));
  const std::vector<int32_t> ids = tokenizer.Encode(text, options);
  return json::object{{"ids", json::array(ids.begin(), ids.end())}};
}

int Fail(absl::string_view message) {
  std::cerr << "warpline: " << message << "\n";
  return kExitFailure;
}

int RunLines(const Tokenizer& tokenizer, bool detokenize) {
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    if (absl::StripAsciiWhitespace(line).empty()) continue;
    const absl::StatusOr<json::object> answer = AnswerLine(tokenizer, detokenize, line);
    if (!answer.ok()) {
      return Fail(absl::StrCat("standard input, line ", number, ": ", answer.status().message()));
    }
    std::cout << *answer << "\n";
    if (!std::cout) break;  // nobody reads on; the end of the program says so
  }
  return kExitOk;
}

// Prints the text of token ids that are given in words.
int RunDetokenize(const Tokenizer& tokenizer, const std::string& text) {
  std::vector<int32_t> ids;
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" ,\t\r\n"), absl::SkipEmpty())) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(word, &id)) {
      return Fail(absl::StrCat("\"", absl::Utf8SafeCHexEscape(word), "\" is no token id"));
    }
    ids.push_back(id);
  }
  const absl::Status status = CheckIds(tokenizer, ids);
  if (!status.ok()) return Fail(status.message());
  std::cout << tokenizer.Decode(ids, {.unparse_special = true}) << "\n";
  return kExitOk;
}

int RunText(const Tokenizer& tokenizer, const TokenizeOptions& options, const std::string& text) {
  const EncodeOptions encode{.add_special = options.add_special,
                             .parse_special = options.parse_special};
  for (const int32_t id : tokenizer.Encode(text, encode)) {
    const std::string piece = tokenizer.TokenBytes(id, /*show_special=*/true);
    // A piece may be a part of a character; a terminal gets whole ones only.
    const bool whole_characters = Utf8Stream().Push(piece) == piece;
    std::cout << id << "\t\""
              << (whole_characters ? absl::Utf8SafeCHexEscape(piece) : absl::CHexEscape(piece))
              << "\"\n";
  }
  return kExitOk;
}

int RunWith(const Tokenizer& tokenizer, const TokenizeOptions& options) {
  if (options.jsonl) return RunLines(tokenizer, options.detokenize);
  std::string text = options.text;
  if (options.text_option->count() == 0) {
    text.assign(std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>());
  }
  if (text.size() > kMaxTextBytes) {
    return Fail(absl::StrCat("the text has more than ", kMaxTextBytes, " bytes"));
  }
  return options.detokenize ? RunDetokenize(tokenizer, text) : RunText(tokenizer, options, text);
}

int RunTokenize(const TokenizeOptions& options) {
  UnblockSignals();  // Reading from a terminal must not hold out against Ctrl-C.
  const auto refuse = [](const absl::Status& status) {
    std::cerr << "warpline: " << status.message() << "\n";
    return kExitModelFile;
  };
  const absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(options.model);
  if (!file.ok()) return refuse(file.status());
  const absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(**file);
  if (!tokenizer.ok()) return refuse(Annotate(tokenizer.status(), options.model));
  for (const std::string& warning : (*tokenizer)->warnings()) LogWarning(warning);
  if (!(*tokenizer)->has_vocabulary()) {
    return refuse(absl::InvalidArgumentError(options.model + ": the file has no vocabulary"));
  }
  return RunWith(**tokenizer, options);
}

}  // namespace

Command MakeTokenizeCommand(CLI::App& app, Flags& flags) {
  CLI::App* const command =
      app.add_subcommand("tokenize", "Show the tokens of a text, or the text of tokens");
  auto options = std::make_shared<TokenizeOptions>();
  flags
      .Add(*command, "-m,--model", options->model, "GGUF file; only its tokenizer.* keys are read")
      ->required();
  options->text_option = command->add_option(
      "text", options->text, "Text, or ids with --detokenize (absent: standard input)");
  flags.AddFlag(*command, "--jsonl", options->jsonl,
                "Read one JSON object per line and answer each with one");
  flags.AddFlag(*command, "--detokenize", options->detokenize, "From ids to text");
  flags.AddFlag(*command, "--add-special", options->add_special,
                "Add bos and eos as the vocabulary says");
  flags.AddFlag(*command, "--parse-special", options->parse_special,
                "Match control tokens in the text");
  return {.app = command, .run = [options] { return RunTokenize(*options); }};
}

}  // namespace warpline
