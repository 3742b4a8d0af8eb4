// The whole service: a real coordinator and real workers.
#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <deque>
#include <fstream>
#include <thread>

#include "base/error_detail.h"
#include "coordinator/harness_client.h"
#include "proto/grpc_status.h"
#include "proto/health.grpc.pb.h"

namespace warpline {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ElementsAreArray;
using testing::HasSubstr;

constexpr char kModel[] = "families/qwen3-deep.gguf";  // six layers, 72 token ids
constexpr int kVocab = 72;
const std::vector<int32_t> kPrompt = {38, 6,  52, 9,  43, 54, 32, 49, 34, 21, 64, 66, 66, 28,
                                      52, 7,  4,  3,  30, 24, 43, 47, 25, 69, 49, 32, 7,  17,
                                      65, 65, 50, 61, 47, 58, 22, 63, 58, 61, 22, 36};

std::vector<float> FloatsOf(const std::string& bytes) {
  std::vector<float> values(bytes.size() / sizeof(float));
  memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

// [tokens, kVocab]
std::vector<float> Evaluate(TestService& service, const v1::EvaluateRequest& request,
                            absl::Status& status) {
  grpc::ClientContext context;
  const auto reader = service.stub().Evaluate(&context, request);
  std::string values;
  v1::EvaluateResponse response;
  while (reader->Read(&response)) {
    EXPECT_EQ(response.vocab_size(), static_cast<uint32_t>(kVocab));
    EXPECT_EQ(response.values().size(), response.row_count() * kVocab * 4);
    values += response.values();
  }
  status = FromGrpc(reader->Finish());
  return FloatsOf(values);
}

v1::EvaluateRequest EvaluateRequestOf(const std::vector<int32_t>& tokens) {
  v1::EvaluateRequest request;
  request.mutable_tokens()->Add(tokens.begin(), tokens.end());
  return request;
}

double Nmse(const std::vector<float>& got, const std::vector<float>& expected) {
  double error = 0;
  double power = 0;
  for (size_t index = 0; index < expected.size(); ++index) {
    error += std::pow(double{got[index]} - expected[index], 2);
    power += std::pow(double{expected[index]}, 2);
  }
  return error / power;
}

int32_t Best(const std::vector<float>& logits, size_t row) {
  const auto begin = logits.begin() + static_cast<int64_t>(row * kVocab);
  return static_cast<int32_t>(std::max_element(begin, begin + kVocab) - begin);
}

TEST(ServiceTest, LogitsAreTheGoldenOnesWhateverTheStages) {
  std::ifstream file(std::string(WARPLINE_TEST_DATA) + "/families/qwen3-deep.logits.f32",
                     std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const std::vector<float> golden = FloatsOf(bytes);
  ASSERT_EQ(golden.size(), kPrompt.size() * kVocab);
  std::vector<float> first;
  for (const int workers : {1, 3}) {
    TestService service(kModel, workers, {"--chunk", "7", "--kv-type", "f32"});
    ASSERT_TRUE(service.WaitUntilReady()) << service.Log();
    absl::Status status;
    const std::vector<float> got = Evaluate(service, EvaluateRequestOf(kPrompt), status);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(got.size(), golden.size());
    EXPECT_LE(Nmse(got, golden), 1e-10);
    v1::EvaluateRequest request = EvaluateRequestOf(kPrompt);
    request.set_decode_from(20);
    request.set_logits_last(5);
    const std::vector<float> last = Evaluate(service, request, status);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_THAT(last, ElementsAreArray(got.end() - 5 * kVocab, got.end()));
    if (!first.empty()) {
      EXPECT_EQ(memcmp(first.data(), got.data(), got.size() * 4), 0);
    }
    first = got;
  }
}

class RunningServiceTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    service_ = new TestService(kModel, 2, {"-c", "4096", "--parallel", "3", "--chunk", "16"});
    ASSERT_TRUE(service_->WaitUntilReady()) << service_->Log();
  }
  static void TearDownTestSuite() {
    delete service_;
    service_ = nullptr;
  }

  static TestService* service_;
};
TestService* RunningServiceTest::service_ = nullptr;

TEST_F(RunningServiceTest, GreedyTokensAreTheBestOfTheEvaluatedLogits) {
  const Answer answer = service_->Generate(GreedyRequest(kPrompt, 12));
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  ASSERT_EQ(answer.ids.size(), 12u);
  ASSERT_TRUE(answer.started.has_value());
  EXPECT_EQ(answer.started->prompt_tokens(), kPrompt.size());
  ASSERT_TRUE(answer.finished.has_value());
  EXPECT_EQ(answer.finished->reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(answer.finished->usage().prompt_tokens(), kPrompt.size());
  EXPECT_EQ(answer.finished->usage().completion_tokens(), 12u);
  std::vector<int32_t> all = kPrompt;
  all.insert(all.end(), answer.ids.begin(), answer.ids.end());
  absl::Status status;
  const std::vector<float> logits = Evaluate(*service_, EvaluateRequestOf(all), status);
  ASSERT_TRUE(status.ok()) << status;
  for (size_t index = 0; index < answer.ids.size(); ++index) {
    EXPECT_EQ(answer.ids[index], Best(logits, kPrompt.size() - 1 + index)) << index;
  }
}

TEST_F(RunningServiceTest, ManyAtOnceGiveWhatEachGivesAlone) {
  std::vector<v1::GenerateRequest> requests;
  for (int index = 0; index < 8; ++index) {
    std::vector<int32_t> prompt(kPrompt.begin(), kPrompt.begin() + 5 * (index + 1));
    requests.push_back(GreedyRequest(prompt, 10 + index));
    requests.back().mutable_sampling()->set_temperature(index % 2 == 0 ? 0 : 1);
    requests.back().mutable_sampling()->set_seed(index);
  }
  std::vector<Answer> alone;
  for (const v1::GenerateRequest& request : requests) alone.push_back(service_->Generate(request));
  std::vector<Answer> together(requests.size());
  std::vector<std::thread> threads;
  for (size_t index = 0; index < requests.size(); ++index) {
    threads.emplace_back([&, index] { together[index] = service_->Generate(requests[index]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t index = 0; index < requests.size(); ++index) {
    ASSERT_TRUE(together[index].status.ok()) << together[index].status;
    EXPECT_EQ(together[index].ids, alone[index].ids) << index;
    EXPECT_EQ(together[index].ids.size(), 10 + index);
  }
}

TEST_F(RunningServiceTest, ACancelledRequestFreesItsSlotAndPages) {
  for (const int prompt_length : {10, 3000}) {  // while decoding, and in the prompt
    std::vector<int32_t> prompt;
    for (int index = 0; index < prompt_length; ++index) prompt.push_back(index % kVocab);
    const Answer answer =
        service_->Generate(GreedyRequest(prompt, 1000), [&](const v1::GenerateResponse& response) {
          return prompt_length == 10 ? !response.has_delta() : !response.has_started();
        });
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kCancelled);
    EXPECT_TRUE(service_->AwaitMetric("warpline_slots_used", 0));
    EXPECT_TRUE(service_->AwaitMetric("warpline_pages_used", 0));
    EXPECT_EQ(service_->Metric("warpline_running_sequences"), 0);
  }
}

TEST_F(RunningServiceTest, TheQueueIsFirstComeFirstServedAndADeadlineInItHolds) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(1));
  const auto reader = service_->stub().Generate(&context, GreedyRequest(kPrompt, 4000));
  v1::GenerateResponse response;
  while (reader->Read(&response)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(service_->AwaitMetric("warpline_slots_used", 0));
}

TEST_F(RunningServiceTest, ADeadlineIsCountedAsOneAndAClientThatLeavesIsNot) {
  const std::string overdue = R"(warpline_requests_total{outcome="deadline_exceeded"})";
  const std::string cancelled = R"(warpline_requests_total{outcome="cancelled"})";
  const double overdue_before = std::max(0.0, service_->Metric(overdue));
  const double cancelled_before = std::max(0.0, service_->Metric(cancelled));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(200));
  v1::GenerateRequest request = GreedyRequest(kPrompt, 4000);
  const auto reader = service_->stub().Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) continue;
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(service_->AwaitMetric(overdue, overdue_before + 1));
  const Answer left = service_->Generate(
      request, [](const v1::GenerateResponse& event) { return !event.has_delta(); });
  EXPECT_EQ(left.status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(service_->AwaitMetric(cancelled, cancelled_before + 1));
  EXPECT_EQ(service_->Metric(overdue), overdue_before + 1);
}

TEST_F(RunningServiceTest, PromptsAtTheContextLength) {
  std::vector<int32_t> prompt(4095, 5);
  const Answer one = service_->Generate(GreedyRequest(prompt, 10));
  ASSERT_TRUE(one.status.ok()) << one.status;
  EXPECT_EQ(one.ids.size(), 1u);
  EXPECT_EQ(one.finished->reason(), v1::FINISH_REASON_LENGTH);
  prompt.push_back(5);
  const Answer refused = service_->Generate(GreedyRequest(prompt, 10));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailOf(refused.status).code, "context_length_exceeded");
  EXPECT_FALSE(refused.started.has_value());
}

TEST_F(RunningServiceTest, WrongRequestsAreRefusedByField) {
  const struct {
    v1::GenerateRequest request;
    const char* param;
  } cases[] = {
      {GreedyRequest({}, 1), "prompt"},       {GreedyRequest({1, 72}, 1), "prompt[1]"},
      {GreedyRequest({1}, -4), "max_tokens"}, {GreedyRequest({1}, 0), "max_tokens"},
      {v1::GenerateRequest(), "prompt"},
  };
  for (const auto& one : cases) {
    const Answer answer = service_->Generate(one.request);
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument) << one.param;
    EXPECT_EQ(DetailOf(answer.status).param, one.param) << answer.status;
  }
}

TEST_F(RunningServiceTest, AnIdThatIsNoTokenIsNamedAsInJson) {
  v1::DetokenizeRequest request;
  request.add_ids(-1);
  grpc::ClientContext context;
  v1::DetokenizeResponse response;
  const absl::Status status = FromGrpc(service_->stub().Detokenize(&context, request, &response));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DetailOf(status).param, "tokens[0]");
  EXPECT_THAT(std::string(status.message()), HasSubstr("tokens[0]: token id -1 is outside 0 to"));
}

TEST_F(RunningServiceTest, StatusNamesTheStages) {
  const v1::StatusResponse status = service_->Status();
  EXPECT_TRUE(status.ready());
  ASSERT_EQ(status.stages_size(), 2);
  EXPECT_EQ(status.stages(0).pid(), service_->worker(0).pid());
  EXPECT_EQ(status.stages(1).pid(), service_->worker(1).pid());
  EXPECT_EQ(status.stages(0).layer_begin(), 0u);
  EXPECT_EQ(status.stages(0).layer_end(), status.stages(1).layer_begin());
  EXPECT_EQ(status.stages(1).layer_end(), 6u);
  EXPECT_EQ(status.stages(0).state(), "serving");
  EXPECT_EQ(status.context_length(), 4096u);
  EXPECT_EQ(status.slots(), 3u);
}

// A call of Generate that is opened by hand and never written to; `half_close` ends our side.
grpc::Status CallWithoutRequest(TestService& service, bool half_close) {
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  grpc::GenericStub stub(service.channel());
  const auto call = stub.PrepareCall(&context, "/warpline.v1.Inference/Generate", &queue);
  const auto wait = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  EXPECT_TRUE(wait());
  if (half_close) {
    call->WritesDone(nullptr);
    EXPECT_TRUE(wait());
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  EXPECT_TRUE(wait());
  return status;
}

TEST_F(RunningServiceTest, ACallWithoutAMessageIsRefused) {
  const grpc::Status status = CallWithoutRequest(*service_, /*half_close=*/true);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << status.error_message();
  EXPECT_TRUE(service_->Generate(GreedyRequest({1}, 1)).status.ok());
}

TEST_F(RunningServiceTest, AMessageAboveTheLimitIsResourceExhausted) {
  v1::GenerateRequest request = GreedyRequest({1}, 1);
  request.set_request_id(std::string((16 << 20) + 1, 'x'));
  EXPECT_EQ(service_->Generate(request).status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(service_->Generate(GreedyRequest({1}, 1)).status.ok());
}

TEST(ServiceFaultTest, AKilledWorkerEndsRequestsAtOnceAndComesBack) {
  TestService service(kModel, 3, {"-c", "8192"});
  ASSERT_TRUE(service.WaitUntilReady()) << service.Log();
  const std::vector<int32_t> before = service.Generate(GreedyRequest(kPrompt, 20)).ids;
  for (int victim = 0; victim < 3; ++victim) {
    steady_clock::time_point killed;
    const Answer answer =
        service.Generate(GreedyRequest(kPrompt, 8000), [&](const v1::GenerateResponse& response) {
          if (response.has_delta() && killed == steady_clock::time_point()) {
            killed = steady_clock::now();
            service.worker(victim).Signal(SIGKILL);
          }
          return true;
        });
    EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable) << answer.status;
    EXPECT_THAT(std::string(answer.status.message()), HasSubstr("stage"));
    EXPECT_LT(steady_clock::now() - killed, milliseconds(1000));
    const v1::StatusResponse status = service.Status();
    EXPECT_FALSE(status.ready());
    EXPECT_THAT(status.reason(), HasSubstr("stage " + std::to_string(victim) + ": down"));
    EXPECT_FALSE(status.stages(victim).has_pid());
    const Answer refused = service.Generate(GreedyRequest(kPrompt, 1));
    EXPECT_EQ(refused.status.code(), absl::StatusCode::kUnavailable);
    service.worker(victim).Wait();
    service.StartWorker(victim);
    ASSERT_TRUE(service.WaitUntilReady()) << service.Log();
    EXPECT_EQ(service.Generate(GreedyRequest(kPrompt, 20)).ids, before);
    EXPECT_EQ(
        service.Metric("warpline_stage_restarts_total{stage=\"" + std::to_string(victim) + "\"}"),
        1);
  }
  EXPECT_TRUE(service.AwaitMetric("warpline_pages_used", 0));
}

TEST(ServiceFaultTest, HealthByNameIsToldOnceForEachChange) {
  using grpc::health::v1::HealthCheckResponse;
  TestService service(kModel, 2);
  ASSERT_TRUE(service.WaitUntilReady()) << service.Log();
  const auto health = grpc::health::v1::Health::NewStub(service.channel());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(v1::Inference::service_full_name());
  const auto watch = health->Watch(&context, request);
  std::vector<HealthCheckResponse::ServingStatus> told;
  HealthCheckResponse response;
  while (watch->Read(&response)) {
    told.push_back(response.status());
    if (told.size() == 1) {
      service.worker(0).Signal(SIGKILL);
      service.worker(0).Wait();
      // A reason that changes and an epoch that begins are no change of health.
      ASSERT_TRUE(service.WaitUntil(false));
      service.StartWorker(0);
    } else if (response.status() == HealthCheckResponse::SERVING) {
      context.TryCancel();
    }
  }
  EXPECT_THAT(told,
              testing::ElementsAre(HealthCheckResponse::SERVING, HealthCheckResponse::NOT_SERVING,
                                   HealthCheckResponse::SERVING));
}

TEST(ServiceFaultTest, RunningRequestsEndBeforeAStopAndNewOnesAreRefused) {
  TestService service(kModel, 1, {"-c", "8192"});
  ASSERT_TRUE(service.WaitUntilReady()) << service.Log();
  bool signalled = false;
  const Answer answer =
      service.Generate(GreedyRequest(kPrompt, 400), [&](const v1::GenerateResponse& response) {
        if (response.has_delta() && !signalled) {
          signalled = true;
          service.coordinator().Signal(SIGTERM);
          EXPECT_TRUE(service.WaitUntil(false));
          EXPECT_EQ(service.Generate(GreedyRequest({1}, 1)).status.code(),
                    absl::StatusCode::kUnavailable);
        }
        return true;
      });
  EXPECT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(answer.ids.size(), 400u);
  EXPECT_EQ(service.coordinator().Wait(), 0) << service.Log();
  EXPECT_EQ(service.worker(0).Wait(), 0);
}

TEST(ServiceFaultTest, ADrainThatTakesTooLongEndsRequestsWithAnError) {
  TestService service(kModel, 1, {"-c", "1000000", "--parallel", "1", "--drain-seconds", "0"});
  ASSERT_TRUE(service.WaitUntilReady()) << service.Log();
  bool signalled = false;
  const Answer answer =
      service.Generate(GreedyRequest(kPrompt, 900000), [&](const v1::GenerateResponse& response) {
        if (response.has_delta() && !signalled) service.coordinator().Signal(SIGTERM);
        signalled |= response.has_delta();
        return true;
      });
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kUnavailable) << answer.status;
  EXPECT_EQ(service.coordinator().Wait(), 0) << service.Log();
}

TEST(ServiceFaultTest, CallsWithoutADeadlineHaveTheServers) {
  TestService service(kModel, 1, {"-c", "1000000", "--parallel", "1", "--request-timeout", "1"});
  ASSERT_TRUE(service.WaitUntilReady()) << service.Log();
  const grpc::Status never = CallWithoutRequest(service, /*half_close=*/false);
  EXPECT_EQ(never.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << never.error_message();
  grpc::ClientContext running;
  const auto runs = service.stub().Generate(&running, GreedyRequest(kPrompt, 900000));
  v1::GenerateResponse response;
  ASSERT_TRUE(runs->Read(&response));
  grpc::ClientContext waiting;  // In the queue, since one runs at a time.
  const auto waits = service.stub().Generate(&waiting, GreedyRequest(kPrompt, 900000));
  for (const auto& call : {runs.get(), waits.get()}) {
    while (call->Read(&response)) continue;
    EXPECT_EQ(call->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(service.AwaitMetric("warpline_slots_used", 0));
  EXPECT_TRUE(service.AwaitMetric("warpline_queue_length", 0));
  grpc::ClientContext own;  // A client's own deadline holds, though it is longer.
  own.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  const auto longer = service.stub().Generate(&own, GreedyRequest(kPrompt, 900000));
  const steady_clock::time_point begin = steady_clock::now();
  while (longer->Read(&response) && steady_clock::now() < begin + milliseconds(1500)) continue;
  EXPECT_GE(steady_clock::now(), begin + milliseconds(1500));
  own.TryCancel();
  EXPECT_EQ(longer->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST(ServiceFaultTest, BeyondTheQueueRequestsAreRefused) {
  TestService service(kModel, 1, {"-c", "100000", "--parallel", "1", "--queue", "64"});
  ASSERT_TRUE(service.WaitUntilReady()) << service.Log();
  // One runs, 64 wait, the rest is refused: none of them ends by itself.
  constexpr int kCalls = 70;
  struct Call {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader;
  };
  std::deque<Call> calls(kCalls);  // A context does not move.
  int refused = 0;
  for (Call& call : calls) {
    call.reader = service.stub().Generate(&call.context, GreedyRequest(kPrompt, 90000));
    v1::GenerateResponse response;
    if (call.reader->Read(&response)) continue;
    EXPECT_EQ(call.reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
    call.reader.reset();
    ++refused;
  }
  EXPECT_EQ(refused, kCalls - 65);
  EXPECT_EQ(service.Metric("warpline_queue_length"), 64);
  for (Call& call : calls) call.context.TryCancel();
  EXPECT_TRUE(service.AwaitMetric("warpline_queue_length", 0));
  EXPECT_TRUE(service.AwaitMetric("warpline_slots_used", 0));
  for (Call& call : calls) {
    if (call.reader == nullptr) continue;
    v1::GenerateResponse response;
    while (call.reader->Read(&response)) continue;
    EXPECT_EQ(call.reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
}

TEST(ServiceFaultTest, AClientThatDoesNotReadLosesItsStreamAndNobodyElse) {
  TestService service(kModel, 1, {"-c", "1000000", "--parallel", "2"});
  ASSERT_TRUE(service.WaitUntilReady()) << service.Log();
  grpc::ClientContext context;
  const auto stub = service.NarrowStub();
  const auto reader = stub->Generate(&context, GreedyRequest(kPrompt, 900000));
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));
  for (int round = 0; round < 400 && service.Metric("warpline_slow_clients_total") == 0; ++round) {
    EXPECT_TRUE(service.Generate(GreedyRequest(kPrompt, 100)).status.ok());
  }
  ASSERT_EQ(service.Metric("warpline_slow_clients_total"), 1);
  EXPECT_TRUE(service.AwaitMetric("warpline_slots_used", 0));
  while (reader->Read(&response)) continue;
  EXPECT_FALSE(reader->Finish().ok());
}

}  // namespace
}  // namespace warpline
