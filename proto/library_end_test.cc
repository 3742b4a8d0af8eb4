// The last user of gRPC leaves at once, also after messages that did not fit into a socket.
#include <grpc/grpc.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <string>

#include "base/clock.h"
#include "proto/grpc_server.h"
#include "proto/health.grpc.pb.h"

namespace warpline {
namespace {

using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

class HealthService final : public Health::CallbackService {
  grpc::ServerUnaryReactor* Check(grpc::CallbackServerContext* context, const HealthCheckRequest*,
                                  HealthCheckResponse*) override {
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

bool CallWithLargeRequest(Health::Stub& stub) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  HealthCheckRequest request;
  request.set_service(std::string(16 << 20, 'x'));
  HealthCheckResponse response;
  std::promise<bool> ended;
  stub.async()->Check(&context, &request, &response,
                      [&ended](const grpc::Status& status) { ended.set_value(status.ok()); });
  return ended.get_future().get();
}

// One server and one channel of a process that has no others. Returns how long they took to leave.
double SecondsToLeave(const std::string& address) {
  SteadyTime leaving;
  {
    HealthService service;
    grpc::ServerBuilder builder;
    builder.RegisterService(&service);
    builder.SetMaxReceiveMessageSize(kMaxInternalMessageBytes);
    absl::StatusOr<ServerHandle> handle = StartServer(builder, address);
    EXPECT_TRUE(handle.ok()) << handle.status();
    const auto stub = Health::NewStub(OpenChannel(address));
    for (int call = 0; call < 3; ++call) EXPECT_TRUE(CallWithLargeRequest(*stub));
    leaving = Now();
    handle->Shutdown(std::chrono::seconds(0));
  }
  return SecondsSince(leaving);
}

// Where the last user shuts the library down, a round waits ten seconds now and then.
TEST(LibraryEndTest, NobodyWaitsForItsPollers) {
  char folder[] = "/tmp/warpline-test-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const std::string address = std::string("unix:") + folder + "/s";
  for (int round = 0; round < 40; ++round) EXPECT_LT(SecondsToLeave(address), 2) << round;
  EXPECT_NE(grpc_is_initialized(), 0);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace warpline
