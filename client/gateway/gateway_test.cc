// The routes of a gateway before a scripted coordinator.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_detail.h"
#include "client/gateway/test_service.h"

namespace warpline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr char kCompletions[] = "/v1/completions";
constexpr char kChat[] = "/v1/chat/completions";
constexpr char kHello[] = R"({"messages":[{"role":"user","content":"hello"}],"max_tokens":2})";
constexpr char kHelloStream[] =
    R"({"messages":[{"role":"user","content":"hello"}],"max_tokens":2,"stream":true})";

TEST(GatewayTest, CompletesAndKeepsTheConnection) {
  TestService service;
  RawClient client = service.Connect();
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(client.Send(
        Post(kCompletions, R"({"prompt":[1,2],"max_tokens":3,"return_token_ids":true})")));
    const RawAnswer answer = client.Read();
    ASSERT_EQ(answer.status, 200) << answer.head << answer.body;
    EXPECT_TRUE(answer.HasField("connection: keep-alive"));
    EXPECT_THAT(answer.body, HasSubstr(R"("text":" t100 t101 t102")"));
    EXPECT_THAT(answer.body, HasSubstr(R"("token_ids":[100,101,102])"));
    EXPECT_THAT(answer.body, HasSubstr(R"("finish_reason":"length","seed":77)"));
    EXPECT_THAT(answer.body, HasSubstr(R"("total_tokens":8)"));
  }
  EXPECT_THAT(service.coordinator.requests().at(0).tokens().ids(), ElementsAre(1, 2));
}

TEST(GatewayTest, StreamsChat) {
  TestService service;
  const RawAnswer answer = service.Ask(Post(kChat, kHelloStream));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_TRUE(answer.complete);
  EXPECT_TRUE(answer.HasField("content-type: text/event-stream"));
  EXPECT_THAT(answer.body, AllOf(testing::StartsWith("data: {"), HasSubstr(R"("content":" t100")"),
                                 testing::EndsWith("data: [DONE]\n\n")));
}

TEST(GatewayTest, ForwardsEachTokenAtOnce) {
  Tally received;
  TestService service;
  // The next token is made only when the client has the last one.
  service.coordinator.SetScript([&received](const v1::GenerateRequest&,
                                            grpc::ServerContext& context,
                                            FakeCoordinator::Writer& writer) {
    for (int index = 0; index < 50 && !context.IsCancelled(); ++index) {
      FakeCoordinator::SendToken(writer, 100 + index);
      if (!received.Await(index + 1)) break;
    }
    FakeCoordinator::SendFinished(writer, v1::FINISH_REASON_LENGTH, 1, 50);
    return grpc::Status::OK;
  });
  RawClient client = service.Connect();
  client.Send(Post(kChat, kHelloStream));
  for (int index = 0; index < 50; ++index) {
    std::string event;
    ASSERT_TRUE(client.ReadUntil(absl::StrCat(" t", 100 + index, "\""), event));
    received.Add();
  }
  std::string end;
  EXPECT_TRUE(client.ReadUntil("data: [DONE]", end));
}

TEST(GatewayTest, AnswersABatchInOrder) {
  TestService service;
  service.coordinator.SetScript([](const v1::GenerateRequest& request, grpc::ServerContext&,
                                   FakeCoordinator::Writer& writer) {
    FakeCoordinator::SendToken(writer, 1, request.text() + "!");
    FakeCoordinator::SendFinished(writer, v1::FINISH_REASON_STOP, 1, 1);
    return grpc::Status::OK;
  });
  const RawAnswer answer = service.Ask(Post(kCompletions, R"({"prompt":["a","b","c"]})"));
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_LT(answer.body.find("a!"), answer.body.find("b!"));
  EXPECT_LT(answer.body.find("b!"), answer.body.find("c!"));
}

TEST(GatewayTest, MapsErrorsBeforeTheFirstToken) {
  TestService service;
  service.coordinator.SetScript(
      [](const v1::GenerateRequest&, grpc::ServerContext&, FakeCoordinator::Writer& writer) {
        FakeCoordinator::SendStarted(writer, 3);
        return ToGrpc(
            InvalidField("prompt", "9000 tokens do not fit into 8192", "context_length_exceeded"));
      });
  for (const char* body : {kHello, kHelloStream}) {
    const RawAnswer answer = service.Ask(Post(kChat, body));
    EXPECT_EQ(answer.status, 400);
    EXPECT_THAT(answer.body, AllOf(HasSubstr(R"("code":"context_length_exceeded")"),
                                   HasSubstr(R"("param":"prompt")"), HasSubstr("9000")));
  }
  service.coordinator.SetScript(
      [](const v1::GenerateRequest&, grpc::ServerContext&, FakeCoordinator::Writer&) {
        return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "the queue is full");
      });
  const RawAnswer full = service.Ask(Post(kChat, kHelloStream));
  EXPECT_EQ(full.status, 429);
  EXPECT_TRUE(full.HasField("retry-after: "));
  service.coordinator.SetScript(
      [](const v1::GenerateRequest&, grpc::ServerContext&, FakeCoordinator::Writer&) {
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "stage 1 is down: Socket closed");
      });
  const RawAnswer down = service.Ask(Post(kChat, kHello));
  EXPECT_EQ(down.status, 503);
  EXPECT_TRUE(down.HasField("retry-after: "));
  EXPECT_THAT(down.body, HasSubstr("stage 1 is down"));
}

TEST(GatewayTest, ErrorInsideAStreamIsItsLastEvent) {
  TestService service;
  service.coordinator.SetScript(
      [](const v1::GenerateRequest&, grpc::ServerContext&, FakeCoordinator::Writer& writer) {
        FakeCoordinator::SendToken(writer, 1);
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "stage 1 is down");
      });
  RawClient client = service.Connect();
  client.Send(Post(kChat, kHelloStream));
  const RawAnswer answer = client.Read();
  EXPECT_EQ(answer.status, 200);
  EXPECT_THAT(answer.body, AllOf(HasSubstr(" t1"), HasSubstr(R"(data: {"error":{"message":)"),
                                 HasSubstr("stage 1 is down"), Not(HasSubstr("[DONE]"))));
  EXPECT_TRUE(client.AtEnd());
}

TEST(GatewayTest, AnAnswerThatEndsEarlyIsAnError) {
  TestService service;
  service.coordinator.SetScript(
      [](const v1::GenerateRequest&, grpc::ServerContext&, FakeCoordinator::Writer& writer) {
        FakeCoordinator::SendToken(writer, 1);
        return grpc::Status::OK;
      });
  EXPECT_EQ(service.Ask(Post(kChat, kHello)).status, 500);
  EXPECT_THAT(service.Ask(Post(kChat, kHelloStream)).body,
              AllOf(HasSubstr("\"error\""), Not(HasSubstr("[DONE]"))));
}

TEST(GatewayTest, SaysWhatIsReady) {
  TestService service;
  EXPECT_EQ(service.Ask(Get("/ready")).status, 200);
  EXPECT_EQ(service.Ask(Get("/health")).body, "{\"status\":\"ok\"}");
  v1::StatusResponse status;
  status.set_reason("stage 2: down (killed)");
  service.coordinator.SetStatus(status);
  const RawAnswer answer = service.Ask(Get("/ready"));
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, AllOf(HasSubstr("\"error\""), HasSubstr("stage 2: down (killed)")));
}

TEST(GatewayTest, SurvivesACoordinatorThatComesAndGoes) {
  TestService service;
  ASSERT_EQ(service.Ask(Get("/ready")).status, 200);
  service.coordinator.Stop();
  const RawAnswer ready = service.Ask(Get("/ready"));
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body,
              AllOf(HasSubstr("coordinator"), Not(HasSubstr("unix:")), Not(HasSubstr("/tmp"))));
  EXPECT_EQ(service.Ask(Get("/health")).status, 200);
  const RawAnswer answer = service.Ask(Post(kChat, kHello));
  EXPECT_EQ(answer.status, 503);
  EXPECT_THAT(answer.body, Not(HasSubstr("unix:")));
  EXPECT_EQ(service.Ask(Get("/metrics")).status, 200);
  service.coordinator.Start();
  const SteadyTime begin = Now();
  while (service.Ask(Get("/ready")).status != 200 && SecondsSince(begin) < 10) {
  }
  EXPECT_EQ(service.Ask(Post(kChat, kHello)).status, 200);
}

TEST(GatewayTest, StreamsEndWithAnErrorWhenTheCoordinatorDies) {
  TestService service;
  service.coordinator.SetScript([](const v1::GenerateRequest&, grpc::ServerContext& context,
                                   FakeCoordinator::Writer& writer) {
    FakeCoordinator::SendToken(writer, 1);
    return FakeCoordinator::HangUntilCancelled(context);
  });
  RawClient client = service.Connect();
  client.Send(Post(kChat, kHelloStream));
  std::string begin;
  ASSERT_TRUE(client.ReadUntil(" t1", begin));
  service.coordinator.Stop();
  std::string rest;
  client.ReadUntil("\"error\"", rest);
  EXPECT_THAT(rest, AllOf(HasSubstr("data: {\"error\""), Not(HasSubstr("[DONE]"))));
}

TEST(GatewayTest, ListsModels) {
  TestService service;
  EXPECT_THAT(service.Ask(Get("/v1/models")).body,
              AllOf(HasSubstr(R"("object":"list")"), HasSubstr(R"("id":"tiny")")));
  EXPECT_EQ(service.Ask(Get("/v1/models/tiny")).status, 200);
  EXPECT_EQ(service.Ask(Get("/v1/models/other")).status, 404);
  EXPECT_EQ(service.Ask(Get("/v1/models/..%2f..%2fetc%2fpasswd")).status, 404);
}

TEST(GatewayTest, ChecksTheModelsNameOnlyWhenStrict) {
  TestService lax({.alias = "mine"});
  EXPECT_THAT(lax.Ask(Post(kCompletions, R"({"model":"../../etc","prompt":"x"})")).body,
              HasSubstr(R"("model":"mine")"));
  TestService strict({.alias = "mine", .strict_model = true});
  EXPECT_EQ(strict.Ask(Post(kCompletions, R"({"model":"mine","prompt":"x"})")).status, 200);
  EXPECT_EQ(strict.Ask(Post(kCompletions, R"({"prompt":"x"})")).status, 200);
  const RawAnswer other = strict.Ask(Post(kCompletions, R"({"model":"other","prompt":"x"})"));
  EXPECT_EQ(other.status, 404);
  EXPECT_THAT(other.body, HasSubstr("model_not_found"));
}

TEST(GatewayTest, TokenizesBothWays) {
  TestService service;
  EXPECT_EQ(service.Ask(Post("/tokenize", R"({"content":"hi","add_special":true})")).body,
            R"({"tokens":[7,8]})");
  EXPECT_EQ(service.coordinator.tokenize_request().text(), "hi");
  EXPECT_TRUE(service.coordinator.tokenize_request().add_special());
  EXPECT_TRUE(service.coordinator.tokenize_request().parse_special());
  EXPECT_EQ(service.Ask(Post("/tokenize", R"({"content":"hi","with_pieces":true})")).body,
            R"({"tokens":[{"id":7,"piece":"hi"},{"id":8,"piece":[226,130]}]})");
  EXPECT_EQ(service.Ask(Post("/tokenize", R"({"content":5})")).status, 400);
  EXPECT_EQ(service.Ask(Post("/tokenize", "{}")).status, 400);
  EXPECT_EQ(service.Ask(Post("/detokenize", R"({"tokens":[104,105]})")).body,
            R"({"content":"hi"})");
  EXPECT_EQ(service.Ask(Post("/detokenize", R"({"tokens":[]})")).body, R"({"content":""})");
  EXPECT_EQ(service.Ask(Post("/detokenize", R"({"tokens":[1.5]})")).status, 400);
}

TEST(GatewayTest, ServesMetricsOfBoth) {
  TestService service;
  service.Ask(Post(kChat, kHelloStream));
  const std::string text = service.Ask(Get("/metrics")).body;
  EXPECT_THAT(text, HasSubstr("warpline_requests_total 3\n"));
  EXPECT_THAT(text, HasSubstr("warpline_gateway_http_requests_total{route=\"/v1/chat/completions\","
                              "status=\"200\"} 1"));
  EXPECT_THAT(text, HasSubstr("warpline_gateway_time_to_first_token_seconds_count 1"));
  EXPECT_THAT(text, HasSubstr("warpline_gateway_inter_token_seconds_count 1"));
}

// In the queue, in the prompt and in the middle of a stream; closed properly and by a reset.
TEST(GatewayTest, CancelsWhenTheClientLeaves) {
  TestService service;
  service.coordinator.SetScript([](const v1::GenerateRequest& request, grpc::ServerContext& context,
                                   FakeCoordinator::Writer& writer) {
    if (request.max_tokens() > 1) FakeCoordinator::SendToken(writer, 1);
    return FakeCoordinator::HangUntilCancelled(context);
  });
  int expected = 0;
  for (const bool reset : {false, true}) {
    for (const char* extra : {R"("max_tokens":1)", R"("max_tokens":1,"stream":true)",
                              R"("max_tokens":2,"stream":true)"}) {
      RawClient client = service.Connect();
      client.Send(Post(kCompletions, absl::StrCat(R"({"prompt":"x",)", extra, "}")));
      ASSERT_TRUE(service.coordinator.WaitForBegun(++expected));
      if (absl::StrContains(extra, "\"max_tokens\":2")) {
        std::string begin;
        ASSERT_TRUE(client.ReadUntil(" t1", begin));
      }
      reset ? client.Reset() : client.Close();
      EXPECT_TRUE(service.coordinator.WaitForCancelled(expected)) << extra << reset;
    }
  }
}

TEST(GatewayTest, OneFailedPromptCancelsTheOthers) {
  TestService service;
  service.coordinator.SetScript([](const v1::GenerateRequest& request, grpc::ServerContext& context,
                                   FakeCoordinator::Writer&) {
    if (request.text() == "bad") return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no");
    return FakeCoordinator::HangUntilCancelled(context);
  });
  EXPECT_EQ(service.Ask(Post(kCompletions, R"({"prompt":["a","bad","b"]})")).status, 400);
  EXPECT_TRUE(service.coordinator.WaitForCancelled(2));
}

TEST(GatewayTest, SendsCommentsWhileNothingHappens) {
  Tally go;
  TestService service({.comment_interval = Milliseconds(30)});
  service.coordinator.SetScript(
      [&go](const v1::GenerateRequest&, grpc::ServerContext&, FakeCoordinator::Writer& writer) {
        go.Await(1);
        FakeCoordinator::SendToken(writer, 1);
        FakeCoordinator::SendFinished(writer, v1::FINISH_REASON_STOP, 1, 1);
        return grpc::Status::OK;
      });
  RawClient client = service.Connect();
  client.Send(Post(kChat, kHelloStream));
  std::string begin;
  ASSERT_TRUE(client.ReadUntil(": keep-alive", begin));
  ASSERT_TRUE(client.ReadUntil(": keep-alive", begin));
  go.Add();
  ASSERT_TRUE(client.ReadUntil("[DONE]", begin));
  EXPECT_THAT(begin, HasSubstr(" t1"));
}

TEST(GatewayTest, DropsAClientThatDoesNotRead) {
  TestService service({.stream_buffer_bytes = 64 << 10});
  service.coordinator.SetScript([](const v1::GenerateRequest&, grpc::ServerContext& context,
                                   FakeCoordinator::Writer& writer) {
    const std::string text(4096, 'x');
    while (FakeCoordinator::SendToken(writer, 1, text)) {
    }
    return FakeCoordinator::HangUntilCancelled(context);
  });
  RawClient client(service.port(), /*receive_buffer_bytes=*/4096);
  client.Send(Post(kChat, kHelloStream));
  EXPECT_TRUE(service.coordinator.WaitForCancelled(1));
  EXPECT_EQ(service.Metric("warpline_gateway_slow_clients_total"), 1);
}

TEST(GatewayTest, DrainsRunningRequestsAndRefusesNewOnes) {
  Tally go;
  TestService service({.drain_seconds = 30});
  service.coordinator.SetScript(
      [&go](const v1::GenerateRequest&, grpc::ServerContext&, FakeCoordinator::Writer& writer) {
        FakeCoordinator::SendToken(writer, 1);
        go.Await(1);
        FakeCoordinator::SendFinished(writer, v1::FINISH_REASON_STOP, 1, 1);
        return grpc::Status::OK;
      });
  RawClient idle = service.Connect();
  idle.Send(Get("/health"));
  ASSERT_EQ(idle.Read().status, 200);
  RawClient running = service.Connect();
  running.Send(Post(kChat, kHelloStream));
  std::string stream;
  ASSERT_TRUE(running.ReadUntil(" t1", stream));
  service.gateway->Drain();
  EXPECT_TRUE(idle.AtEnd());
  const RawAnswer refused = service.Ask(Post(kChat, kHello));
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.HasField("connection: close"));
  EXPECT_TRUE(refused.HasField("retry-after: "));
  EXPECT_EQ(service.Ask(Get("/ready")).status, 503);
  go.Add();
  EXPECT_TRUE(running.ReadUntil("[DONE]", stream));
}

TEST(GatewayTest, EndsRequestsThatOutliveTheDrainLimit) {
  auto service = std::make_unique<TestService>(GatewayConfig{.drain_seconds = 0});
  service->coordinator.SetScript([](const v1::GenerateRequest&, grpc::ServerContext& context,
                                    FakeCoordinator::Writer& writer) {
    FakeCoordinator::SendToken(writer, 1);
    return FakeCoordinator::HangUntilCancelled(context);
  });
  RawClient streaming = service->Connect();
  streaming.Send(Post(kChat, kHelloStream));
  std::string stream;
  ASSERT_TRUE(streaming.ReadUntil(" t1", stream));
  RawClient waiting = service->Connect();
  waiting.Send(Post(kChat, kHello));
  ASSERT_TRUE(service->coordinator.WaitForBegun(2));
  service->gateway->Drain();
  EXPECT_TRUE(streaming.ReadUntil("shutting down", stream));
  EXPECT_THAT(stream, HasSubstr("data: {\"error\""));
  EXPECT_EQ(waiting.Read().status, 503);
  service.reset();  // Run has returned.
}

TEST(GatewayTest, SaysWhichPortIsInUse) {
  TestService service;
  GatewayConfig second{.coordinator = service.coordinator.address(), .port = service.port()};
  const auto created = Gateway::Create(second);
  ASSERT_FALSE(created.ok());
  EXPECT_THAT(
      std::string(created.status().message()),
      AllOf(HasSubstr("127.0.0.1"), HasSubstr(absl::StrCat(service.port())), HasSubstr("in use")));
}

}  // namespace
}  // namespace warpline
