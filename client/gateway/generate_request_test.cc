#include "client/gateway/generate_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/error_detail.h"
#include "client/gateway/json_body.h"

namespace warpline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<GenerateJob> Chat(absl::string_view body) {
  auto parsed = ParseJsonObject(body, 32 << 20);
  if (!parsed.ok()) return parsed.status();
  return ParseChatRequest(*parsed);
}

absl::StatusOr<GenerateJob> Complete(absl::string_view body) {
  auto parsed = ParseJsonObject(body, 32 << 20);
  if (!parsed.ok()) return parsed.status();
  return ParseCompletionRequest(*parsed);
}

// A completion with these fields beside a good prompt.
absl::StatusOr<GenerateJob> With(absl::string_view fields) {
  return Complete(absl::StrCat("{\"prompt\":\"x\",", fields, "}"));
}

v1::GenerateRequest Request(absl::string_view fields) {
  const absl::StatusOr<GenerateJob> job = With(fields);
  EXPECT_TRUE(job.ok()) << fields << ": " << job.status();
  return job.ok() ? job->requests.front() : v1::GenerateRequest();
}

void ExpectRefused(const absl::StatusOr<GenerateJob>& job, absl::string_view param,
                   absl::string_view what) {
  ASSERT_FALSE(job.ok()) << what;
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument) << what << job.status();
  EXPECT_EQ(DetailOf(job.status()).param, param) << what << ": " << job.status();
  EXPECT_THAT(std::string(job.status().message()), HasSubstr(std::string(param))) << what;
}

TEST(GenerateRequestTest, ReadsEveryField) {
  const v1::GenerateRequest request = Request(
      R"("max_tokens":7,"temperature":0.5,"top_p":0.25,"top_k":40,"min_p":0.125,)"
      R"("repetition_penalty":1.5,"presence_penalty":-2,"frequency_penalty":2,"seed":9,)"
      R"("stop":["a","b"],"logit_bias":{"5":-100,"6":1.5},"ignore_eos":true,"repeat_last_n":-1)");
  EXPECT_EQ(request.text(), "x");
  EXPECT_EQ(request.max_tokens(), 7);
  EXPECT_FLOAT_EQ(request.sampling().temperature(), 0.5);
  EXPECT_FLOAT_EQ(request.sampling().top_p(), 0.25);
  EXPECT_EQ(request.sampling().top_k(), 40);
  EXPECT_FLOAT_EQ(request.sampling().min_p(), 0.125);
  EXPECT_FLOAT_EQ(request.sampling().repetition_penalty(), 1.5);
  EXPECT_FLOAT_EQ(request.sampling().presence_penalty(), -2);
  EXPECT_FLOAT_EQ(request.sampling().frequency_penalty(), 2);
  EXPECT_EQ(request.sampling().seed(), 9);
  EXPECT_EQ(request.sampling().penalty_window(), -1);
  EXPECT_THAT(request.stop(), ElementsAre("a", "b"));
  EXPECT_FLOAT_EQ(request.sampling().logit_bias().at(5), -100);
  EXPECT_FLOAT_EQ(request.sampling().logit_bias().at(6), 1.5);
  EXPECT_TRUE(request.ignore_eos());
  EXPECT_FALSE(request.parse_special());
}

TEST(GenerateRequestTest, LeavesAbsentAndNullFieldsToTheCoordinator) {
  const v1::GenerateRequest request = Request(
      R"("temperature":null,"seed":null,"stop":null,"max_tokens":null,"logit_bias":null,"n":null)");
  EXPECT_FALSE(request.sampling().has_temperature());
  EXPECT_FALSE(request.sampling().has_seed());
  EXPECT_EQ(request.stop_size(), 0);
  EXPECT_EQ(request.max_tokens(), kDefaultCompletionTokens);
  const auto chat = Chat(R"({"messages":[{"role":"user","content":"x"}]})");
  ASSERT_TRUE(chat.ok());
  EXPECT_FALSE(chat->requests.front().has_max_tokens());  // the rest of the context
}

TEST(GenerateRequestTest, RefusesNumbersOfTheWrongTypeOrRange) {
  struct Case {
    const char* fields;
    const char* param;
  };
  const Case kCases[] = {
      {R"("max_tokens":1.5)", "max_tokens"},
      {R"("max_tokens":1.0)", "max_tokens"},
      {R"("max_tokens":"5")", "max_tokens"},
      {R"("max_tokens":0)", "max_tokens"},
      {R"("max_tokens":-0)", "max_tokens"},
      {R"("max_tokens":-1)", "max_tokens"},
      {R"("max_tokens":true)", "max_tokens"},
      {R"("max_completion_tokens":-4)", "max_completion_tokens"},
      {R"("max_tokens":5,"max_completion_tokens":6)", "max_completion_tokens"},
      {R"("temperature":-1)", "temperature"},
      {R"("temperature":"hot")", "temperature"},
      {R"("temperature":1e39)", "temperature"},
      {R"("top_k":-2)", "top_k"},
      {R"("top_k":1.5)", "top_k"},
      {R"("top_p":1.1)", "top_p"},
      {R"("top_p":-0.1)", "top_p"},
      {R"("min_p":1.1)", "min_p"},
      {R"("typical_p":-1)", "typical_p"},
      {R"("typical_p":0.5)", "typical_p"},
      {R"("presence_penalty":-3)", "presence_penalty"},
      {R"("frequency_penalty":1e9)", "frequency_penalty"},
      {R"("repetition_penalty":-3)", "repetition_penalty"},
      {R"("repetition_penalty":0)", "repetition_penalty"},
      {R"("repeat_penalty":1e9)", "repeat_penalty"},
      {R"("repeat_last_n":-2)", "repeat_last_n"},
      {R"("logit_bias":{"-1":1})", "logit_bias"},
      {R"("logit_bias":{"abc":1})", "logit_bias"},
      {R"("logit_bias":{"99999999999":1})", "logit_bias"},
      {R"("logit_bias":{"5":1e9})", "logit_bias.5"},
      {R"("logit_bias":[1])", "logit_bias"},
      {R"("n":0)", "n"},
      {R"("n":-1)", "n"},
      {R"("n":1000000000)", "n"},
      {R"("n":2)", "n"},
      {R"("best_of":3)", "best_of"},
      {R"("stop":"")", "stop"},
      {R"("stop":[""])", "stop[0]"},
      {R"("stop":["a",5])", "stop[1]"},
      {R"("stop":5)", "stop"},
      {R"("seed":1.5)", "seed"},
      {R"("seed":"1")", "seed"},
      {R"("seed":18446744073709551616)", "seed"},
      {R"("logprobs":true)", "logprobs"},
      {R"("logprobs":5)", "logprobs"},
      {R"("logprobs":false,"top_logprobs":-1)", "top_logprobs"},
      {R"("top_logprobs":21)", "top_logprobs"},
      {R"("echo":true)", "echo"},
      {R"("suffix":"x")", "suffix"},
      {R"("stream":1)", "stream"},
      {R"("stream_options":5)", "stream_options"},
      {R"("stream_options":{"include_usage":"yes"})", "stream_options.include_usage"},
      {R"("tools":[{"type":"function"}])", "tools"},
      {R"("tools":5)", "tools"},
      {R"("tool_choice":"required")", "tool_choice"},
      {R"("response_format":{"type":"json_object"})", "response_format"},
      {R"("response_format":{"type":"nonsense"})", "response_format"},
      {R"("response_format":"text")", "response_format"},
      {R"("grammar":"root ::= x")", "grammar"},
      {R"("json_schema":{})", "json_schema"},
      {R"("model":5)", "model"},
      {R"("user":"a\r\nb")", "user"},
      {R"("user":5)", "user"},
      {R"("metadata":{"a":"x\ny"})", "metadata"},
  };
  for (const Case& c : kCases) ExpectRefused(With(c.fields), c.param, c.fields);
}

TEST(GenerateRequestTest, TakesNeutralValuesAsAbsent) {
  EXPECT_TRUE(With(R"("n":1,"best_of":1,"tools":[],"tool_choice":"none","logprobs":false,)"
                   R"("top_logprobs":0,"echo":false,"suffix":"","typical_p":1,"grammar":"",)"
                   R"("response_format":{"type":"text"},"functions":null)")
                  .ok());
  EXPECT_TRUE(With(R"("cache_prompt":true,"n_predict":5,"max_token":3,"user":"me",)"
                   R"("metadata":{"a":"b"},"something":{"deep":[1,2,{}]})")
                  .ok());
}

TEST(GenerateRequestTest, TakesTheEdgesOfTheRanges) {
  EXPECT_FLOAT_EQ(Request(R"("temperature":0)").sampling().temperature(), 0);
  EXPECT_FLOAT_EQ(Request(R"("temperature":-0)").sampling().temperature(), 0);
  EXPECT_FLOAT_EQ(Request(R"("temperature":1e30)").sampling().temperature(), 1e30F);
  EXPECT_EQ(Request(R"("top_k":-1)").sampling().top_k(), 0);  // off
  EXPECT_EQ(Request(R"("top_k":2147483648)").sampling().top_k(), 2147483647);
  EXPECT_FLOAT_EQ(Request(R"("top_p":0)").sampling().top_p(), 0);
  EXPECT_FLOAT_EQ(Request(R"("top_p":1)").sampling().top_p(), 1);
  EXPECT_EQ(Request(R"("max_tokens":2147483648)").max_tokens(), 2147483647);
  EXPECT_EQ(Request(R"("max_tokens":18446744073709551615)").max_tokens(), 2147483647);
  EXPECT_EQ(Request(R"("max_tokens":5,"max_completion_tokens":5)").max_tokens(), 5);
  EXPECT_FALSE(Request(R"("seed":-1)").sampling().has_seed());
  EXPECT_EQ(Request(R"("seed":-2)").sampling().seed(), 18446744073709551614U);
  EXPECT_EQ(Request(R"("seed":9223372036854775808)").sampling().seed(), 9223372036854775808U);
  EXPECT_EQ(Request(R"("stop":[])").stop_size(), 0);
  EXPECT_THAT(Request(R"("stop":"\u20ac")").stop(), ElementsAre("\xE2\x82\xAC"));
}

TEST(GenerateRequestTest, LastOfEqualKeysCounts) {
  EXPECT_EQ(Request(R"("max_tokens":1,"max_tokens":9)").max_tokens(), 9);
}

TEST(GenerateRequestTest, BoundsListsOfStopsAndBiases) {
  const std::vector<std::string> stops(17, "\"x\"");
  ExpectRefused(With(absl::StrCat("\"stop\":[", absl::StrJoin(stops, ","), "]")), "stop", "17");
  const std::string long_stop(1025, 'x');
  ExpectRefused(With(absl::StrCat("\"stop\":\"", long_stop, "\"")), "stop", "1025 bytes");
  EXPECT_EQ(Request(absl::StrCat("\"stop\":\"", long_stop.substr(1), "\"")).stop(0).size(), 1024U);
  std::vector<std::string> biases;
  for (int id = 0; id < 1025; ++id) biases.push_back(absl::StrCat("\"", id, "\":1"));
  ExpectRefused(With(absl::StrCat("\"logit_bias\":{", absl::StrJoin(biases, ","), "}")),
                "logit_bias", "1025 biases");
}

TEST(GenerateRequestTest, ReadsEveryFormOfPrompt) {
  const auto one = Complete(R"({"prompt":[5,6,7]})");
  ASSERT_TRUE(one.ok()) << one.status();
  EXPECT_THAT(one->requests[0].tokens().ids(), ElementsAre(5, 6, 7));
  const auto texts = Complete(R"({"prompt":["a","b"],"max_tokens":3})");
  ASSERT_TRUE(texts.ok()) << texts.status();
  ASSERT_EQ(texts->requests.size(), 2U);
  EXPECT_EQ(texts->requests[1].text(), "b");
  EXPECT_EQ(texts->requests[1].max_tokens(), 3);
  const auto lists = Complete(R"({"prompt":[[1],[2,3]]})");
  ASSERT_TRUE(lists.ok()) << lists.status();
  EXPECT_THAT(lists->requests[1].tokens().ids(), ElementsAre(2, 3));
  // Whether an empty text means anything depends on the vocabulary.
  EXPECT_TRUE(Complete(R"({"prompt":""})").ok());
}

TEST(GenerateRequestTest, RefusesPromptsWithoutMeaning) {
  ExpectRefused(Complete("{}"), "prompt", "absent");
  ExpectRefused(Complete(R"({"prompt":null})"), "prompt", "null");
  ExpectRefused(Complete(R"({"prompt":5})"), "prompt", "number");
  ExpectRefused(Complete(R"({"prompt":{}})"), "prompt", "object");
  ExpectRefused(Complete(R"({"prompt":[]})"), "prompt", "empty");
  ExpectRefused(Complete(R"({"prompt":[[]]})"), "prompt[0]", "empty inside");
  ExpectRefused(Complete(R"({"prompt":[1,-1]})"), "prompt[1]", "negative");
  ExpectRefused(Complete(R"({"prompt":[1,1.5]})"), "prompt[1]", "float");
  ExpectRefused(Complete(R"({"prompt":[1,2147483648]})"), "prompt[1]", "too large");
  ExpectRefused(Complete(R"({"prompt":[1,"a"]})"), "prompt[1]", "mixed");
  ExpectRefused(Complete(R"({"prompt":["a",1]})"), "prompt[1]", "mixed");
  ExpectRefused(Complete(R"({"prompt":[[[1]]]})"), "prompt[0][0]", "nested");
  const std::vector<std::string> many(1000, "\"x\"");
  ExpectRefused(Complete(absl::StrCat("{\"prompt\":[", absl::StrJoin(many, ","), "]}")), "prompt",
                "1000 prompts");
}

TEST(GenerateRequestTest, PassesMessagesOnInTheirOrder) {
  const auto job = Chat(
      R"({"messages":[{"zeta":9223372036854775807,"role":"system","content":"s"},)"
      R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b\"\n"}]},)"
      R"({"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},)"
      R"({"role":"tool","tool_call_id":"1","content":"r"}],)"
      R"("chat_template_kwargs":{"thinking":false,"n":3},"add_generation_prompt":false})");
  ASSERT_TRUE(job.ok()) << job.status();
  const v1::ChatPrompt& chat = job->requests[0].chat();
  EXPECT_EQ(chat.messages_json(),
            R"([{"zeta":9223372036854775807,"role":"system","content":"s"},)"
            R"({"role":"user","content":"a\nb\"\n"},)"
            R"({"role":"assistant","content":null,"tool_calls":[{"id":"1"}]},)"
            R"({"role":"tool","tool_call_id":"1","content":"r"}])");
  EXPECT_EQ(chat.template_kwargs_json(), R"({"thinking":false,"n":3})");
  EXPECT_FALSE(chat.add_generation_prompt());
}

TEST(GenerateRequestTest, RefusesBrokenMessages) {
  struct Case {
    const char* messages;
    const char* param;
  };
  const Case kCases[] = {
      {"\"x\"", "messages"},
      {"[]", "messages"},
      {"[5]", "messages[0]"},
      {R"([{"content":"x"}])", "messages[0].role"},
      {R"([{"role":5,"content":"x"}])", "messages[0].role"},
      {R"([{"role":"god","content":"x"}])", "messages[0].role"},
      {R"([{"role":"user"}])", "messages[0].content"},
      {R"([{"role":"user","content":null}])", "messages[0].content"},
      {R"([{"role":"user","content":5}])", "messages[0].content"},
      {R"([{"role":"user","content":[]}])", "messages[0].content"},
      {R"([{"role":"user","content":["x"]}])", "messages[0].content[0]"},
      {R"([{"role":"user","content":[{"text":"x"}]}])", "messages[0].content[0].type"},
      {R"([{"role":"user","content":[{"type":"text"}]}])", "messages[0].content[0].text"},
      {R"([{"role":"user","content":"x"},{"role":"assistant","content":null}])",
       "messages[1].content"},
      {R"([{"role":"assistant","content":null,"tool_calls":null}])", "messages[0].content"},
      {R"([{"role":"assistant","content":null,"tool_calls":[]}])", "messages[0].content"},
      {R"([{"role":"tool","content":"x"}])", "messages[0].tool_call_id"},
      {R"([{"role":"user","content":"x","name":5}])", "messages[0].name"},
  };
  for (const Case& c : kCases) {
    ExpectRefused(Chat(absl::StrCat("{\"messages\":", c.messages, "}")), c.param, c.messages);
  }
  ExpectRefused(Chat("{}"), "messages", "absent");
  std::vector<std::string> many(4097, R"({"role":"user","content":"x"})");
  ExpectRefused(Chat(absl::StrCat("{\"messages\":[", absl::StrJoin(many, ","), "]}")), "messages",
                "4097 messages");
}

TEST(GenerateRequestTest, NamesContentThatIsNoText) {
  for (const char* part : {R"({"type":"image_url","image_url":{"url":"http://169.254.169.254/"}})",
                           R"({"type":"image_url","image_url":{"url":"file:///etc/passwd"}})",
                           R"({"type":"input_audio","input_audio":{}})", R"({"type":"other"})"}) {
    const auto job = Chat(absl::StrCat(R"({"messages":[{"role":"user","content":[)"
                                       R"({"type":"text","text":"x"},)",
                                       part, "]}]}"));
    ExpectRefused(job, "messages[0].content[1].type", part);
    EXPECT_EQ(DetailOf(job.status()).code, "unsupported_content");
  }
}

TEST(JsonBodyTest, RefusesWhatIsNoObject) {
  for (const absl::string_view body :
       {"", "null", "[1]", "5", "{\"a\":1,}", "{/*x*/}", "{} {}", "\xEF\xBB\xBF{}", "{\"a\":NaN}",
        "{\"a\":Infinity}", "{\"a\":1e999}", "{\"a\":01}", "{\"a\":\"\\ud800\"}",
        "{\"a\":\"\\udc00\"}", "{\"a\":\"\xFF\"}", "{\"a\":\"\xC0\x80\"}",
        "{\"a\":\"\xED\xA0\x80\"}", "{\"a\":\"\t\"}"}) {
    const auto parsed = ParseJsonObject(body, 1 << 20);
    ASSERT_FALSE(parsed.ok()) << body;
    EXPECT_EQ(parsed.status().code(), absl::StatusCode::kInvalidArgument) << body;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("at byte ")) << body;
  }
  EXPECT_THAT(std::string(ParseJsonObject("{\"a\":1,}", 1 << 20).status().message()),
              HasSubstr("at byte 7"));
}

TEST(JsonBodyTest, SaysWhereANumberIsTooLarge) {
  const std::string digits(400, '7');
  const std::pair<std::string, int> cases[] = {
      {R"({"a":1e999})", 5},
      {R"({"a":[1,-2.5e3,-1e999]})", 15},
      {R"({"\"1e999":"\\","b":{"c": 12345678901234567890, "d":1E+400 }})", 52},
      {absl::StrCat(R"({"a":0,"b":)", digits, "}"), 11},
  };
  for (const auto& [body, position] : cases) {
    EXPECT_EQ(ParseJsonObject(body, 1 << 20).status().message(),
              absl::StrCat("the body is no valid JSON: a number is too large at byte ", position));
  }
}

TEST(JsonBodyTest, BoundsDepthAndMemory) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep = "{\"unknown\":";
    for (int level = 0; level < 100000; ++level) deep += open;
    const auto parsed = ParseJsonObject(deep, 32 << 20);
    ASSERT_FALSE(parsed.ok());
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("nesting deeper than 64"));
  }
  EXPECT_TRUE(ParseJsonObject(
                  absl::StrCat("{\"a\":", std::string(63, '['), std::string(63, ']'), "}"), 1 << 20)
                  .ok());
  // Four MiB of text mean 48 MiB of values.
  std::string many = "{\"a\":[1";
  for (int index = 0; index < 2000000; ++index) many += ",1";
  many += "]}";
  EXPECT_EQ(ParseJsonObject(many, 32 << 20).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(JsonBodyTest, KeepsOrderIntegersAndZeroBytes) {
  const absl::string_view text =
      R"({"z":1,"a":-9223372036854775808,"b":18446744073709551615,"c":"\u0000"})";
  const auto parsed = ParseJsonObject(text, 1 << 20);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(ToJson(*parsed), text);
}

}  // namespace
}  // namespace warpline
