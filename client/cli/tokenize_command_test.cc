// `warpline tokenize` from its command line to its output, in this process.
#include "client/cli/tokenize_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"

namespace warpline {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Outcome {
  int exit_code = -1;
  std::string out;
  std::string err;
};

// Stands in for the standard streams while it lives.
class Redirected {
 public:
  explicit Redirected(const std::string& input)
      : in_(input),
        old_in_(std::cin.rdbuf(in_.rdbuf())),
        old_out_(std::cout.rdbuf(out_.rdbuf())),
        old_err_(std::cerr.rdbuf(err_.rdbuf())) {
    std::cin.clear();
  }
  ~Redirected() {
    std::cin.rdbuf(old_in_);
    std::cout.rdbuf(old_out_);
    std::cerr.rdbuf(old_err_);
  }
  std::string out() const { return out_.str(); }
  std::string err() const { return err_.str(); }

 private:
  std::istringstream in_;
  std::ostringstream out_;
  std::ostringstream err_;
  std::streambuf* old_in_;
  std::streambuf* old_out_;
  std::streambuf* old_err_;
};

// In the vocabulary "qwen2" the token "Hello" has the id 326, and the first 256 tokens are the
// bytes in order.
std::string Golden(const std::string& name) {
  return absl::StrCat(WARPLINE_TEST_DATA, "/tokenizers/", name, ".gguf");
}

Outcome Tokenize(std::vector<const char*> arguments, const std::string& input = "") {
  CLI::App app;
  app.require_subcommand(1);
  Flags flags(app, "warpline");
  const Command command = MakeTokenizeCommand(app, flags);
  arguments.insert(arguments.begin(), {"warpline", "tokenize", "-m"});
  const std::optional<int> refused =
      flags.Parse(static_cast<int>(arguments.size()), arguments.data());
  if (refused.has_value()) return {.exit_code = *refused};
  Redirected streams(input);
  const int exit_code = command.run();
  return {.exit_code = exit_code, .out = streams.out(), .err = streams.err()};
}

TEST(TokenizeCommandTest, AnswersEachLine) {
  const std::string model = Golden("qwen2");
  // "Hello" is one token of this vocabulary and ", " are two; the ids are those of the golden
  // cases.
  const Outcome there =
      Tokenize({model.c_str(), "--jsonl"},
               "{\"text_b64\":\"SGVsbG8=\",\"add_special\":false}\n\n"
               "{\"text_b64\":\"\",\"add_special\":true,\"parse_special\":null}\n");
  EXPECT_EQ(there.exit_code, kExitOk) << there.err;
  EXPECT_EQ(there.out, "{\"ids\":[326]}\n{\"ids\":[]}\n");
  const Outcome back = Tokenize({model.c_str(), "--jsonl", "--detokenize"}, "{\"ids\":[326]}\n");
  EXPECT_EQ(back.exit_code, kExitOk) << back.err;
  EXPECT_EQ(back.out, "{\"text_b64\":\"SGVsbG8=\"}\n");
}

TEST(TokenizeCommandTest, NamesTheLineThatIsMalformed) {
  const std::string model = Golden("qwen2");
  const std::string good = "{\"text_b64\":\"SGVsbG8=\"}\n";
  for (const std::string bad :
       {"{", "[]", "7", "{}", "{\"text_b64\":7}", "{\"text_b64\":\"*\"}",
        "{\"text_b64\":\"SGVsbG8=\",\"add_special\":1}", "{\"text_b64\":\"SGVs\\u0000bG8=\"}"}) {
    const Outcome outcome = Tokenize({model.c_str(), "--jsonl"}, good + bad + "\n" + good);
    EXPECT_EQ(outcome.exit_code, kExitFailure) << bad;
    EXPECT_THAT(outcome.err, HasSubstr("line 2:")) << bad;
    EXPECT_EQ(outcome.out, "{\"ids\":[326]}\n") << bad;
  }
  for (const std::string bad : {"{}", "{\"ids\":[-1]}", "{\"ids\":[326,854]}", "{\"ids\":{}}",
                                "{\"ids\":[1.5]}", "{\"ids\":[\"1\"]}", "{\"ids\":[4294967296]}"}) {
    const Outcome outcome = Tokenize({model.c_str(), "--jsonl", "--detokenize"}, bad + "\n");
    EXPECT_EQ(outcome.exit_code, kExitFailure) << bad;
    EXPECT_THAT(outcome.err, HasSubstr("line 1:")) << bad;
  }
}

TEST(TokenizeCommandTest, PrintsIdsAndPieces) {
  const std::string model = Golden("qwen2");
  // \u00F6 is two tokens of one byte each, which no terminal should get on their own.
  EXPECT_EQ(Tokenize({model.c_str(), "Hello\n\u00F6"}).out,
            "326\t\"Hello\"\n10\t\"\\n\"\n195\t\"\\xc3\"\n182\t\"\\xb6\"\n");
  EXPECT_EQ(Tokenize({model.c_str()}, "Hello").out, "326\t\"Hello\"\n");
  EXPECT_EQ(Tokenize({model.c_str(), ""}, "Hello").out, "");
  EXPECT_EQ(Tokenize({model.c_str(), "--detokenize", "326, 326"}).out, "HelloHello\n");
  const Outcome outcome = Tokenize({model.c_str(), "--detokenize", "326 x"});
  EXPECT_EQ(outcome.exit_code, kExitFailure);
  EXPECT_THAT(outcome.err, HasSubstr("\"x\""));
  // The vocabulary has 854 tokens.
  for (const char* id : {"-1", "854", "2147483647"}) {
    const Outcome unknown = Tokenize({model.c_str(), "--detokenize", id});
    EXPECT_EQ(unknown.exit_code, kExitFailure) << id;
    EXPECT_EQ(unknown.out, "");
    EXPECT_EQ(unknown.err, absl::StrCat("warpline: token id ", id,
                                        " is outside 0 to 853: the vocabulary has 854 tokens\n"));
  }
  EXPECT_EQ(Tokenize({model.c_str(), "--detokenize", "853"}).exit_code, kExitOk);
}

TEST(TokenizeCommandTest, RefusesModelFilesWithCodeThree) {
  const std::string text = absl::StrCat(WARPLINE_SOURCE_DIR, "/LICENSE");
  EXPECT_EQ(Tokenize({text.c_str(), "x"}).exit_code, kExitModelFile);
  EXPECT_EQ(Tokenize({"/does/not/exist.gguf", "x"}).exit_code, kExitModelFile);
  const std::string no_vocabulary = absl::StrCat(WARPLINE_TEST_DATA, "/families/qwen2-tied.gguf");
  const Outcome outcome = Tokenize({no_vocabulary.c_str(), "x"});
  EXPECT_EQ(outcome.exit_code, kExitModelFile);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("qwen2-tied.gguf"), HasSubstr("no vocabulary")));
}

}  // namespace
}  // namespace warpline
