#include "worker/edge_client.h"

#include <gmock/gmock.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/error_detail.h"
#include "proto/grpc_server.h"
#include "proto/grpc_status.h"
#include "proto/stage_protocol.h"
#include "worker/worker_test_client.h"

namespace warpline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using EdgeServerStream = grpc::ServerReaderWriter<v1::EdgeAck, v1::EdgeMessage>;

// A next stage that does as the test says, one stream after another.
class NextStage final : public v1::Stage::Service {
 public:
  using Behaviour = std::function<grpc::Status(const v1::EdgeHello&, EdgeServerStream&)>;

  explicit NextStage(Behaviour behaviour) : behaviour_(std::move(behaviour)) {
    grpc::ServerBuilder builder;
    builder.RegisterService(this);
    builder.SetMaxReceiveMessageSize(kMaxInternalMessageBytes);
    handle_ = *StartServer(builder, address());
  }
  ~NextStage() override { handle_.server->Shutdown(std::chrono::system_clock::now()); }

  std::string address() const { return "unix:" + folder_.File("next"); }
  // Of all hellos so far; ask once the client's Open has returned.
  std::vector<v1::EdgeKind> kinds() const {
    MutexLock lock(mutex_);
    return kinds_;
  }

  grpc::Status Edge(grpc::ServerContext*, EdgeServerStream* stream) override {
    v1::EdgeMessage hello;
    if (!stream->Read(&hello)) return grpc::Status::CANCELLED;
    {
      MutexLock lock(mutex_);
      kinds_.push_back(hello.hello().kind());
    }
    return behaviour_(hello.hello(), *stream);
  }

 private:
  const Behaviour behaviour_;
  const TempFolder folder_;
  ServerHandle handle_;
  mutable Mutex mutex_;
  std::vector<v1::EdgeKind> kinds_ ABSL_GUARDED_BY(mutex_);
};

// The first thing that was said of the edge's loss.
class Loss {
 public:
  std::function<void(const absl::Status&)> handler() {
    return [this](const absl::Status& status) {
      MutexLock lock(mutex_);
      status_ = status;
      changed_.NotifyAll();
    };
  }
  absl::Status Wait() {
    MutexLock lock(mutex_);
    while (status_.ok()) changed_.Wait(mutex_);
    return status_;
  }

 private:
  Mutex mutex_;
  CondVar changed_;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

EdgeTarget TargetOf(const NextStage& next, v1::EdgeKind kind) {
  return {.address = next.address(),
          .kind = kind,
          .epoch = 9,
          .fingerprint = "beef",
          .at_layer = 4,
          .width = 2,
          .slot_bytes = 64};
}

grpc::Status Admit(EdgeServerStream& stream) {
  v1::EdgeAck ack;
  ack.set_hello_ok(true);
  stream.Write(ack);
  v1::EdgeMessage message;
  while (stream.Read(&message)) {
  }
  return grpc::Status::OK;
}

grpc::Status RefuseShm() {
  return ToGrpc(
      WithDetail(absl::FailedPreconditionError("cannot map"), {.code = "shm_unavailable"}));
}

TEST(EdgeClientTest, SaysHelloAndSendsInOrder) {
  std::vector<v1::EdgeMessage> seen;
  v1::EdgeHello greeting;
  Loss loss;
  {
    NextStage next([&](const v1::EdgeHello& hello, EdgeServerStream& stream) {
      greeting = hello;
      v1::EdgeAck ack;
      ack.set_hello_ok(true);
      stream.Write(ack);
      v1::EdgeMessage message;
      while (seen.size() < 3 && stream.Read(&message)) seen.push_back(message);
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "enough");
    });
    EdgeClient client(TargetOf(next, v1::EDGE_KIND_GRPC), PeerSecret("key"), loss.handler());
    ASSERT_TRUE(client.Open().ok());
    EXPECT_EQ(client.kind(), "grpc");
    ASSERT_TRUE(client.SendOpen({.key = {7, 1}}).ok());
    const auto values = client.Reserve(2);
    ASSERT_TRUE(values.ok());
    (*values)[0] = 1.5f;
    (*values)[1] = -2.f;
    ASSERT_TRUE(
        client.SendStep({.epoch = 9, .step_id = 3, .entries = {{.key = {7, 1}, .token_ids = {5}}}})
            .ok());
    ASSERT_TRUE(client.SendClose({.key = {7, 1}}).ok());
    EXPECT_EQ(loss.Wait().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(client.Reserve(2).status().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_EQ(greeting.protocol_version(), kStageProtocolVersion);
  EXPECT_EQ(greeting.epoch(), 9u);
  EXPECT_EQ(greeting.fingerprint(), "beef");
  EXPECT_EQ(greeting.at_layer(), 4u);
  EXPECT_EQ(greeting.width(), 2u);
  EXPECT_EQ(greeting.slot_bytes(), 64u);
  EXPECT_EQ(greeting.slot_count(), kEdgeSlots);
  EXPECT_EQ(greeting.secret_proof(), PeerSecret("key").Proof(kEdgePurpose, 9));
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_TRUE(seen[0].has_open());
  ASSERT_TRUE(seen[1].has_step());
  EXPECT_EQ(seen[1].step().activations(), std::string("\x00\x00\xc0\x3f\x00\x00\x00\xc0", 8));
  EXPECT_TRUE(seen[2].has_close());
}

TEST(EdgeClientTest, AutoFallsBackToGrpcWhereMemoryCannotBeShared) {
  NextStage next([](const v1::EdgeHello& hello, EdgeServerStream& stream) {
    return hello.kind() == v1::EDGE_KIND_SHM ? RefuseShm() : Admit(stream);
  });
  EdgeClient client(TargetOf(next, v1::EDGE_KIND_AUTO), PeerSecret(), [](const absl::Status&) {});
  ASSERT_TRUE(client.Open().ok());
  EXPECT_EQ(client.kind(), "grpc");
  EXPECT_THAT(next.kinds(), ElementsAre(v1::EDGE_KIND_SHM, v1::EDGE_KIND_GRPC));
}

TEST(EdgeClientTest, ForcedSharedMemoryThatFailsIsAnError) {
  NextStage next([](const v1::EdgeHello&, EdgeServerStream&) { return RefuseShm(); });
  EdgeClient client(TargetOf(next, v1::EDGE_KIND_SHM), PeerSecret(), [](const absl::Status&) {});
  const absl::Status status = client.Open();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot map"));
  EXPECT_THAT(next.kinds(), ElementsAre(v1::EDGE_KIND_SHM));
}

TEST(EdgeClientTest, DialsAgainUntilTheNextStageHasItsAssignment) {
  int refused = 0;
  NextStage next([&](const v1::EdgeHello&, EdgeServerStream& stream) {
    if (refused == 2) return Admit(stream);
    ++refused;
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "no assignment yet");
  });
  EdgeClient client(TargetOf(next, v1::EDGE_KIND_GRPC), PeerSecret(), [](const absl::Status&) {});
  EXPECT_TRUE(client.Open().ok());
  EXPECT_EQ(next.kinds().size(), 3u);
}

TEST(EdgeClientTest, AMismatchEndsTheDialling) {
  NextStage next([](const v1::EdgeHello&, EdgeServerStream&) {
    return grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "width is 2, this stage has 3");
  });
  EdgeClient client(TargetOf(next, v1::EDGE_KIND_GRPC), PeerSecret(), [](const absl::Status&) {});
  EXPECT_THAT(client.Open().ToString(), HasSubstr("width is 2, this stage has 3"));
}

TEST(EdgeClientTest, BreakWakesWhoDialsAndWhoWaitsForACredit) {
  const TempFolder folder;
  EdgeClient nobody({.address = "unix:" + folder.File("nobody"), .slot_bytes = 64}, PeerSecret(),
                    [](const absl::Status&) {});
  absl::Status status;
  std::thread dialling([&] { status = nobody.Open(); });
  nobody.Break(absl::CancelledError("a new epoch begins"));
  dialling.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);

  Loss loss;
  NextStage next([](const v1::EdgeHello&, EdgeServerStream& stream) { return Admit(stream); });
  EdgeClient client(TargetOf(next, v1::EDGE_KIND_SHM), PeerSecret(), loss.handler());
  ASSERT_TRUE(client.Open().ok());
  EXPECT_EQ(client.kind(), "shm");
  for (uint64_t id = 1; id <= kEdgeSlots; ++id) {
    ASSERT_TRUE(client.Reserve(2).ok());
    ASSERT_TRUE(client.SendStep({.epoch = 9, .step_id = id}).ok());
  }
  std::thread waiting([&] { status = client.Reserve(2).status(); });
  client.Break(absl::CancelledError("a new epoch begins"));
  waiting.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(loss.Wait().code(), absl::StatusCode::kCancelled);
}

// Whether the dialler sees the admission or the end first is chance; either way it hears once.
TEST(EdgeClientTest, AnEdgeThatEndsAtOnceIsEitherRefusedOrLost) {
  NextStage next([](const v1::EdgeHello&, EdgeServerStream& stream) {
    v1::EdgeAck ack;
    ack.set_hello_ok(true);
    stream.Write(ack);
    return grpc::Status(grpc::StatusCode::INTERNAL, "gone");
  });
  for (int round = 0; round < 300; ++round) {
    const auto losses = std::make_shared<BoundedQueue<absl::Status>>(2);
    EdgeClient client(TargetOf(next, v1::EDGE_KIND_GRPC), PeerSecret(),
                      [losses](const absl::Status& status) { losses->TryPush(status); });
    if (client.Open().ok()) {
      EXPECT_EQ(losses->Pop()->code(), absl::StatusCode::kInternal);
    } else {
      EXPECT_EQ(losses->PopUntil(Now() + std::chrono::milliseconds(5)), std::nullopt);
    }
  }
}

TEST(EdgeClientTest, AcknowledgementsThatAreNotDueEndTheEdge) {
  Loss loss;
  NextStage next([](const v1::EdgeHello&, EdgeServerStream& stream) {
    v1::EdgeAck hello;
    hello.set_hello_ok(true);
    stream.Write(hello);
    v1::EdgeMessage step;  // Once this has come the client's Open has returned.
    stream.Read(&step);
    v1::EdgeAck ack;
    ack.set_step_id(77);
    stream.Write(ack);
    return Admit(stream);
  });
  EdgeClient client(TargetOf(next, v1::EDGE_KIND_GRPC), PeerSecret(), loss.handler());
  ASSERT_TRUE(client.Open().ok());
  ASSERT_TRUE(client.Reserve(2).ok());
  ASSERT_TRUE(client.SendStep({.epoch = 9, .step_id = 1}).ok());
  EXPECT_EQ(loss.Wait().code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace warpline
