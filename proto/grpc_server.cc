#include "proto/grpc_server.h"

#include <arpa/inet.h>
#include <grpc/grpc.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <future>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "proto/deadline.h"

namespace warpline {
namespace {

constexpr char kUnixPrefix[] = "unix:";
constexpr size_t kMaxUnixPathBytes = sizeof(sockaddr_un::sun_path) - 1;  // 107 and a zero
constexpr int kKeepaliveMs = 10000;
constexpr int kKeepaliveTimeoutMs = 5000;
constexpr int kConnectMs = 1000;
constexpr int kMaxProbedThreads = 64;

// For every server and channel: one user of the library that never leaves. The last user's goodbye
// waits for the library's pollers, and one that has helped a large message through a full socket
// sleeps for up to ten seconds. A process that ends needs no such clean-up.
void KeepLibrary() { grpc_init(); }

struct HostPort {
  std::string host;
  std::string port;
};

absl::StatusOr<HostPort> SplitHostPort(absl::string_view address) {
  const absl::Status malformed = absl::InvalidArgumentError(absl::StrCat(
      "address '", EscapeForLog(address), "' is neither unix:/path nor host:port nor [IPv6]:port"));
  const size_t colon = address.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return malformed;
  absl::string_view host = address.substr(0, colon);
  const absl::string_view port_text = address.substr(colon + 1);
  if (host.front() == '[') {
    if (host.back() != ']') return malformed;
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != absl::string_view::npos) {
    return malformed;
  }
  int port = 0;
  if (!absl::SimpleAtoi(port_text, &port) || port < 0 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("address '", EscapeForLog(address), "': port '",
                                                   EscapeForLog(port_text),
                                                   "' is no whole number from 0 to 65535"));
  }
  return HostPort{.host = std::string(host), .port = absl::StrCat(port)};
}

absl::Status CannotListen(absl::string_view address, absl::string_view why) {
  return absl::FailedPreconditionError(
      absl::StrCat("cannot listen on ", EscapeForLog(address), ": ", why));
}

// Listening sockets of one host and port, which do not block, and that port.
struct TcpListeners {
  std::vector<UniqueFd> sockets;
  int port = 0;
};

// 0, or errno. A port of 0 becomes `port` where that is known, and the other way round.
int ListenOn(const addrinfo& one, TcpListeners& listeners) {
  UniqueFd fd(socket(one.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return errno;
  sockaddr_storage address{};
  memcpy(&address, one.ai_addr, one.ai_addrlen);
  // The same place in both kinds of address.
  in_port_t& port = reinterpret_cast<sockaddr_in&>(address).sin_port;
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  if (port == 0) port = htons(static_cast<in_port_t>(listeners.port));
  const int on = 1;
  const int off = 0;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (one.ai_family == AF_INET6) {
    setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));  // [::] takes IPv4 as well.
  }
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(fd.get(), generic, one.ai_addrlen) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    return errno;
  }
  socklen_t length = sizeof(address);
  if (getsockname(fd.get(), generic, &length) != 0) return errno;
  listeners.port = ntohs(port);
  listeners.sockets.push_back(std::move(fd));
  return 0;
}

// On every address of the host; those that the machine lacks may be missing, but not all.
absl::StatusOr<TcpListeners> ListenTcp(const std::string& address) {
  WL_ASSIGN_OR_RETURN(const HostPort parts, SplitHostPort(address));
  addrinfo hints{.ai_flags = AI_PASSIVE, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  if (const int code = getaddrinfo(parts.host.c_str(), parts.port.c_str(), &hints, &found);
      code != 0) {
    return CannotListen(address, absl::StrCat("host ", parts.host, ": ", gai_strerror(code)));
  }
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  TcpListeners listeners;
  std::set<std::string> seen;  // A hosts file may name one address twice.
  int last_error = EADDRNOTAVAIL;
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    const std::string bytes(reinterpret_cast<const char*>(one->ai_addr), one->ai_addrlen);
    if (!seen.insert(bytes).second) continue;
    const int error = ListenOn(*one, listeners);
    if (error == EADDRINUSE) {
      return CannotListen(address, absl::StrCat("port ", parts.port, " is in use"));
    }
    if (error != 0) last_error = error;  // A machine without IPv6: the other addresses may do.
  }
  if (!listeners.sockets.empty()) return listeners;
  return CannotListen(address, absl::StrCat("port ", parts.port, ": ", strerror(last_error)));
}

// Removes a socket file that nobody listens on; anything else in the way is an error.
absl::Status ClearUnixPath(const std::string& address, const std::string& path) {
  if (path.empty()) return absl::InvalidArgumentError("address 'unix:' has no path");
  if (path.size() > kMaxUnixPathBytes) {
    return absl::InvalidArgumentError(absl::StrCat("address ", EscapeForLog(address),
                                                   ": the path has ", path.size(),
                                                   " bytes, at most ", kMaxUnixPathBytes));
  }
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? absl::OkStatus() : CannotListen(address, strerror(errno));
  }
  if (!S_ISSOCK(info.st_mode)) return CannotListen(address, "a file that is no socket lies there");
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return CannotListen(address, strerror(errno));
  sockaddr_un peer{.sun_family = AF_UNIX};
  memcpy(peer.sun_path, path.c_str(), path.size() + 1);
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&peer), sizeof(peer)) == 0 ||
      errno != ECONNREFUSED) {
    return CannotListen(address, "the socket is in use");
  }
  if (unlink(path.c_str()) != 0) return CannotListen(address, strerror(errno));
  return absl::OkStatus();
}

absl::StatusOr<ServerHandle> StartUnixServer(grpc::ServerBuilder& builder,
                                             const std::string& address, const std::string& path) {
  WL_RETURN_IF_ERROR(ClearUnixPath(address, path));
  ServerHandle handle;
  int bound = 0;
  builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &bound);
  handle.server = builder.BuildAndStart();
  // Zero when another process was faster.
  if (handle.server == nullptr || bound == 0) return CannotListen(address, "it is in use");
  // Whatever the umask: the owner may connect and nobody else.
  if (chmod(path.c_str(), 0600) != 0) return CannotListen(address, strerror(errno));
  return handle;
}

absl::StatusOr<ServerHandle> StartTcpServer(grpc::ServerBuilder& builder,
                                            const std::string& address) {
  WL_ASSIGN_OR_RETURN(TcpListeners listeners, ListenTcp(address));
  ServerHandle handle;
  handle.port = listeners.port;
  const std::shared_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor =
      builder.experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          grpc::InsecureServerCredentials());
  handle.server = builder.BuildAndStart();
  if (handle.server == nullptr) return CannotListen(address, "the server does not start");
  handle.accept_loop = std::make_unique<AcceptLoop>(
      std::move(listeners.sockets), [acceptor](int listener, UniqueFd connection) {
        grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters parameters;
        parameters.listener_fd = listener;
        parameters.fd = connection.Release();
        acceptor->HandleNewConnection(&parameters);
      });
  return handle;
}

}  // namespace

absl::Status CheckThreads(int own_count) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int count = std::min(kMaxProbedThreads, 2 * cores + 16) + own_count;
  std::promise<void> go;
  const std::shared_future<void> future = go.get_future().share();
  std::vector<std::thread> threads;
  absl::Status status;
  try {
    while (static_cast<int>(threads.size()) < count) {
      threads.emplace_back([future] { future.wait(); });
    }
  } catch (const std::system_error& error) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("cannot start a thread: ", error.code().message(), " after ", threads.size(),
                     " of ", count, "; a limit on threads, processes or memory is reached"));
  }
  go.set_value();
  for (std::thread& thread : threads) thread.join();
  return status;
}

void ServerHandle::Shutdown(std::chrono::nanoseconds wait) {
  accept_loop.reset();
  server->Shutdown(DeadlineIn(wait));
}

absl::StatusOr<ServerHandle> StartServer(grpc::ServerBuilder& builder, const std::string& address) {
  KeepLibrary();
  // Two servers must never share a port without a word.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  // Clients of OpenChannel ping; the defaults would answer with "too many pings".
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             kKeepaliveMs / 2);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  return absl::StartsWith(address, kUnixPrefix)
             ? StartUnixServer(builder, address,
                               std::string(absl::StripPrefix(address, kUnixPrefix)))
             : StartTcpServer(builder, address);
}

bool IsLoopbackHost(const std::string& host) {
  if (host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

bool IsLocalAddress(absl::string_view address) {
  if (absl::StartsWith(address, kUnixPrefix)) return true;
  const absl::StatusOr<HostPort> parts = SplitHostPort(address);
  return parts.ok() && IsLoopbackHost(parts->host);
}

std::shared_ptr<grpc::Channel> OpenChannel(const std::string& address) {
  KeepLibrary();
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxInternalMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxInternalMessageBytes);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, kConnectMs);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 500);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A stream that meets a dying connection would be replayed on the next one although its first
  // write has been reported as failed; our callers dial again themselves.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Its own connection: a broken one to the same address must not be handed on to the next epoch.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace warpline
