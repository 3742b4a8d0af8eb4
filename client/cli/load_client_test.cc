// HTTP answers in pieces, events of streams, URLs, and services that cannot be reached or fail.
#include "client/cli/load_client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <csignal>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "client/cli/http_answer.h"

namespace warpline {
namespace {

using testing::HasSubstr;

const char kChunked[] =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    "5\r\nhello\r\n6;x=y\r\n world\r\n0\r\n\r\n";

// The answer after `bytes` came in pieces of `size`.
HttpAnswer Fed(absl::string_view bytes, size_t size) {
  HttpAnswer answer;
  for (size_t at = 0; at < bytes.size(); at += size) {
    EXPECT_TRUE(answer.Feed(bytes.substr(at, size)).ok());
  }
  return answer;
}

TEST(HttpAnswerTest, JoinsChunksHoweverTheyAreCut) {
  for (size_t size = 1; size < sizeof(kChunked); ++size) {
    HttpAnswer answer = Fed(kChunked, size);
    EXPECT_TRUE(answer.complete()) << size;
    EXPECT_EQ(answer.status(), 200);
    EXPECT_EQ(answer.body(), "hello world");
  }
}

TEST(HttpAnswerTest, EndsByLengthOrWithTheConnection) {
  for (const size_t size : {1U, 7U, 1000U}) {
    HttpAnswer counted = Fed("HTTP/1.1 404 Not Found\r\ncontent-length: 3\r\n\r\nabc", size);
    EXPECT_TRUE(counted.complete());
    EXPECT_EQ(counted.status(), 404);
    EXPECT_EQ(counted.body(), "abc");
    HttpAnswer open = Fed("HTTP/1.0 200 OK\r\n\r\nabc", size);
    EXPECT_FALSE(open.complete());
    EXPECT_TRUE(open.FeedEnd().ok());
    EXPECT_TRUE(open.complete());
    EXPECT_EQ(open.body(), "abc");
  }
  EXPECT_TRUE(Fed("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", 1000).complete());
}

TEST(HttpAnswerTest, KnowsWhatIsCutOffOrNoHttp) {
  HttpAnswer cut = Fed(absl::string_view(kChunked, sizeof(kChunked) - 6), 1000);
  EXPECT_EQ(cut.FeedEnd().code(), absl::StatusCode::kUnavailable);
  EXPECT_FALSE(HttpAnswer().FeedEnd().ok());
  HttpAnswer other;
  EXPECT_FALSE(other.Feed("SSH-2.0-x\r\n\r\n").ok());
  HttpAnswer bad_chunk;
  EXPECT_FALSE(bad_chunk.Feed("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n").ok());
}

TEST(TokenStreamReaderTest, CountsTokensAtTheirArrival) {
  TokenStreamReader reader;
  const SteadyTime begin = Now();
  std::string body =
      "data: {\"choices\":[{\"token_ids\":[5],\"text\":\"a\"}],\"usage\":null}\n\n: keep-alive\n\n"
      "data: {\"choices\":[{\"token_ids\":[6,7],\"te";
  ASSERT_TRUE(reader.Read(body, begin).ok());
  EXPECT_EQ(reader.stream().token_count(), 1);
  body +=
      "xt\":\"b\"}]}\n\ndata: {\"choices\":[{\"token_ids\":[],\"finish_reason\":\"length\"}]}\n\n";
  ASSERT_TRUE(reader.Read(body, begin + std::chrono::seconds(2)).ok());
  body +=
      "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":3,"
      "\"prompt_tokens_details\":{\"cached_tokens\":0}}}\r\n\r\ndata: [DONE]\n\n";
  EXPECT_FALSE(reader.done());
  ASSERT_TRUE(reader.Read(body, begin).ok());
  EXPECT_TRUE(reader.done());
  EXPECT_EQ(body, "");
  ASSERT_EQ(reader.stream().arrivals.size(), 2U);
  EXPECT_EQ(reader.stream().arrivals[1].count, 2);
  EXPECT_EQ(reader.stream().arrivals[1].time, begin + std::chrono::seconds(2));
  EXPECT_EQ(reader.stream().prompt_count, 9);
  EXPECT_EQ(reader.stream().cached_count, 0);
}

TEST(TokenStreamReaderTest, AnErrorEventIsAnError) {
  for (const auto& [event, message] :
       {std::pair("{\"error\":{\"message\":\"worker 1 is down\"}}", "worker 1 is down"),
        {"{\"error\":\"odd\"}", "odd"},
        {"{\"choices\":[{\"text\":\"a\"}]}", "sends no token_ids"},
        {"{\"choices\"", "no JSON"}}) {
    TokenStreamReader reader;
    std::string body = absl::StrCat("data: ", event, "\n\n");
    EXPECT_THAT(std::string(reader.Read(body, Now()).message()), HasSubstr(message));
  }
  EXPECT_EQ(AnswerError(429, R"({"error":{"message":"full"}})").message(), "HTTP status 429: full");
  EXPECT_EQ(AnswerError(502, "<html>").message(), "HTTP status 502");
}

TEST(HttpUrlTest, TakesHostAndPort) {
  for (const auto& [url, host, port] : {std::tuple("http://127.0.0.1:8080", "127.0.0.1", "8080"),
                                        {"http://host/", "host", "80"},
                                        {"http://[::1]:81/", "::1", "81"},
                                        {"http://[::1]", "::1", "80"}}) {
    const absl::StatusOr<HttpTarget> target = ParseHttpUrl(url);
    ASSERT_TRUE(target.ok()) << url;
    EXPECT_EQ(target->host, host);
    EXPECT_EQ(target->port, port);
  }
  for (const char* url :
       {"", "host:80", "https://host", "http://", "http://host:x", "http://host:99999",
        "http://host/path", "http://[::1", "http://[::1]x"}) {
    EXPECT_FALSE(ParseHttpUrl(url).ok()) << url;
  }
}

// A server that takes one connection, reads what comes first, and answers `answer`.
class OneAnswer {
 public:
  explicit OneAnswer(std::string answer, bool keep_open = false)
      : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{.sin_family = AF_INET};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    auto* const name = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener_.get(), name, size), 0);
    EXPECT_EQ(listen(listener_.get(), 1), 0);
    getsockname(listener_.get(), name, &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, answer = std::move(answer), keep_open] {
      const UniqueFd fd(accept(listener_.get(), nullptr, nullptr));
      char bytes[4096];
      recv(fd.get(), bytes, sizeof(bytes), 0);
      send(fd.get(), answer.data(), answer.size(), MSG_NOSIGNAL);
      while (keep_open && recv(fd.get(), bytes, sizeof(bytes), 0) > 0) {
      }
    });
  }
  ~OneAnswer() { thread_.join(); }

  HttpTarget target() const { return {.host = "127.0.0.1", .port = std::to_string(port_)}; }

 private:
  UniqueFd listener_;
  int port_ = 0;
  std::thread thread_;
};

std::string EventStream(absl::string_view events) {
  return absl::StrCat("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", events);
}

TEST(LoadClientTest, ReadsAStream) {
  const OneAnswer server(
      EventStream("data: {\"choices\":[{\"token_ids\":[5]}]}\n\ndata: [DONE]\n\n"));
  const SteadyTime begin = Now();
  const auto streams = LoadClient(server.target(), 10).Complete({"{}"});
  ASSERT_TRUE(streams.ok()) << streams.status();
  ASSERT_EQ(streams->size(), 1U);
  EXPECT_EQ(streams->front().token_count(), 1);
  EXPECT_GE(streams->front().begin, begin);
  EXPECT_GE(streams->front().arrivals[0].time, streams->front().begin);
}

TEST(LoadClientTest, FailuresOfTheServiceAreErrors) {
  for (const auto& [answer, message] :
       {std::pair(EventStream("data: {\"choices\":[{\"token_ids\":[5]}]}\n\n"),
                  "the stream ended without [DONE]"),
        {EventStream("data: {\"error\":{\"message\":\"no page left\"}}\n\n"), "no page left"},
        {std::string("HTTP/1.1 400 Bad Request\r\nContent-Length: 40\r\n\r\n"
                     "{\"error\":{\"message\":\"too long"),
         "closed the connection"},
        {std::string("HTTP/1.1 400 Bad Request\r\n\r\n{\"error\":{\"message\":\"too long\"}}"),
         "HTTP status 400: too long"},
        {std::string(), "closed the connection"}}) {
    const OneAnswer server(answer);
    const auto streams = LoadClient(server.target(), 10).Complete({"{}"});
    ASSERT_FALSE(streams.ok()) << message;
    EXPECT_THAT(std::string(streams.status().message()), HasSubstr(message));
  }
}

TEST(LoadClientTest, ASilentServiceTimesOut) {
  const OneAnswer server("", /*keep_open=*/true);
  const auto answer = LoadClient(server.target(), 1).Get("/v1/status");
  EXPECT_EQ(answer.status().message(), "the service sent nothing for 1 s");
}

TEST(LoadClientTest, SaysWhatCannotBeReached) {
  UniqueFd unused(socket(AF_INET, SOCK_STREAM, 0));  // Bound, but it does not listen.
  sockaddr_in address{.sin_family = AF_INET};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const name = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(unused.get(), name, size), 0);
  getsockname(unused.get(), name, &size);
  const std::string port = std::to_string(ntohs(address.sin_port));
  const auto answer = LoadClient({.host = "127.0.0.1", .port = port}, 10).Get("/v1/status");
  EXPECT_EQ(answer.status().message(),
            absl::StrCat("cannot connect to 127.0.0.1 port ", port, ": Connection refused"));
}

TEST(LoadClientTest, AStopSignalEndsItAndStaysPending) {
  BlockSignals();
  const OneAnswer server("", /*keep_open=*/true);
  raise(SIGINT);
  EXPECT_EQ(LoadClient(server.target(), 10).Get("/").status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(TakeStopSignal(OpenStopSignals().get()));
}

}  // namespace
}  // namespace warpline
