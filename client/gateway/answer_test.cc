#include "client/gateway/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/error_detail.h"
#include "client/gateway/http_response.h"
#include "client/gateway/json_body.h"
#include "client/gateway/status_json.h"
#include "client/gateway/text_requests.h"

namespace warpline {
namespace {

using testing::HasSubstr;
using testing::Not;

v1::Delta Token(int32_t id, const std::string& text) {
  v1::Delta delta;
  delta.set_text(text);
  delta.add_token_ids(id);
  return delta;
}

v1::Finished End(v1::FinishReason reason, const std::string& rest = "") {
  v1::Finished finished;
  finished.set_reason(reason);
  finished.set_text(rest);
  finished.mutable_usage()->set_prompt_tokens(4);
  finished.mutable_usage()->set_completion_tokens(2);
  finished.mutable_usage()->set_cached_tokens(1);
  return finished;
}

v1::Started Begin(uint64_t seed) {
  v1::Started started;
  started.set_seed(seed);
  return started;
}

GenerateJob Job(bool chat, bool stream, size_t prompts = 1) {
  return {.chat = chat, .stream = stream, .requests = std::vector<v1::GenerateRequest>(prompts)};
}

TEST(GenerateAnswerTest, PutsTheWholeAnswerTogether) {
  GenerateJob job = Job(/*chat=*/false, /*stream=*/false);
  job.return_token_ids = true;
  GenerateAnswer answer(job, {.id = "cmpl-1", .model = "m"});
  answer.OnStarted(0, Begin(18446744073709551615U));
  EXPECT_EQ(answer.OnDelta(0, Token(5, "a")), "");
  EXPECT_EQ(answer.OnDelta(0, Token(6, "")), "");
  EXPECT_FALSE(answer.complete());
  EXPECT_EQ(answer.OnFinished(0, End(v1::FINISH_REASON_STOP, "b")), "");
  ASSERT_TRUE(answer.complete());
  const std::string body = answer.Body();
  EXPECT_THAT(body, HasSubstr(R"("id":"cmpl-1","object":"text_completion","created":)"));
  EXPECT_THAT(body, HasSubstr(R"("model":"m","choices":[{"index":0,"text":"ab","logprobs":null,)"
                              R"("finish_reason":"stop","seed":18446744073709551615,)"
                              R"("token_ids":[5,6]}])"));
  EXPECT_THAT(body, HasSubstr(R"("usage":{"prompt_tokens":4,"completion_tokens":2,)"
                              R"("total_tokens":6,"prompt_tokens_details":{"cached_tokens":1}})"));
}

TEST(GenerateAnswerTest, ChatHasAMessage) {
  GenerateAnswer answer(Job(/*chat=*/true, /*stream=*/false), {.id = "i", .model = "m"});
  answer.OnDelta(0, Token(5, "hi\n\"there\""));
  answer.OnFinished(0, End(v1::FINISH_REASON_LENGTH));
  EXPECT_THAT(answer.Body(),
              HasSubstr(R"({"index":0,"message":{"role":"assistant","content":"hi\n\"there\""},)"
                        R"("logprobs":null,"finish_reason":"length","seed":0})"));
  EXPECT_THAT(answer.Body(), HasSubstr(R"("object":"chat.completion")"));
}

TEST(GenerateAnswerTest, SumsTheUsageOfABatch) {
  GenerateAnswer answer(Job(/*chat=*/false, /*stream=*/false, 2), {.id = "i", .model = "m"});
  answer.OnDelta(1, Token(5, "b"));
  answer.OnDelta(0, Token(5, "a"));
  answer.OnFinished(1, End(v1::FINISH_REASON_STOP));
  EXPECT_FALSE(answer.complete());
  answer.OnFinished(0, End(v1::FINISH_REASON_STOP));
  ASSERT_TRUE(answer.complete());
  EXPECT_THAT(answer.Body(), HasSubstr(R"({"index":0,"text":"a")"));
  EXPECT_THAT(answer.Body(), HasSubstr(R"({"index":1,"text":"b")"));
  EXPECT_THAT(answer.Body(), HasSubstr(R"("prompt_tokens":8,"completion_tokens":4)"));
}

TEST(GenerateAnswerTest, StreamsRoleTextEndAndUsage) {
  GenerateJob job = Job(/*chat=*/true, /*stream=*/true);
  job.include_usage = true;
  GenerateAnswer answer(job, {.id = "i", .model = "m"});
  answer.OnStarted(0, Begin(9));
  const std::string first = answer.OnDelta(0, Token(5, "a"));
  EXPECT_THAT(first, HasSubstr(R"("delta":{"role":"assistant","content":""})"));
  EXPECT_THAT(first, HasSubstr(R"("delta":{"content":"a"},"logprobs":null,"finish_reason":null)"));
  EXPECT_LT(first.find("role"), first.find(R"("a")"));
  EXPECT_THAT(first, HasSubstr(R"("usage":null)"));
  EXPECT_EQ(answer.OnDelta(0, Token(6, "")), "");  // nothing to tell
  EXPECT_THAT(answer.OnDelta(0, Token(6, "b")), Not(HasSubstr("role")));
  const std::string last = answer.OnFinished(0, End(v1::FINISH_REASON_STOP));
  EXPECT_THAT(last, HasSubstr(R"("delta":{},"logprobs":null,"finish_reason":"stop","seed":9)"));
  const std::string end = answer.StreamEnd();
  EXPECT_THAT(end, HasSubstr(R"("choices":[],"usage":{"prompt_tokens":4)"));
  EXPECT_THAT(end, testing::EndsWith("\n\ndata: [DONE]\n\n"));
}

TEST(GenerateAnswerTest, StreamsEveryTokenWhenIdsAreAskedFor) {
  GenerateJob job = Job(/*chat=*/false, /*stream=*/true);
  job.return_token_ids = true;
  GenerateAnswer answer(job, {.id = "i", .model = "m"});
  EXPECT_THAT(answer.OnDelta(0, Token(5, "")),
              HasSubstr(R"("choices":[{"index":0,"text":"","logprobs":null,"finish_reason":null,)"
                        R"("token_ids":[5]}])"));
  const std::string last = answer.OnFinished(0, End(v1::FINISH_REASON_LENGTH, "x"));
  EXPECT_THAT(last, HasSubstr(R"("text":"x","logprobs":null,"finish_reason":"length")"));
  EXPECT_EQ(answer.StreamEnd(), "data: [DONE]\n\n");
}

TEST(HttpResponseTest, MapsEveryCode) {
  const std::pair<absl::StatusCode, int> kStatuses[] = {
      {absl::StatusCode::kInvalidArgument, 400},
      {absl::StatusCode::kUnimplemented, 400},
      {absl::StatusCode::kUnauthenticated, 401},
      {absl::StatusCode::kNotFound, 404},
      {absl::StatusCode::kResourceExhausted, 429},
      {absl::StatusCode::kUnavailable, 503},
      {absl::StatusCode::kDeadlineExceeded, 504},
      {absl::StatusCode::kInternal, 500},
      {absl::StatusCode::kFailedPrecondition, 500},
      {absl::StatusCode::kDataLoss, 500},
      {absl::StatusCode::kUnknown, 500},
  };
  for (const auto& [code, http_status] : kStatuses) {
    EXPECT_EQ(ErrorResponse(absl::Status(code, "x")).status, http_status);
  }
}

TEST(HttpResponseTest, WritesErrorObjects) {
  const HttpResponse response = ErrorResponse(InvalidField("max_tokens", "is \"odd\"\r\nX: y"));
  EXPECT_EQ(response.body,
            R"({"error":{"message":"max_tokens: is \"odd\"\r\nX: y",)"
            R"("type":"invalid_request_error","param":"max_tokens","code":"invalid_value"}})");
  const HttpResponse full = ErrorResponse(absl::ResourceExhaustedError("queue is full"));
  EXPECT_EQ(full.body, R"({"error":{"message":"queue is full","type":"rate_limit_error",)"
                       R"("param":null,"code":"resource_exhausted"}})");
  EXPECT_THAT(Serialize(full, {}, {}), HasSubstr("\r\nRetry-After: 1\r\n"));
}

TEST(HttpResponseTest, FramesAnswers) {
  EXPECT_EQ(Serialize(JsonResponse("{}"), {{"A", "b"}}, {.keep_alive = true}),
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nA: b\r\n"
            "Connection: keep-alive\r\n\r\n{}");
  EXPECT_EQ(Serialize(JsonResponse("{}"), {}, {.keep_alive = false, .head_only = true}),
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n"
            "Connection: close\r\n\r\n");
  EXPECT_EQ(Chunk("0123456789abcdef"), "10\r\n0123456789abcdef\r\n");
  EXPECT_EQ(Chunk(""), "");
  EXPECT_EQ(Event("{}"), "data: {}\n\n");
}

TEST(StatusJsonTest, NamesMissingStagesAndHidesAddresses) {
  v1::StatusResponse status;
  status.set_coordinator_pid(12);
  v1::StageStatus& first = *status.add_stages();
  first.set_pid(13);
  first.set_layer_end(5);
  first.set_state("serving");
  first.set_address("unix:/secret/place");
  v1::StageStatus& second = *status.add_stages();
  second.set_stage(1);
  second.set_layer_begin(5);
  second.set_layer_end(9);
  second.set_state("down");
  second.set_reason("connect to unix:/secret/socket: refused");
  status.set_reason("stage 1: down (ipv4:10.0.0.1:5, unix:/secret)");
  const std::string text = ToJson(StatusJson(status, "m"));
  EXPECT_THAT(text, HasSubstr(R"("coordinator":{"pid":12})"));
  EXPECT_THAT(text, HasSubstr(R"({"stage":0,"pid":13,"layers":[0,5],"state":"serving")"));
  EXPECT_THAT(text, HasSubstr(R"({"stage":1,"pid":null,"layers":[5,9],"state":"down")"));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
  EXPECT_THAT(text, HasSubstr("connect to (address) refused"));
  EXPECT_EQ(NotReadyMessage(status), "stage 1: down ((address), (address))");
}

}  // namespace
}  // namespace warpline
