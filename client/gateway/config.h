// What a gateway is told at its start: typed, validated once, constant afterwards.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace warpline {

using Milliseconds = std::chrono::milliseconds;

struct GatewayConfig {
  std::string coordinator;                 // gRPC address: unix:/path or host:port
  std::string host = "127.0.0.1";          // name or address to listen on
  int port = 8080;                         // 0: any free one, printed when it is known
  std::vector<std::string> api_keys;       // empty: no key is asked for
  std::string alias;                       // model name shown to clients; empty: the coordinator's
  bool strict_model = false;               // a request for another model is a 404
  std::string cors_origin;                 // empty: no CORS headers; "*" or one origin
  uint64_t max_body_bytes = 8 << 20;       // of one request, 1 KiB to 64 MiB
  int max_connections = 1024;              // 1 to 100,000
  Milliseconds header_timeout{10000};      // from the first byte to the end of the header
  Milliseconds body_timeout{60000};        // from the end of the header to the end of the body
  Milliseconds idle_timeout{75000};        // between two requests of a connection
  Milliseconds write_timeout{30000};       // without any progress of a client that should read
  Milliseconds comment_interval{15000};    // a stream without a token sends a comment this often
  Milliseconds request_timeout{3600000};   // of one generation, queueing included
  uint64_t stream_buffer_bytes = 1 << 20;  // unsent bytes of a stream before its client is dropped
  int drain_seconds = 30;                  // for requests that run when the gateway shall stop
  int watch_fd = -1;  // inherited pipe; the gateway exits when its other end closes; -1: none
};

// Parses the command line. Empty: the program shall exit with `exit_code`, its message is printed.
std::optional<GatewayConfig> ParseGatewayConfig(int argc, const char* const* argv, int& exit_code);

}  // namespace warpline
