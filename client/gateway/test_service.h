// A gateway before a fake coordinator, and a client that speaks in raw bytes; for tests.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <boost/json/parse.hpp>
#include <boost/json/value.hpp>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/unique_fd.h"
#include "client/gateway/fakes.h"
#include "client/gateway/gateway.h"

namespace warpline {

// One answer as it was received.
struct RawAnswer {
  int status = 0;
  std::string head;       // status line and fields
  std::string body;       // chunks put together
  bool complete = false;  // its length or its last chunk arrived

  bool HasField(absl::string_view line) const {
    return absl::StrContains(absl::AsciiStrToLower(head), absl::AsciiStrToLower(line));
  }
  boost::json::value Json() const { return boost::json::parse(body); }
};

class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer_bytes = 0)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer_bytes > 0) {
      setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof(receive_buffer_bytes));
    }
    sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(static_cast<uint16_t>(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      fd_.Reset();
    }
  }

  bool connected() const { return fd_.valid(); }
  // False when the gateway has closed the connection meanwhile.
  bool Send(absl::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }
  void CloseSending() { shutdown(fd_.get(), SHUT_WR); }
  void Close() { fd_.Reset(); }
  // Closes with a reset instead of a proper end.
  void Reset() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof(now));
    fd_.Reset();
  }

  // The next answer; incomplete when the connection ends or nothing comes for 10 s.
  RawAnswer Read(bool head_only = false) {
    RawAnswer answer;
    if (!ReadUntil("\r\n\r\n", answer.head)) return answer;
    (void)absl::SimpleAtoi(absl::string_view(answer.head).substr(9, 3), &answer.status);
    const std::string lower = absl::AsciiStrToLower(answer.head);
    if (head_only || answer.status == 204 || answer.status == 100) {
      answer.complete = true;
    } else if (absl::StrContains(lower, "transfer-encoding: chunked")) {
      answer.complete = ReadChunks(answer.body);
    } else if (const size_t at = lower.find("content-length: "); at != std::string::npos) {
      size_t length = 0;
      (void)absl::SimpleAtoi(lower.substr(at + 16, lower.find('\r', at) - at - 16), &length);
      answer.complete = ReadBytes(length, answer.body);
    } else {
      while (Fill()) {
      }
      answer.body = std::exchange(buffer_, "");
      answer.complete = true;
    }
    return answer;
  }
  // Waits until a byte can be read, at most 10 s; reads none.
  bool AwaitBytes() { return !buffer_.empty() || Fill(); }
  // Bytes up to `sign`; false when the connection ends before.
  bool ReadUntil(absl::string_view sign, std::string& bytes) {
    size_t at = std::string::npos;
    while ((at = buffer_.find(std::string(sign))) == std::string::npos) {
      if (!Fill()) return false;
    }
    return ReadBytes(at + sign.size(), bytes);
  }
  // The gateway closes without another byte, within 10 s.
  bool AtEnd() { return buffer_.empty() && !Fill() && closed_; }

 private:
  bool Fill() {
    pollfd readable{.fd = fd_.get(), .events = POLLIN};
    if (poll(&readable, 1, 10000) != 1) return false;
    char bytes[16384];
    const ssize_t count = recv(fd_.get(), bytes, sizeof(bytes), 0);
    if (count <= 0) {
      closed_ = true;
      return false;
    }
    buffer_.append(bytes, static_cast<size_t>(count));
    return true;
  }
  bool ReadBytes(size_t count, std::string& bytes) {
    while (buffer_.size() < count) {
      if (!Fill()) return false;
    }
    bytes.append(buffer_, 0, count);
    buffer_.erase(0, count);
    return true;
  }
  bool ReadChunks(std::string& body) {
    while (true) {
      std::string size_line;
      if (!ReadUntil("\r\n", size_line)) return false;
      const size_t size = std::strtoul(size_line.c_str(), nullptr, 16);
      if (!ReadBytes(size, body)) return false;
      std::string line_end;
      if (!ReadBytes(2, line_end) || line_end != "\r\n") return false;
      if (size == 0) return true;
    }
  }

  UniqueFd fd_;
  std::string buffer_;
  bool closed_ = false;
};

inline std::string Post(absl::string_view path, absl::string_view body,
                        absl::string_view fields = "") {
  return absl::StrCat("POST ", path, " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n",
                      fields, "Content-Length: ", body.size(), "\r\n\r\n", body);
}

inline std::string Get(absl::string_view path, absl::string_view fields = "") {
  return absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: x\r\n", fields, "\r\n");
}

// Runs a gateway on a free port until it goes.
class TestService {
 public:
  explicit TestService(GatewayConfig config = {}) {
    config.port = 0;
    config.coordinator = coordinator.address();
    absl::StatusOr<std::unique_ptr<Gateway>> created = Gateway::Create(config);
    if (!created.ok()) std::abort();
    gateway = std::move(*created);
    thread_ = std::thread([this] { gateway->Run(); });
  }
  ~TestService() {
    gateway->Drain();
    thread_.join();
  }

  int port() const { return gateway->port(); }
  RawClient Connect() const { return RawClient(port()); }
  // One request on a connection of its own.
  RawAnswer Ask(absl::string_view request) const {
    RawClient client = Connect();
    client.Send(request);
    return client.Read(absl::StartsWith(request, "HEAD "));
  }
  // The value of a sample in /metrics, -1 when there is none.
  double Metric(absl::string_view name) const {
    const std::string text = Ask(Get("/metrics")).body;
    const size_t at = text.find(absl::StrCat("\n", name, " "));
    return at == std::string::npos ? -1 : std::strtod(text.c_str() + at + name.size() + 2, nullptr);
  }

  FakeCoordinator coordinator;
  std::unique_ptr<Gateway> gateway;

 private:
  std::thread thread_;
};

}  // namespace warpline
