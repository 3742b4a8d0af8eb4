// What a gateway answers to clients that are broken, slow, hostile or gone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/gateway/http_head.h"
#include "client/gateway/test_service.h"

namespace warpline {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr char kPath[] = "/v1/completions";
constexpr char kBody[] = R"({"prompt":"x","max_tokens":1})";

// The answer has this status and an error object, and the connection ends after it.
void ExpectRefusedAndClosed(const TestService& service, absl::string_view bytes, int status,
                            absl::string_view what) {
  RawClient client = service.Connect();
  client.Send(bytes);
  const RawAnswer answer = client.Read();
  EXPECT_EQ(answer.status, status) << what << ": " << answer.head << answer.body;
  EXPECT_TRUE(answer.complete) << what;
  EXPECT_THAT(answer.body, HasSubstr(R"({"error":{"message":")")) << what;
  EXPECT_TRUE(answer.HasField("connection: close")) << what;
  EXPECT_TRUE(client.AtEnd()) << what;
}

class HttpRobustnessTest : public testing::Test {
 protected:
  // Whatever a test did to it, the gateway goes on.
  void TearDown() override { EXPECT_EQ(service_.Ask(Get("/health")).status, 200); }

  TestService service_{GatewayConfig{.max_body_bytes = 1 << 20,
                                     .header_timeout = Milliseconds(300),
                                     .body_timeout = Milliseconds(300)}};
};

TEST_F(HttpRobustnessTest, RefusesWhatIsNoHttp) {
  ExpectRefusedAndClosed(service_, "\x01\x02\x03 garbage\r\n\r\n", 400, "garbage");
  ExpectRefusedAndClosed(service_, "\x16\x03\x01\x02", 400, "TLS");
  ExpectRefusedAndClosed(service_, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "HTTP/2");
  ExpectRefusedAndClosed(service_, "GET /\r\n", 400, "HTTP/0.9");
  ExpectRefusedAndClosed(service_, "get /health HTTP/1.1\r\n\r\n", 400, "lower case");
}

TEST_F(HttpRobustnessTest, BoundsTheHeader) {
  const std::string line = "GET /health HTTP/1.1\r\n";
  ExpectRefusedAndClosed(service_, absl::StrCat(line, "A: ", std::string(1 << 20, 'x')), 431,
                         "1 MiB field");
  std::string many = line;
  for (int count = 0; count < 10000; ++count) many += "a: b\r\n";
  ExpectRefusedAndClosed(service_, many + "\r\n", 431, "10,000 fields");
  ExpectRefusedAndClosed(service_, absl::StrCat("GET /", std::string(8192, 'x'), " HTTP/1.1\r\n"),
                         414, "long target");
}

TEST_F(HttpRobustnessTest, EndsASlowHeaderAtItsDeadline) {
  RawClient silent = service_.Connect();
  RawClient slow = service_.Connect();
  slow.Send("GET /health HTTP/1.1\r\nA: b");
  const SteadyTime begin = Now();
  EXPECT_EQ(service_.Ask(Get("/health")).status, 200);  // Others do not wait.
  EXPECT_EQ(slow.Read().status, 408);
  EXPECT_TRUE(slow.AtEnd());
  EXPECT_TRUE(silent.AtEnd());
  EXPECT_LT(SecondsSince(begin), 5);
}

TEST_F(HttpRobustnessTest, RefusesContradictoryLengths) {
  const std::string head = "POST /v1/completions HTTP/1.1\r\n";
  for (const char* fields :
       {"Content-Length: -1\r\n", "Content-Length: 12abc\r\n",
        "Content-Length: 5\r\nContent-Length: 6\r\n", "Content-Length: 5, 5\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Transfer-Encoding: gzip, chunked\r\n", "Content-Length: 99999999999999999999999\r\n"}) {
    ExpectRefusedAndClosed(service_, absl::StrCat(head, fields, "\r\n"), 400, fields);
  }
  ExpectRefusedAndClosed(service_, head + "Content-Length: 1000000000\r\n\r\n", 413, "1e9");
}

TEST_F(HttpRobustnessTest, WaitsForABodyOnlySoLong) {
  const std::string part = "POST /v1/completions HTTP/1.1\r\nContent-Length: 50\r\n\r\n{";
  ExpectRefusedAndClosed(service_, part, 408, "short body");
  ExpectRefusedAndClosed(
      service_, "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
      408, "no last chunk");
  RawClient client = service_.Connect();
  client.Send(part);
  client.CloseSending();
  EXPECT_TRUE(client.AtEnd());  // Half a request is none.
  EXPECT_TRUE(service_.coordinator.requests().empty());
}

TEST_F(HttpRobustnessTest, TakesBytesBehindABodyAsTheNextRequest) {
  RawClient client = service_.Connect();
  client.Send(Post(kPath, kBody) + "\x07garbage");
  EXPECT_EQ(client.Read().status, 200);
  EXPECT_EQ(client.Read().status, 400);
  EXPECT_TRUE(client.AtEnd());
}

TEST_F(HttpRobustnessTest, ReadsChunks) {
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string body = kBody;
  std::string chunks;
  for (const char c : body) chunks += absl::StrCat("1;name=value\r\n", std::string(1, c), "\r\n");
  EXPECT_EQ(service_.Ask(absl::StrCat(head, chunks, "0\r\nTrailer: x\r\n\r\n")).status, 200);
  ExpectRefusedAndClosed(service_, head + "ffffffffffffffff\r\n", 413, "huge chunk");
  ExpectRefusedAndClosed(service_, head + "ffffffffffffffffff\r\n", 400, "overflowing size");
  ExpectRefusedAndClosed(service_, head + "-1\r\n", 400, "negative");
  ExpectRefusedAndClosed(service_, absl::StrCat(head, "1;x=", std::string(1 << 20, 'x')), 400,
                         "long extension");
}

TEST_F(HttpRobustnessTest, BoundsChunkedBodiesOfManyChunks) {
  std::string bytes = "POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (int count = 0; count < (1 << 20) + 10; ++count) bytes += "1\r\n \r\n";
  ExpectRefusedAndClosed(service_, bytes, 413, "chunks beyond the limit");
}

TEST_F(HttpRobustnessTest, AnswersExpectations) {
  const std::string head = absl::StrCat("POST ", kPath, " HTTP/1.1\r\nHost: x\r\nContent-Length: ");
  RawClient client = service_.Connect();
  client.Send(absl::StrCat(head, sizeof(kBody) - 1, "\r\nExpect: 100-continue\r\n\r\n"));
  EXPECT_EQ(client.Read().status, 100);
  client.Send(kBody);
  EXPECT_EQ(client.Read().status, 200);
  ExpectRefusedAndClosed(service_, head + "9999999\r\nExpect: 100-continue\r\n\r\n", 413, "413");
  ExpectRefusedAndClosed(service_, head + "5\r\nExpect: a-miracle\r\n\r\n", 417, "417");
  TestService locked(GatewayConfig{.api_keys = {"key"}});
  ExpectRefusedAndClosed(locked, head + "5\r\nExpect: 100-continue\r\n\r\n", 401, "401");
}

TEST_F(HttpRobustnessTest, AnswersPipelinedRequestsInOrder) {
  RawClient client = service_.Connect();
  client.Send(absl::StrCat(Post(kPath, kBody), Get("/health"), Get("/nothing")));
  EXPECT_THAT(client.Read().body, HasSubstr("text_completion"));
  EXPECT_EQ(client.Read().body, "{\"status\":\"ok\"}");
  EXPECT_EQ(client.Read().status, 404);
  for (int round = 0; round < 1000; ++round) {
    client.Send(Get("/health"));
    ASSERT_EQ(client.Read().status, 200) << round;
  }
}

TEST_F(HttpRobustnessTest, ClosesWhenAskedTo) {
  RawClient client = service_.Connect();
  client.Send(Get("/health", "Connection: close\r\n"));
  EXPECT_TRUE(client.Read().HasField("connection: close"));
  EXPECT_TRUE(client.AtEnd());
  RawClient old = service_.Connect();
  old.Send("GET /health HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.Read().status, 200);
  EXPECT_TRUE(old.AtEnd());
  RawClient stream = service_.Connect();
  const std::string body = R"({"prompt":"x","max_tokens":1,"stream":true})";
  stream.Send(
      absl::StrCat("POST ", kPath, " HTTP/1.0\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  const RawAnswer answer = stream.Read();
  EXPECT_FALSE(answer.HasField("chunked"));
  EXPECT_THAT(answer.body, testing::EndsWith("}\n\ndata: [DONE]\n\n"));
  EXPECT_THAT(answer.body, testing::StartsWith("data: {"));
}

TEST_F(HttpRobustnessTest, KnowsItsRoutesAndMethods) {
  const RawAnswer wrong = service_.Ask(Get(kPath));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_TRUE(wrong.HasField("allow: post, options"));
  EXPECT_THAT(wrong.body, HasSubstr("\"error\""));
  EXPECT_EQ(service_.Ask(Post("/health", "{}")).status, 405);
  EXPECT_EQ(service_.Ask("BREW /health HTTP/1.1\r\n\r\n").status, 405);
  for (const char* path : {"/", "/nothing", "/v1/../health", "/health%00", "/%2e%2e/etc/passwd",
                           "/v1/models/", "/health/"}) {
    EXPECT_EQ(service_.Ask(Get(path)).status, 404) << path;
  }
  EXPECT_EQ(service_.Ask(Get("/health?x=1")).status, 200);
  EXPECT_EQ(service_.Ask(Get("http://host/health")).status, 200);
}

TEST_F(HttpRobustnessTest, AnswersHeadWithoutABody) {
  RawClient client = service_.Connect();
  client.Send("HEAD /health HTTP/1.1\r\n\r\n");
  const RawAnswer answer = client.Read(/*head_only=*/true);
  EXPECT_EQ(answer.status, 200);
  EXPECT_TRUE(answer.HasField("content-length: 15"));
  client.Send(absl::StrCat("HEAD ", kPath, " HTTP/1.1\r\n\r\n"));
  EXPECT_EQ(client.Read(/*head_only=*/true).status, 405);
  client.Send(Get("/health"));
  EXPECT_EQ(client.Read().body, "{\"status\":\"ok\"}");
}

TEST_F(HttpRobustnessTest, AnswersOptionsByPolicy) {
  const std::string request =
      absl::StrCat("OPTIONS ", kPath, " HTTP/1.1\r\nOrigin: http://a\r\n\r\n");
  const RawAnswer closed = service_.Ask(request);
  EXPECT_EQ(closed.status, 204);
  EXPECT_FALSE(closed.HasField("access-control"));
  TestService open(GatewayConfig{.api_keys = {"key"}, .cors_origin = "http://a"});
  const RawAnswer allowed = open.Ask(request);
  EXPECT_TRUE(allowed.HasField("access-control-allow-origin: http://a\r\n"));
  EXPECT_TRUE(allowed.HasField("access-control-allow-methods: post, options"));
}

TEST_F(HttpRobustnessTest, TakesOnlyPlainJson) {
  const auto ask = [this](absl::string_view fields) {
    return service_
        .Ask(absl::StrCat("POST ", kPath, " HTTP/1.1\r\n", fields,
                          "Content-Length: ", sizeof(kBody) - 1, "\r\n\r\n", kBody))
        .status;
  };
  EXPECT_EQ(ask(""), 200);
  EXPECT_EQ(ask("Content-Type: application/json\r\n"), 200);
  EXPECT_EQ(ask("Content-Type: Application/JSON; charset=UTF-8\r\n"), 200);
  EXPECT_EQ(ask("Content-Type: text/plain\r\n"), 415);
  EXPECT_EQ(ask("Content-Type: application/json; charset=utf-16\r\n"), 415);
  EXPECT_EQ(ask("Content-Encoding: gzip\r\n"), 415);
  EXPECT_EQ(ask("Content-Encoding: identity\r\n"), 415);
}

TEST_F(HttpRobustnessTest, AsksForAKey) {
  TestService locked(GatewayConfig{.api_keys = {"first", "second"}});
  const auto ask = [&locked](absl::string_view fields) {
    return locked.Ask(Post(kPath, kBody, fields)).status;
  };
  EXPECT_EQ(ask("Authorization: Bearer first\r\n"), 200);
  EXPECT_EQ(ask("authorization: bearer second\r\n"), 200);
  EXPECT_EQ(ask("X-Api-Key: second\r\n"), 200);
  EXPECT_EQ(ask(""), 401);
  EXPECT_EQ(ask("Authorization: Bearer firs\r\n"), 401);
  EXPECT_EQ(ask("Authorization: Bearer \r\n"), 401);
  EXPECT_EQ(ask("Authorization: Basic first\r\n"), 401);
  EXPECT_EQ(ask("Authorization: Bearer f\xC3\xA9\r\n"), 401);
  EXPECT_EQ(ask("Authorization: Bearer first\r\nAuthorization: Bearer first\r\n"), 400);
  EXPECT_EQ(ask("X-Api-Key: first\r\nX-Api-Key: first\r\n"), 400);
  EXPECT_EQ(ask(absl::StrCat("Authorization: Bearer ", std::string(1 << 20, 'x'), "\r\n")), 431);
  EXPECT_EQ(locked.Ask(Get("/v1/status")).status, 401);
  EXPECT_EQ(locked.Ask(Get("/health")).status, 200);
  EXPECT_EQ(locked.Ask(Get("/ready")).status, 200);
}

TEST_F(HttpRobustnessTest, RefusesLineEndsInFields) {
  ExpectRefusedAndClosed(service_, "GET /health HTTP/1.1\r\nA: b\rc\r\n\r\n", 400, "CR");
  ExpectRefusedAndClosed(service_, "GET /health HTTP/1.1\r\nA: b\r\n folded\r\n\r\n", 400,
                         "folded");
  EXPECT_EQ(service_.Ask(Post(kPath, R"({"prompt":"x","user":"a\r\nb"})")).status, 400);
}

TEST_F(HttpRobustnessTest, AnswersAClientThatHasClosedItsSide) {
  for (const char* body : {kBody, R"({"prompt":"x","max_tokens":1,"stream":true})"}) {
    RawClient client = service_.Connect();
    client.Send(Post(kPath, body));
    client.CloseSending();
    const RawAnswer answer = client.Read();
    EXPECT_EQ(answer.status, 200);
    EXPECT_TRUE(answer.complete);
    EXPECT_THAT(answer.body, HasSubstr(" t100"));
    EXPECT_TRUE(client.AtEnd());
  }
  // Also when the answer takes longer, or is an error.
  Tally seen;
  service_.coordinator.SetScript(
      [&seen](const v1::GenerateRequest&, grpc::ServerContext&, FakeCoordinator::Writer&) {
        seen.Await(1);
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "stage 1 is down");
      });
  RawClient client = service_.Connect();
  client.Send(Post(kPath, kBody));
  client.CloseSending();
  // The gateway has seen it: it sends what every answer begins with, to find out who is there.
  EXPECT_TRUE(client.AwaitBytes());
  seen.Add();
  EXPECT_EQ(client.Read().status, 503);
}

TEST_F(HttpRobustnessTest, SurvivesManyResets) {
  service_.coordinator.SetScript([](const v1::GenerateRequest&, grpc::ServerContext& context,
                                    FakeCoordinator::Writer& writer) {
    FakeCoordinator::SendToken(writer, 1);
    return FakeCoordinator::HangUntilCancelled(context);
  });
  const std::string request = Post(kPath, R"({"prompt":"x","stream":true})");
  for (int count = 0; count < 100; ++count) {
    RawClient client = service_.Connect();
    client.Send(request);
    std::string begin;
    ASSERT_TRUE(client.ReadUntil("data: ", begin));
    client.Reset();
  }
  EXPECT_TRUE(service_.coordinator.WaitForCancelled(100));
}

TEST_F(HttpRobustnessTest, GivesAnIdleConnectionsPlaceToTheNext) {
  TestService small(GatewayConfig{.max_connections = 8});
  std::vector<RawClient> idle;
  for (int count = 0; count < 8; ++count) {
    idle.push_back(small.Connect());
    idle.back().Send(Get("/health"));
    ASSERT_EQ(idle.back().Read().status, 200);
  }
  RawClient next = small.Connect();
  next.Send(Get("/health"));
  EXPECT_EQ(next.Read().status, 200);
  EXPECT_TRUE(idle.front().AtEnd());  // the one that waited longest
  idle.back().Send(Get("/health"));
  EXPECT_EQ(idle.back().Read().status, 200);
}

TEST_F(HttpRobustnessTest, RefusesConnectionsWhenAllAreBusy) {
  TestService small(GatewayConfig{.max_connections = 2});
  small.coordinator.SetScript(
      [](const v1::GenerateRequest&, grpc::ServerContext& context, FakeCoordinator::Writer&) {
        return FakeCoordinator::HangUntilCancelled(context);
      });
  RawClient first = small.Connect();
  RawClient second = small.Connect();
  first.Send(Post(kPath, kBody));
  second.Send(Post(kPath, kBody));
  ASSERT_TRUE(small.coordinator.WaitForBegun(2));
  RawClient third = small.Connect();
  EXPECT_EQ(third.Read().status, 503);
  first.Close();
  ASSERT_TRUE(small.coordinator.WaitForCancelled(1));
  // Its place is free as soon as the gateway has seen it go.
  EXPECT_EQ(small.Ask(Get("/health")).status, 200);
}

TEST_F(HttpRobustnessTest, GoesOnAfterDescriptorsHaveRunOut) {
  RawClient before = service_.Connect();
  before.Send(Get("/health"));
  ASSERT_EQ(before.Read().status, 200);
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  std::vector<UniqueFd> taken;
  const rlimit tight{.rlim_cur = 64, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  UniqueFd late(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  while (true) {
    UniqueFd fd(dup(0));
    if (!fd.valid()) break;
    taken.push_back(std::move(fd));
  }
  sockaddr_in address{.sin_family = AF_INET,
                      .sin_port = htons(static_cast<uint16_t>(service_.port()))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(late.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  EXPECT_TRUE(before.AtEnd());  // The gateway could not accept and let an idle client go.
  taken.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(service_.Ask(Get("/health")).status, 200);
}

TEST_F(HttpRobustnessTest, TakesLargeBodiesUpToTheLimit) {
  const std::string text(1000000, 'x');
  EXPECT_EQ(service_.Ask(Post(kPath, absl::StrCat(R"({"prompt":")", text, R"("})"))).status, 200);
  ExpectRefusedAndClosed(service_, Post(kPath, absl::StrCat(R"({"prompt":")", text, text, R"("})")),
                         413, "2 MB");
}

}  // namespace
}  // namespace warpline
