// For tests that open and close channels with callbacks: gRPC 1.51 may abort when the last user of
// its callback threads goes while they still run. Programs have a server or a channel for as long
// as they live; this keeps a server with a callback service beside the test's own.
#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <memory>

namespace warpline {
namespace {

class CallbackServer : public testing::Environment {
 public:
  void SetUp() override {
    grpc::ServerBuilder builder;
    builder.RegisterCallbackGenericService(&service_);
    server_ = builder.BuildAndStart();
  }

 private:
  grpc::CallbackGenericService service_;
  std::unique_ptr<grpc::Server> server_;
};

const testing::Environment* const kCallbackServer =
    testing::AddGlobalTestEnvironment(new CallbackServer);

}  // namespace
}  // namespace warpline
