#include "client/cli/load_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "client/cli/http_answer.h"

namespace warpline {
namespace {

namespace json = boost::json;

constexpr int kConnectMs = 10000;
constexpr size_t kReadBytes = 64 << 10;

absl::Status Interrupted() { return absl::CancelledError("interrupted"); }

absl::string_view View(const json::string& text) { return {text.data(), text.size()}; }

// `value[key]` when `value` is an object that has it.
const json::value* Member(const json::value& value, const char* key) {
  const json::object* const object = value.if_object();
  return object == nullptr ? nullptr : object->if_contains(key);
}

int64_t IntMember(const json::value& value, const char* key) {
  const json::value* const member = Member(value, key);
  const int64_t* const number = member == nullptr ? nullptr : member->if_int64();
  return number == nullptr ? -1 : *number;
}

// The message of `{"error": {"message": ..}}`, or empty.
std::string ErrorMessage(const json::value& value) {
  const json::value* const error = Member(value, "error");
  const json::value* const message = error == nullptr ? nullptr : Member(*error, "message");
  const json::string* const text = message == nullptr ? nullptr : message->if_string();
  if (text != nullptr) return std::string(View(*text));
  return error == nullptr ? "" : json::serialize(*error);
}

// One request on a connection of its own.
struct Exchange {
  UniqueFd socket;
  std::string request;
  size_t sent = 0;
  HttpAnswer answer;
  TokenStreamReader reader;
  bool streamed = false;  // the answer is a stream of events
  bool done = false;
};

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

absl::StatusOr<Addresses> Resolve(const HttpTarget& target) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* list = nullptr;
  const int error = getaddrinfo(target.host.c_str(), target.port.c_str(), &hints, &list);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot find ", target.host, ": ", gai_strerror(error)));
  }
  return Addresses(list);
}

// A connected socket to one address, or an errno value.
int ConnectTo(const addrinfo& address, int stop_fd, UniqueFd& socket_out) {
  UniqueFd fd(socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  if (connect(fd.get(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    pollfd fds[] = {{.fd = fd.get(), .events = POLLOUT}, {.fd = stop_fd, .events = POLLIN}};
    if (poll(fds, 2, kConnectMs) <= 0) return ETIMEDOUT;
    if (fds[1].revents != 0) return ECANCELED;
    int error = 0;
    socklen_t size = sizeof(error);
    getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) return error;
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  socket_out = std::move(fd);
  return 0;
}

absl::StatusOr<UniqueFd> Connect(const HttpTarget& target, const addrinfo* list, int stop_fd) {
  int error = EADDRNOTAVAIL;
  for (const addrinfo* address = list; address != nullptr; address = address->ai_next) {
    UniqueFd fd;
    error = ConnectTo(*address, stop_fd, fd);
    if (error == 0) return fd;
    if (error == ECANCELED) return Interrupted();
  }
  return absl::UnavailableError(absl::StrCat("cannot connect to ", target.host, " port ",
                                             target.port, ": ", std::strerror(error)));
}

void Send(Exchange& exchange) {
  TokenStream& stream = exchange.reader.stream();
  if (stream.begin == SteadyTime()) stream.begin = Now();
  while (exchange.sent < exchange.request.size()) {
    const ssize_t count =
        send(exchange.socket.get(), exchange.request.data() + exchange.sent,
             exchange.request.size() - exchange.sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    // An answer that explains why the service closed may be there to read.
    exchange.sent = count < 0 ? exchange.request.size() : exchange.sent + count;
  }
}

// Looks at what has arrived; sets `done` at the answer's end.
absl::Status Look(Exchange& exchange, SteadyTime time) {
  if (exchange.streamed && exchange.answer.status() == 200) {
    WL_RETURN_IF_ERROR(exchange.reader.Read(exchange.answer.body(), time));
    exchange.done = exchange.reader.done();
    if (exchange.answer.complete() && !exchange.done) {
      return absl::UnavailableError("the stream ended without [DONE]");
    }
    return absl::OkStatus();
  }
  if (!exchange.answer.complete()) return absl::OkStatus();
  exchange.done = true;
  return exchange.answer.status() == 200
             ? absl::OkStatus()
             : AnswerError(exchange.answer.status(), exchange.answer.body());
}

absl::Status Receive(Exchange& exchange) {
  char bytes[kReadBytes];
  while (!exchange.done) {
    const ssize_t count = recv(exchange.socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
    const SteadyTime time = Now();
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return absl::OkStatus();
    if (count < 0) {
      return absl::UnavailableError(
          absl::StrCat("the connection was lost: ", std::strerror(errno)));
    }
    WL_RETURN_IF_ERROR(
        count == 0 ? exchange.answer.FeedEnd()
                   : exchange.answer.Feed(absl::string_view(bytes, static_cast<size_t>(count))));
    WL_RETURN_IF_ERROR(Look(exchange, time));
  }
  return absl::OkStatus();
}

// Runs all exchanges to their ends; the first failure ends it.
absl::Status RunExchanges(std::vector<Exchange>& exchanges, int stop_fd, int timeout_seconds) {
  for (Exchange& exchange : exchanges) Send(exchange);
  while (true) {
    std::vector<pollfd> fds = {{.fd = stop_fd, .events = POLLIN}};
    std::vector<Exchange*> open;
    for (Exchange& exchange : exchanges) {
      if (exchange.done) continue;
      const bool sending = exchange.sent < exchange.request.size();
      const int events = sending ? POLLIN | POLLOUT : POLLIN;
      fds.push_back({.fd = exchange.socket.get(), .events = static_cast<short>(events)});
      open.push_back(&exchange);
    }
    if (open.empty()) return absl::OkStatus();
    const int count = poll(fds.data(), fds.size(), timeout_seconds * 1000);
    if (count == 0) {
      return absl::UnavailableError(
          absl::StrCat("the service sent nothing for ", timeout_seconds, " s"));
    }
    if (count < 0) continue;  // Interrupted: look again.
    if (fds[0].revents != 0) return Interrupted();
    for (size_t index = 0; index < open.size(); ++index) {
      const int events = fds[index + 1].revents;
      if ((events & POLLOUT) != 0) Send(*open[index]);
      if ((events & ~POLLOUT) != 0) WL_RETURN_IF_ERROR(Receive(*open[index]));
    }
  }
}

std::string Head(const HttpTarget& target, absl::string_view method, absl::string_view path) {
  const bool is_ipv6 = absl::StrContains(target.host, ':');
  std::string head =
      absl::StrCat(method, " ", path, " HTTP/1.1\r\nHost: ", is_ipv6 ? "[" : "", target.host,
                   is_ipv6 ? "]" : "", ":", target.port, "\r\nConnection: close\r\n");
  if (!target.api_key.empty()) {
    absl::StrAppend(&head, "Authorization: Bearer ", target.api_key, "\r\n");
  }
  return head;
}

// Connects all of them before the first one is sent.
absl::Status RunRequests(const HttpTarget& target, std::vector<Exchange>& exchanges,
                         int timeout_seconds) {
  const UniqueFd stop = OpenStopSignals();
  WL_ASSIGN_OR_RETURN(const Addresses addresses, Resolve(target));
  for (Exchange& exchange : exchanges) {
    WL_ASSIGN_OR_RETURN(exchange.socket, Connect(target, addresses.get(), stop.get()));
  }
  return RunExchanges(exchanges, stop.get(), timeout_seconds);
}

}  // namespace

absl::StatusOr<HttpTarget> ParseHttpUrl(absl::string_view url) {
  const absl::Status wrong = absl::InvalidArgumentError(
      absl::StrCat("'", url, "' is no URL such as http://127.0.0.1:8080"));
  if (!absl::ConsumePrefix(&url, "http://")) return wrong;
  absl::ConsumeSuffix(&url, "/");
  HttpTarget target{.port = "80"};
  size_t colon = url.rfind(':');
  if (absl::StartsWith(url, "[")) {
    const size_t end = url.find(']');
    if (end == absl::string_view::npos) return wrong;
    target.host = std::string(url.substr(1, end - 1));
    colon = end + 1 == url.size() ? absl::string_view::npos : end + 1;
    if (colon != absl::string_view::npos && url[colon] != ':') return wrong;
  } else {
    target.host = std::string(url.substr(0, colon));
  }
  if (colon != absl::string_view::npos) target.port = std::string(url.substr(colon + 1));
  int port = 0;
  if (target.host.empty() || absl::StrContains(target.host, '/') ||
      !absl::SimpleAtoi(target.port, &port) || port < 1 || port > 65535) {
    return wrong;
  }
  return target;
}

int64_t TokenStream::token_count() const {
  int64_t count = 0;
  for (const TokenArrival& arrival : arrivals) count += arrival.count;
  return count;
}

absl::Status TokenStreamReader::Read(std::string& body, SteadyTime time) {
  size_t begin = 0;
  for (size_t end = 0; (end = body.find('\n', begin)) != std::string::npos; begin = end + 1) {
    absl::string_view line = absl::string_view(body).substr(begin, end - begin);
    absl::ConsumeSuffix(&line, "\r");
    if (absl::ConsumePrefix(&line, "data: ")) WL_RETURN_IF_ERROR(ReadEvent(line, time));
  }
  body.erase(0, begin);
  return absl::OkStatus();
}

absl::Status TokenStreamReader::ReadEvent(absl::string_view data, SteadyTime time) {
  if (data == "[DONE]") {
    done_ = true;
    return absl::OkStatus();
  }
  json::error_code error;
  const json::value event = json::parse({data.data(), data.size()}, error);
  if (error) return absl::InvalidArgumentError("an event of the service is no JSON");
  if (const std::string message = ErrorMessage(event); !message.empty()) {
    return absl::UnavailableError(message);
  }
  if (const json::value* const usage = Member(event, "usage"); usage != nullptr) {
    const json::value* const details = Member(*usage, "prompt_tokens_details");
    stream_.prompt_count = IntMember(*usage, "prompt_tokens");
    stream_.cached_count = details == nullptr ? -1 : IntMember(*details, "cached_tokens");
  }
  const json::value* const choices = Member(event, "choices");
  if (choices == nullptr || !choices->is_array() || choices->get_array().empty()) {
    return absl::OkStatus();
  }
  const json::value* const ids = Member(choices->get_array()[0], "token_ids");
  if (ids == nullptr || !ids->is_array()) {
    return absl::InvalidArgumentError("the service sends no token_ids: is it a Warpline gateway?");
  }
  const int count = static_cast<int>(ids->get_array().size());
  if (count > 0) stream_.arrivals.push_back({.time = time, .count = count});
  return absl::OkStatus();
}

absl::Status AnswerError(int http_status, absl::string_view body) {
  json::error_code error;
  const json::value value = json::parse({body.data(), body.size()}, error);
  const std::string message = error ? "" : ErrorMessage(value);
  return absl::UnavailableError(
      absl::StrCat("HTTP status ", http_status, message.empty() ? "" : ": ", message));
}

absl::StatusOr<std::string> LoadClient::Get(absl::string_view path) const {
  std::vector<Exchange> exchanges(1);
  exchanges[0].request = absl::StrCat(Head(target_, "GET", path), "\r\n");
  WL_RETURN_IF_ERROR(RunRequests(target_, exchanges, timeout_seconds_));
  return std::move(exchanges[0].answer.body());
}

absl::StatusOr<std::vector<TokenStream>> LoadClient::Complete(
    absl::Span<const std::string> bodies) const {
  std::vector<Exchange> exchanges(bodies.size());
  for (size_t index = 0; index < bodies.size(); ++index) {
    exchanges[index].streamed = true;
    exchanges[index].request =
        absl::StrCat(Head(target_, "POST", "/v1/completions"),
                     "Content-Type: application/json\r\nContent-Length: ", bodies[index].size(),
                     "\r\n\r\n", bodies[index]);
  }
  WL_RETURN_IF_ERROR(RunRequests(target_, exchanges, timeout_seconds_));
  std::vector<TokenStream> streams;
  for (Exchange& exchange : exchanges) streams.push_back(std::move(exchange.reader.stream()));
  return streams;
}

}  // namespace warpline
