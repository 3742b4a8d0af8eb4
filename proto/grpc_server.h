// How our gRPC servers listen and our channels dial: addresses, limits and keep-alive that both
// sides agree on. With the first of either the library stays up until the process ends.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/server.h>
#include <grpcpp/server_builder.h>

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "proto/accept_loop.h"

namespace warpline {

// Both directions of internal links; the largest message is a chunk of activations.
constexpr int kMaxInternalMessageBytes = 64 << 20;

struct ServerHandle {
  std::unique_ptr<grpc::Server> server;
  int port = 0;  // the real one, also when 0 was asked for; 0 for a Unix socket
  std::unique_ptr<AcceptLoop> accept_loop;  // of a port; gRPC itself accepts on a Unix socket

  // Takes no more connections and ends what still runs after `wait`.
  void Shutdown(std::chrono::nanoseconds wait);
};

// ResourceExhausted when the threads that gRPC and `own_count` others will need cannot be started.
// Call before anything of gRPC is made: without its threads gRPC ends the process with a failed
// assertion, or waits for ever when it is shut down.
absl::Status CheckThreads(int own_count);

// Listens on "unix:/path", "host:port" or "[::]:port" and starts `builder`'s services. Message
// limits are the caller's business; sharing a port with another process is switched off here.
// Errors name the address and the port: InvalidArgument when it cannot be read, FailedPrecondition
// when it cannot be had (in use, no such host, a file that is no socket in the way). Nothing is
// bound when an error is returned. A socket file whose server is gone is replaced.
absl::StatusOr<ServerHandle> StartServer(grpc::ServerBuilder& builder, const std::string& address);

// "localhost", 127.0.0.0/8 or ::1.
bool IsLoopbackHost(const std::string& host);

// A Unix socket or a loopback host with a port: peers of this address run on this machine.
bool IsLocalAddress(absl::string_view address);

// A channel of its own connection that reconnects after 50 to 500 ms, finds a silent peer within 15
// s, never goes through a proxy, and carries messages up to kMaxInternalMessageBytes. Connects when
// it is first used.
std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address);

}  // namespace warpline
