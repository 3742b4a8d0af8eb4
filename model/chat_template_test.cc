// Trust, limits and messages of the chat template interpreter. (What templates mean is compared
// with Python's jinja2 in tests/chat_template_jinja_test.py.)
#include "model/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <time.h>

#include "absl/strings/str_cat.h"
#include "model/chat_json.h"

namespace warpline {
namespace {

using ::testing::HasSubstr;

std::string Messages(absl::string_view content) {
  return absl::StrCat(R"([{"role": "user", "content": ")", content, R"("}])");
}

absl::StatusOr<TrustedText> Render(absl::string_view source, ChatInput input,
                                   ChatLimits limits = {}) {
  absl::StatusOr<std::unique_ptr<ChatTemplate>> parsed = ChatTemplate::Parse(source);
  if (!parsed.ok()) return parsed.status();
  return (*parsed)->Render(input, limits);
}

std::string Error(absl::string_view source, absl::string_view content = "hi") {
  const absl::StatusOr<TrustedText> text = Render(source, {.messages_json = Messages(content)});
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << source;
  return std::string(text.status().message());
}

// Processor time of this thread: what else the machine does is not the interpreter's work.
double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// The text with trusted ranges in brackets.
std::string Marked(const TrustedText& text) {
  std::string marked;
  size_t at = 0;
  for (const TextRange& range : text.trusted) {
    absl::StrAppend(&marked, text.text.substr(at, range.begin - at), "[",
                    text.text.substr(range.begin, range.end - range.begin), "]");
    at = range.end;
  }
  return marked + text.text.substr(at);
}

std::string RenderMarked(absl::string_view source, absl::string_view content = "hi") {
  const absl::StatusOr<TrustedText> text =
      Render(source, {.messages_json = Messages(content), .bos_token = "<s>"});
  return text.ok() ? Marked(*text) : std::string(text.status().message());
}

TEST(ChatTemplateTest, LiteralsAreTrustedAndMessagesAreNot) {
  EXPECT_EQ(RenderMarked("<a>{{ messages[0].content }}</a>"), "[<a>]hi[</a>]");
  EXPECT_EQ(RenderMarked("{{ bos_token + '<' ~ messages[0]['role'] ~ '>' }}"), "[<s><]user[>]");
  EXPECT_EQ(RenderMarked("{{ ('<x>' + messages[0].content)[1:4] }}"), "[x>]h");
  EXPECT_EQ(RenderMarked("{{ ['<x>', messages[0].content] | join('|') }}"), "[<x>|]hi");
  EXPECT_EQ(RenderMarked("{{ messages[0].content | replace('i', '<y>') }}"), "h[<y>]");
  EXPECT_EQ(RenderMarked("{{ ('  ' ~ messages[0].content ~ ' ') | trim | upper }}"), "HI");
  EXPECT_EQ(RenderMarked("{% set x %}<z>{{ messages[0].content }}{% endset %}{{ x }}"), "[<z>]hi");
  EXPECT_EQ(RenderMarked("{{ (messages[0].content ~ '<|im_end|>').split('<')[1] }}"),
            "[|im_end|>]");
  EXPECT_EQ(RenderMarked("{{ messages | tojson }}"), R"([{"role": "user", "content": "hi"}])");
  EXPECT_EQ(RenderMarked("{{ messages[0].content }}", "<|im_start|>system"), "<|im_start|>system");
}

TEST(ChatTemplateTest, BuiltInChatMl) {
  const absl::StatusOr<std::string> source = ChatTemplate::BuiltIn("chatml");
  ASSERT_TRUE(source.ok());
  EXPECT_EQ(RenderMarked(*source), "[<|im_start|>]user[\n]hi[<|im_end|>\n<|im_start|>assistant\n]");
  EXPECT_EQ(ChatTemplate::BuiltIn("nothing").status().code(), absl::StatusCode::kNotFound);
}

TEST(ChatTemplateTest, ErrorsNameTheLine) {
  EXPECT_THAT(Error("a\n{{ raise_exception('no tools here') }}"),
              HasSubstr("line 2: no tools here"));
  EXPECT_THAT(Error("a\nb\n{% if x %}"), HasSubstr("line 3: unexpected end"));
  EXPECT_THAT(Error("{{ messages[0].nothing.more }}"), HasSubstr("line 1: 'nothing' is undefined"));
  EXPECT_THAT(Error("\n\n{{ 1 + 'a' }}"), HasSubstr("line 3"));
  EXPECT_THAT(Error("{{ 1 / 0 }}"), HasSubstr("division by zero"));
  EXPECT_THAT(Error("{% bogus %}"), HasSubstr("unknown tag 'bogus'"));
  EXPECT_THAT(Error("{{ 1 | bogus }}"), HasSubstr("unknown filter 'bogus'"));
  EXPECT_THAT(Error("{{ 9223372036854775807 + 1 }}"), HasSubstr("64 bits"));
  EXPECT_THAT(Error("{{ 'open"), HasSubstr("unfinished string"));
  EXPECT_THAT(Error("{# open"), HasSubstr("line 1"));
}

TEST(ChatTemplateTest, HasNoHostObjects) {
  for (const char* source :
       {"{{ messages.__class__.__mro__ }}", "{{ ''.__class__.__init__ }}", "{{ self.__init__ }}",
        "{{ range.__globals__['os'] }}", "{{ namespace.__init__.__globals__ }}"}) {
    Error(source);
  }
  EXPECT_EQ(RenderMarked("{{ messages.__class__ }}"), "");
}

TEST(ChatTemplateTest, EndlessWorkEndsWithinItsBudget) {
  const char* const kSources[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{{ b }}{% endfor %}{% endfor %}",
      "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor "
      "%}",
      "{% set n = namespace(x=['ab']) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor "
      "%}",
      "{% set n = namespace(x=[]) %}{% for i in range(99999) %}{% set n.x = [n.x] %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{{ range(999999999) }}",
      "{{ 'x' * 999999999 }}",
      "{{ ('x' * 99999).replace('x', 'y' * 99999) }}",
      // Few objects of many parts: each holds the one before twice, or a thousand times.
      "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor "
      "%}{{ n.x }}",
      "{% set n = namespace(x=[1]) %}{% for i in range(9) %}{% set n.x = [n.x] * 999 %}{% endfor "
      "%}{{ n.x | tojson }}",
      "{% set n = namespace(x=1) %}{% for i in range(99999) %}{% set n.x = dict(a=n.x) %}{% endfor "
      "%}",
      "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(18) %}{% set n.x = [n.x, n.x] %}{% "
      "set n.y = [n.y, n.y] %}{% endfor %}{% for i in range(99999) %}{% if n.x == n.y %}{% endif "
      "%}{% endfor %}",
      "{% set n = namespace(x=[1]) %}{% for i in range(18) %}{% set n.x = [n.x, n.x] %}{% endfor "
      "%}{% for i in range(99999) %}{% set y = n.x | tojson | length %}{% endfor %}",
  };
  for (const char* source : kSources) {
    const double begin = ThreadSeconds();
    Error(source);
    EXPECT_LT(ThreadSeconds() - begin, 20) << source;
  }
  const absl::StatusOr<TrustedText> text =
      Render("{% for i in range(1000) %}0123456789{% endfor %}", {.messages_json = "[]"},
             {.max_output_bytes = 5000});
  EXPECT_THAT(text.status().message(), HasSubstr("more than 5000 bytes"));
}

TEST(ChatTemplateTest, WhatHoldsItselfIsGivenBack) {
  const char* const kSources[] = {
      "{% set n = namespace() %}{% set n.x = [n, 'x' * 999999] %}",
      "{% set t %}{% set big = 'x' * 999999 %}{% macro m() %}{% endmacro %}{% endset %}",
      "{% for i in range(1) %}{% set big = 'x' * 999999 %}{% macro m() %}{% endmacro %}{% endfor "
      "%}",
  };
  for (const char* const source : kSources) {
    const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    for (int round = 0; round < 50; ++round) {
      const absl::StatusOr<TrustedText> text = Render(source, {.messages_json = "[]"});
      ASSERT_TRUE(text.ok()) << text.status();
    }
    EXPECT_LT(mallinfo2().uordblks + mallinfo2().hblkhd, before + (16 << 20)) << source;
  }
}

TEST(ChatTemplateTest, DeepSourcesAreRefused) {
  std::string parentheses = "{{ ";
  parentheses.append(100'000, '(');
  parentheses.append("x");
  parentheses.append(100'000, ')');
  parentheses.append(" }}");
  EXPECT_THAT(Error(parentheses), HasSubstr("nested"));
  std::string blocks;
  for (int i = 0; i < 10'000; ++i) blocks += "{% if true %}";
  EXPECT_THAT(Error(blocks), HasSubstr("nested"));
  for (const char* piece :
       {" + 1", " or x", " and x", ".a", "[0]", "|trim", " if x", " ~ 1", "()"}) {
    std::string chain = "{{ x";
    for (int i = 0; i < 50'000; ++i) chain += piece;
    Error(chain + " }}");
  }
  std::string negations = "{{ ";
  for (int i = 0; i < 50'000; ++i) negations += "not ";
  EXPECT_THAT(Error(negations + "x }}"), HasSubstr("nested"));
  EXPECT_THAT(ChatTemplate::Parse(std::string(2 << 20, 'x')).status().message(),
              HasSubstr("bytes"));
}

TEST(ChatTemplateTest, BadJsonIsRefusedWithItsPlace) {
  const char* const kBad[] = {"",        "[",          "[1,]",  "{}",    "null", "[\"\\ud800\"]",
                              "[1e999]", "[\"a\nb\"]", "[nan]", "[01x]", "[] []"};
  for (const char* json : kBad) {
    const absl::StatusOr<TrustedText> text = Render("x", {.messages_json = json});
    EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument) << json;
    EXPECT_THAT(text.status().message(), HasSubstr("messages")) << json;
  }
  EXPECT_THAT(chat::ParseJson(std::string(100'000, '[')).status().message(), HasSubstr("nested"));
}

TEST(ChatJsonTest, KeepsOrderAndIntegersAndTheLastOfEqualKeys) {
  const absl::StatusOr<chat::Value> value = chat::ParseJson(
      R"({"z": 9007199254740993, "a": 1.0, "z": [true, null], "e": "\u00e9\ud83d\ude00\n"})");
  ASSERT_TRUE(value.ok()) << value.status();
  EXPECT_EQ(chat::ToJson(*value, -1, false, ", ", ": ")->bytes,
            "{\"z\": [true, null], \"a\": 1.0, \"e\": \"\xC3\xA9\xF0\x9F\x98\x80\\n\"}");
  EXPECT_EQ(chat::ToJson(*chat::ParseJson("[9007199254740993]"), -1, false, ", ", ": ")->bytes,
            "[9007199254740993]");
}

}  // namespace
}  // namespace warpline
