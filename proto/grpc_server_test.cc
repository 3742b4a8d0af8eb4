#include "proto/grpc_server.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "proto/health.grpc.pb.h"

namespace warpline {
namespace {

using ::testing::HasSubstr;

class HealthService final : public grpc::health::v1::Health::Service {
  grpc::Status Check(grpc::ServerContext*, const grpc::health::v1::HealthCheckRequest*,
                     grpc::health::v1::HealthCheckResponse*) override {
    return grpc::Status::OK;
  }
};

grpc::StatusCode CallHealth(const std::string& address) {
  const auto stub = grpc::health::v1::Health::NewStub(OpenChannel(address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
  context.set_wait_for_ready(true);
  grpc::health::v1::HealthCheckResponse response;
  return stub->Check(&context, {}, &response).error_code();
}

class ServerTest : public ::testing::Test {
 protected:
  absl::StatusOr<ServerHandle> Listen(const std::string& address) {
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    return StartServer(builder, address);
  }
  ServerTest() { folder_ = mkdtemp(template_); }
  ~ServerTest() override { std::filesystem::remove_all(folder_); }
  std::string File(const std::string& name) const { return folder_ + "/" + name; }

 private:
  char template_[32] = "/tmp/warpline-test-XXXXXX";
  std::string folder_;
  HealthService service_;
};

TEST_F(ServerTest, AFreePortIsChosenAndReported) {
  for (const char* host : {"127.0.0.1", "localhost", "0.0.0.0", "[::]"}) {
    const absl::StatusOr<ServerHandle> handle = Listen(absl::StrCat(host, ":0"));
    ASSERT_TRUE(handle.ok()) << handle.status();
    EXPECT_GT(handle->port, 0);
    EXPECT_EQ(CallHealth(absl::StrCat("127.0.0.1:", handle->port)), grpc::StatusCode::OK) << host;
  }
}

TEST_F(ServerTest, APortIsNotShared) {
  const absl::StatusOr<ServerHandle> first = Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  for (const char* host : {"127.0.0.1", "0.0.0.0", "localhost"}) {
    const std::string address = absl::StrCat(host, ":", first->port);
    const absl::Status status = Listen(address).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr(address));
    EXPECT_THAT(std::string(status.message()), HasSubstr("in use"));
  }
}

TEST_F(ServerTest, BindsAtOnceAfterAConnectionWasLeft) {
  int port = 0;
  {
    absl::StatusOr<ServerHandle> first = Listen("127.0.0.1:0");
    ASSERT_TRUE(first.ok()) << first.status();
    port = first->port;
    // The server closes first, so the port keeps a connection in TIME_WAIT.
    EXPECT_EQ(CallHealth(absl::StrCat("127.0.0.1:", port)), grpc::StatusCode::OK);
    first->Shutdown(std::chrono::seconds(0));
  }
  EXPECT_TRUE(Listen(absl::StrCat("127.0.0.1:", port)).ok());
}

// gRPC's own listener would be dead for good after this.
TEST_F(ServerTest, ListensOnAfterDescriptorsHaveRunOut) {
  const absl::StatusOr<ServerHandle> handle = Listen("127.0.0.1:0");
  ASSERT_TRUE(handle.ok()) << handle.status();
  const std::string address = absl::StrCat("127.0.0.1:", handle->port);
  UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit tight{.rlim_cur = 128, .rlim_max = old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::vector<UniqueFd> taken;
  while (taken.empty() || taken.back().valid()) taken.emplace_back(dup(STDERR_FILENO));
  sockaddr_in to{.sin_family = AF_INET, .sin_port = htons(static_cast<in_port_t>(handle->port))};
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(connect(client.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  // Nothing comes: it is in the listener's queue.
  pollfd answer{.fd = client.get(), .events = POLLIN};
  EXPECT_EQ(poll(&answer, 1, 300), 0);
  taken.clear();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(poll(&answer, 1, 5000), 1);  // HTTP/2 settings.
  EXPECT_EQ(CallHealth(address), grpc::StatusCode::OK);
}

TEST_F(ServerTest, AddressesThatCannotBeReadAreInvalid) {
  for (const char* address : {"", "localhost", "localhost:", "localhost:x", "127.0.0.1:-1",
                              "127.0.0.1:70000", ":1", "::1:5", "[::1:5", "[::1]", "unix:"}) {
    EXPECT_EQ(Listen(address).status().code(), absl::StatusCode::kInvalidArgument) << address;
  }
  EXPECT_EQ(Listen("no-such-host.invalid:1").status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ServerTest, UnixSocketsServeTheirOwnerWhateverTheUmask) {
  const mode_t old = umask(0777);
  const absl::StatusOr<ServerHandle> handle = Listen("unix:" + File("s"));
  umask(old);
  ASSERT_TRUE(handle.ok()) << handle.status();
  EXPECT_EQ(handle->port, 0);
  struct stat info {};
  ASSERT_EQ(stat(File("s").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(CallHealth("unix:" + File("s")), grpc::StatusCode::OK);
}

TEST_F(ServerTest, AUnixSocketInUseIsLeftAlone) {
  const absl::StatusOr<ServerHandle> first = Listen("unix:" + File("s"));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(Listen("unix:" + File("s")).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(CallHealth("unix:" + File("s")), grpc::StatusCode::OK);
}

TEST_F(ServerTest, AStaleSocketIsReplacedAndAnyOtherFileIsNot) {
  sockaddr_un address{.sun_family = AF_UNIX};
  memcpy(address.sun_path, File("stale").c_str(), File("stale").size() + 1);
  {
    const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
    ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  EXPECT_TRUE(Listen("unix:" + File("stale")).ok());
  std::ofstream(File("file")) << "precious";
  EXPECT_EQ(Listen("unix:" + File("file")).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::filesystem::file_size(File("file")), 8u);
}

TEST_F(ServerTest, AUnixPathHasAtMost107Bytes) {
  const std::string longest = File(std::string(107 - File("").size(), 'x'));
  EXPECT_TRUE(Listen("unix:" + longest).ok());
  EXPECT_EQ(Listen("unix:" + longest + "x").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(IsLocalAddressTest, KnowsLoopbackAndUnixSockets) {
  for (const char* address :
       {"unix:/run/w", "unix:w", "localhost:1", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1"}) {
    EXPECT_TRUE(IsLocalAddress(address)) << address;
  }
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "128.0.0.1:1", "example.org:1",
                              "localhost.example.org:1", "localhost", "", "127.0.0.1"}) {
    EXPECT_FALSE(IsLocalAddress(address)) << address;
  }
}

}  // namespace
}  // namespace warpline
