// What a worker does when it is started wrongly, dialled wrongly, or left alone.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <csignal>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "proto/peer_secret.h"
#include "worker/worker_test_client.h"

namespace warpline {
namespace {

using ::testing::HasSubstr;

constexpr char kModel[] = WARPLINE_TEST_DATA "/families/llama-plain.gguf";
constexpr int kSoonMs = 2000;

bool IsServing(const v1::ControlReply& reply) { return reply.has_serving(); }

// One worker that listens, and the golden model it has.
class WorkerTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"-m", kModel, "--listen", address_, "-t", "1"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    worker_ = std::make_unique<WorkerProcess>(arguments);
    ASSERT_TRUE(worker_->WaitReady());
    client_ = std::make_unique<WorkerClient>(address_);
  }
  // Serving as the only stage of a pipeline.
  ControlStream Serve() {
    ControlStream control = client_->Control();
    EXPECT_TRUE(control.Write(assign_));
    EXPECT_TRUE(ReadUntil(control, IsServing).has_value());
    return control;
  }
  EdgeStream OpenEdge() {
    EdgeStream edge = client_->Edge();
    EXPECT_TRUE(edge.Write(HelloFor(assign_.assign())));
    EXPECT_TRUE(edge.Read().has_value());
    return edge;
  }

  const GoldenModel model_ = ReadGolden("llama-plain");
  const TempFolder folder_;
  const std::string address_ = "unix:" + folder_.File("worker");
  v1::ControlRequest assign_ = AssignFor(model_, 0, 1, 0, model_.n_layer);
  std::unique_ptr<WorkerProcess> worker_;
  std::unique_ptr<WorkerClient> client_;
};

struct BadAssign {
  const char* name;
  std::function<void(v1::Assign&)> spoil;
  const char* says;
};

TEST_F(WorkerTest, RefusesAssignmentsThatDoNotFitAndWaitsForTheNext) {
  Start();
  const std::vector<BadAssign> cases = {
      {"version", [](auto& assign) { assign.set_protocol_version(77); },
       "protocol_version is 77, this worker has 2"},
      {"layer count", [](auto& assign) { assign.set_layer_count(9); },
       "layer_count is 9, this worker has 2"},
      {"width", [](auto& assign) { assign.set_width(7); }, "width is 7, this worker has "},
      {"empty range", [](auto& assign) { assign.set_layer_end(0); }, "layer_end is 0"},
      {"range beyond the model", [](auto& assign) { assign.set_layer_end(3); }, "layer_end is 3"},
      {"range without the first layer", [](auto& assign) { assign.set_layer_begin(1); },
       "layer_begin is 1"},
      {"range without the last layer", [](auto& assign) { assign.set_layer_end(1); },
       "layer_end is 1"},
      {"next stage of the last", [](auto& assign) { assign.set_next_address("unix:/x"); },
       "next_address is 'unix:/x'"},
      {"stage", [](auto& assign) { assign.set_stage(1); }, "stage is 1"},
      {"slots", [](auto& assign) { assign.set_slot_count(0); }, "slot_count is 0"},
      {"pages", [](auto& assign) { assign.set_page_count(uint64_t{1} << 40); },
       "page_count is 1099511627776"},
      {"rows", [](auto& assign) { assign.set_max_chunk_rows(1 << 30); }, "max_chunk_rows is"},
      {"epoch", [](auto& assign) { assign.set_epoch(0); }, "epoch is 0"},
      {"cache type", [](auto& assign) { assign.set_kv_type(static_cast<v1::KvCacheType>(9)); },
       "kv_type is 9"}};
  for (const BadAssign& one : cases) {
    SCOPED_TRACE(one.name);
    ControlStream control = client_->Control();
    v1::ControlRequest request = assign_;
    one.spoil(*request.mutable_assign());
    ASSERT_TRUE(control.Write(request));
    const grpc::Status status = control.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
    EXPECT_THAT(status.error_message(), HasSubstr(one.says));
  }
  ControlStream control = client_->Control();
  ASSERT_TRUE(control.Write(assign_));
  const auto hello = control.Read();
  ASSERT_TRUE(hello.has_value() && hello->has_hello());
  EXPECT_EQ(hello->hello().epoch(), assign_.assign().epoch());
  EXPECT_EQ(hello->hello().fingerprint(), model_.fingerprint);
  EXPECT_EQ(hello->hello().layer_end(), 2u);
  EXPECT_EQ(hello->hello().width(), static_cast<uint32_t>(model_.residual_width));
  EXPECT_EQ(hello->hello().slot_bytes(), 64u * 4 * static_cast<uint32_t>(model_.residual_width));
  EXPECT_EQ(hello->hello().pid(), worker_->pid());
  EXPECT_TRUE(ReadUntil(control, IsServing).has_value());
}

TEST_F(WorkerTest, EndsWhenItHasAnotherModelFileThanItsCoordinator) {
  Start();
  ControlStream control = client_->Control();
  assign_.mutable_assign()->set_fingerprint("beef");
  ASSERT_TRUE(control.Write(assign_));
  const grpc::Status status = control.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(),
              HasSubstr("fingerprint is beef, this worker has " + model_.fingerprint));
  EXPECT_EQ(worker_->WaitExit(kSoonMs), 3);
}

TEST_F(WorkerTest, ASecondCoordinatorIsRefusedAndTheFirstGoesOn) {
  Start();
  ControlStream first = Serve();
  ControlStream second = client_->Control();
  v1::ControlRequest assign = assign_;
  assign.mutable_assign()->set_epoch(500);
  ASSERT_TRUE(second.Write(assign));
  EXPECT_EQ(second.End().error_code(), grpc::StatusCode::ALREADY_EXISTS);
  assign.mutable_assign()->set_epoch(101);
  ASSERT_TRUE(first.Write(assign));
  const auto serving = ReadUntil(first, IsServing);
  ASSERT_TRUE(serving.has_value());
  EXPECT_EQ(serving->serving().epoch(), 101u);
}

TEST_F(WorkerTest, AnOldEpochIsRefused) {
  Start();
  ControlStream control = Serve();
  ASSERT_TRUE(control.Write(assign_));
  const grpc::Status status = control.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("epoch is 100, this worker has had 100"));
}

TEST_F(WorkerTest, AControlStreamMustBeginWithAnAssignment) {
  Start();
  ControlStream empty = client_->Control();
  empty.stream->WritesDone();
  EXPECT_EQ(empty.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ControlStream unset = client_->Control();
  ASSERT_TRUE(unset.Write(v1::ControlRequest()));
  EXPECT_EQ(unset.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  ControlStream shutdown = client_->Control();
  v1::ControlRequest request;
  request.mutable_shutdown();
  ASSERT_TRUE(shutdown.Write(request));
  EXPECT_EQ(shutdown.End().error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  Serve();
}

struct BadHello {
  const char* name;
  std::function<void(v1::EdgeHello&)> spoil;
  grpc::StatusCode code;
  const char* says;
};

TEST_F(WorkerTest, RefusesEdgesThatDoNotFitAndTakesTheRightOne) {
  Start();
  EdgeStream early = client_->Edge();
  ASSERT_TRUE(early.Write(HelloFor(assign_.assign())));
  EXPECT_EQ(early.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  ControlStream control = Serve();
  constexpr auto kRefused = grpc::StatusCode::FAILED_PRECONDITION;
  const std::vector<BadHello> cases = {
      {"version", [](auto& hello) { hello.set_protocol_version(77); }, kRefused,
       "protocol_version is 77, this stage has 2"},
      {"old epoch", [](auto& hello) { hello.set_epoch(99); }, kRefused,
       "epoch is 99, this stage has 100"},
      {"epoch to come", [](auto& hello) { hello.set_epoch(101); }, grpc::StatusCode::UNAVAILABLE,
       "epoch is 101, this stage was assigned 100"},
      {"fingerprint", [](auto& hello) { hello.set_fingerprint("beef"); }, kRefused,
       "fingerprint is beef"},
      {"border", [](auto& hello) { hello.set_at_layer(1); }, kRefused,
       "at_layer is 1, this stage has 0"},
      {"width", [](auto& hello) { hello.set_width(7); }, kRefused, "width is 7"},
      {"slot size", [](auto& hello) { hello.set_slot_bytes(4); }, kRefused, "slot_bytes is 4"},
      {"no slots", [](auto& hello) { hello.set_slot_count(0); }, kRefused, "slot_count is 0"},
      {"many slots", [](auto& hello) { hello.set_slot_count(1000); }, kRefused,
       "slot_count is 1000"},
      {"kind", [](auto& hello) { hello.set_kind(v1::EDGE_KIND_SHM); }, kRefused, "kind is 1"}};
  for (const BadHello& one : cases) {
    SCOPED_TRACE(one.name);
    EdgeStream edge = client_->Edge();
    v1::EdgeMessage hello = HelloFor(assign_.assign());
    one.spoil(*hello.mutable_hello());
    ASSERT_TRUE(edge.Write(hello));
    const grpc::Status status = edge.End();
    EXPECT_EQ(status.error_code(), one.code);
    EXPECT_THAT(status.error_message(), HasSubstr(one.says));
  }
  EdgeStream empty = client_->Edge();
  empty.stream->WritesDone();
  EXPECT_EQ(empty.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EdgeStream right = OpenEdge();
  EdgeStream second = client_->Edge();
  ASSERT_TRUE(second.Write(HelloFor(assign_.assign())));
  EXPECT_EQ(second.End().error_code(), grpc::StatusCode::ALREADY_EXISTS);
}

TEST_F(WorkerTest, SharedMemoryThatCannotBeMappedIsRefused) {
  Start();
  // As the last of two stages.
  assign_ = AssignFor(model_, 1, 2, 1, 2);
  ControlStream control = Serve();
  EdgeStream edge = client_->Edge();
  v1::EdgeMessage hello = HelloFor(assign_.assign());
  hello.mutable_hello()->set_kind(v1::EDGE_KIND_SHM);
  hello.mutable_hello()->set_shm_pid(worker_->pid());
  hello.mutable_hello()->set_shm_fd(2);
  hello.mutable_hello()->set_shm_token(std::string(16, 'x'));
  ASSERT_TRUE(edge.Write(hello));
  const grpc::Status status = edge.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("shared memory of the edge"));
  OpenEdge();
}

// Each of these ends its stream, is counted, and leaves a worker that serves the next epoch.
TEST_F(WorkerTest, HostileEdgeMessagesEndTheirStreamAlone) {
  Start();
  ControlStream control = Serve();
  v1::EdgeMessage step;
  step.mutable_step()->set_epoch(100);
  step.mutable_step()->set_step_id(1);
  step.mutable_step()->add_entries()->set_sequence_id(77);
  step.mutable_step()->mutable_entries(0)->add_token_ids(1);
  v1::EdgeMessage rows = step;
  rows.mutable_step()->clear_entries();
  v1::EdgeMessage close;
  close.mutable_close()->set_sequence_id(77);
  v1::EdgeMessage open;
  open.mutable_open()->set_kv_slot(1000);
  const std::vector<v1::EdgeMessage> messages = {
      step, rows, close, open, v1::EdgeMessage(), HelloFor(assign_.assign())};
  uint64_t epoch = 100;
  for (const v1::EdgeMessage& message : messages) {
    EdgeStream edge = OpenEdge();
    ASSERT_TRUE(edge.Write(message));
    EXPECT_EQ(edge.End().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    assign_.mutable_assign()->set_epoch(++epoch);
    ASSERT_TRUE(control.Write(assign_));
    ASSERT_TRUE(ReadUntil(control, IsServing).has_value());
  }
  const auto counted = ReadUntil(control, [&](const v1::ControlReply& reply) {
    return reply.has_counters() && reply.counters().refused_messages() == messages.size();
  });
  EXPECT_TRUE(counted.has_value());
}

// Whoever reads that the stage serves may dial its edge at once, in every epoch.
TEST_F(WorkerTest, LetsTheEdgeInAsSoonAsItServes) {
  Start();
  ControlStream control = Serve();
  for (uint64_t epoch = 101; epoch <= 1000; ++epoch) {
    assign_.mutable_assign()->set_epoch(epoch);
    ASSERT_TRUE(control.Write(assign_));
    ASSERT_TRUE(ReadUntil(control, IsServing).has_value());
    EdgeStream edge = client_->Edge();
    ASSERT_TRUE(edge.Write(HelloFor(assign_.assign())));
    const auto ack = edge.Read();
    ASSERT_TRUE(ack.has_value() && ack->hello_ok()) << edge.End().error_message();
  }
}

TEST_F(WorkerTest, WrongSecretsAreUnauthenticated) {
  const std::string path = folder_.File("secret");
  std::ofstream(path) << "open sesame\n";
  Start({"--secret-file", path});
  for (const std::string& proof :
       {std::string(), std::string(32, 'x'), PeerSecret("other").Proof(kControlPurpose, 100),
        PeerSecret("open sesame").Proof(kEdgePurpose, 100),
        PeerSecret("open sesame").Proof(kControlPurpose, 99)}) {
    ControlStream control = client_->Control();
    assign_.mutable_assign()->set_secret_proof(proof);
    ASSERT_TRUE(control.Write(assign_));
    EXPECT_EQ(control.End().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  const PeerSecret secret("open sesame");
  assign_.mutable_assign()->set_secret_proof(secret.Proof(kControlPurpose, 100));
  ControlStream control = Serve();
  EdgeStream edge = client_->Edge();
  v1::EdgeMessage hello = HelloFor(assign_.assign());
  ASSERT_TRUE(edge.Write(hello));
  EXPECT_EQ(edge.End().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  hello.mutable_hello()->set_secret_proof(secret.Proof(kEdgePurpose, 100));
  EdgeStream right = client_->Edge();
  ASSERT_TRUE(right.Write(hello));
  const auto ack = right.Read();
  EXPECT_TRUE(ack.has_value() && ack->hello_ok());
}

TEST_F(WorkerTest, EndsWithItsCoordinator) {
  Start();
  {
    ControlStream control = Serve();
    control.context->TryCancel();
    control.End();
  }
  EXPECT_EQ(worker_->WaitExit(kSoonMs), 0) << worker_->Stderr();
}

TEST_F(WorkerTest, EndsOnShutdown) {
  Start();
  ControlStream control = Serve();
  v1::ControlRequest request;
  request.mutable_shutdown();
  ASSERT_TRUE(control.Write(request));
  EXPECT_EQ(worker_->WaitExit(kSoonMs), 0) << worker_->Stderr();
}

TEST_F(WorkerTest, EndsOnSigtermWithItsStreamsOpen) {
  Start();
  ControlStream control = Serve();
  EdgeStream edge = OpenEdge();
  worker_->Signal(SIGTERM);
  EXPECT_EQ(worker_->WaitExit(kSoonMs), 0) << worker_->Stderr();
  struct stat info {};
  EXPECT_NE(stat(folder_.File("worker").c_str(), &info), 0) << "the socket file is left behind";
}

TEST_F(WorkerTest, EndsWhenItsSupervisorIsGone) {
  Start();
  worker_->CloseWatch();
  EXPECT_EQ(worker_->WaitExit(kSoonMs), 0) << worker_->Stderr();
}

struct BadStart {
  const char* name;
  std::vector<std::string> arguments;
  int exit_code;
  const char* says;
};

TEST(WorkerStartTest, SaysWhyItDoesNotStart) {
  const TempFolder folder;
  std::ofstream(folder.File("empty"));
  std::ofstream(folder.File("page.gguf")) << "<!DOCTYPE html>";
  const std::string long_path = folder.File(std::string(100, 'x'));
  const std::vector<BadStart> cases = {
      {"no model", {}, 2, "--model"},
      {"unknown option", {"-m", kModel, "--frobnicate"}, 2, "--frobnicate"},
      {"threads", {"-m", kModel, "-t", "4k"}, 2, "0 to 1024"},
      {"back end", {"-m", kModel, "--backend", "abacus"}, 2, "abacus"},
      {"device", {"-m", kModel, "--backend", "cuda", "--device", "x"}, 2, "0 to 1023"},
      {"no such device", {"-m", kModel, "--backend", "cuda", "--device", "1023"}, 1, ""},
      {"tiles", {"-m", kModel, "--backend", "cuda", "--tiles", "mosaic"}, 2, "mosaic"},
      {"tiles without a card", {"-m", kModel, "--tiles", "mma"}, 2, "--tiles mma needs --backend"},
      {"a model that needs more of its device",
       {"-m", WARPLINE_TEST_DATA "/families/qwen35-plain.gguf", "--backend", "cuda"},
       1,
       "no Gated DeltaNet layers"},
      {"absent file", {"-m", folder.File("none.gguf")}, 3, "none.gguf"},
      {"no GGUF", {"-m", folder.File("page.gguf")}, 3, "page.gguf"},
      {"folder", {"-m", folder.File("")}, 3, "regular file"},
      {"port", {"-m", kModel, "--listen", "127.0.0.1:70000"}, 2, "70000"},
      {"address", {"-m", kModel, "--listen", "somewhere"}, 2, "somewhere"},
      {"path too long", {"-m", kModel, "--listen", "unix:" + long_path}, 2, "at most 107"},
      {"file in the way",
       {"-m", kModel, "--listen", "unix:" + folder.File("empty")},
       1,
       "no socket"},
      {"all addresses without a secret",
       {"-m", kModel, "--listen", "0.0.0.0:0"},
       2,
       "--secret-file"},
      {"absent secret", {"-m", kModel, "--secret-file", folder.File("none")}, 2, "none"},
      {"empty secret", {"-m", kModel, "--secret-file", folder.File("empty")}, 2, "is empty"}};
  for (const BadStart& one : cases) {
    SCOPED_TRACE(one.name);
    WorkerProcess worker(one.arguments);
    EXPECT_EQ(worker.WaitExit(), one.exit_code);
    EXPECT_THAT(worker.Stderr(), HasSubstr(one.says));
  }
}

TEST(WorkerStartTest, APortInUseIsNamed) {
  const UniqueFd taken(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  ASSERT_EQ(bind(taken.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(taken.get(), 1), 0);
  socklen_t length = sizeof(address);
  ASSERT_EQ(getsockname(taken.get(), reinterpret_cast<sockaddr*>(&address), &length), 0);
  const std::string port = absl::StrCat(ntohs(address.sin_port));
  WorkerProcess worker({"-m", kModel, "--listen", "127.0.0.1:" + port});
  EXPECT_EQ(worker.WaitExit(), 1);
  EXPECT_THAT(worker.Stderr(), HasSubstr("127.0.0.1:" + port));
  EXPECT_THAT(worker.Stderr(), HasSubstr("in use"));
}

TEST(WorkerStartTest, TwoWorkersDoNotShareASocketButADeadOnesIsReplaced) {
  const TempFolder folder;
  const std::vector<std::string> arguments = {"-m", kModel, "--listen",
                                              "unix:" + folder.File("worker")};
  WorkerProcess first(arguments);
  ASSERT_TRUE(first.WaitReady());
  WorkerProcess second(arguments);
  EXPECT_EQ(second.WaitExit(), 1);
  EXPECT_THAT(second.Stderr(), HasSubstr("in use"));
  first.Signal(SIGKILL);
  EXPECT_EQ(first.WaitExit(), -SIGKILL);
  WorkerProcess third(arguments);
  EXPECT_TRUE(third.WaitReady()) << third.Stderr();
}

}  // namespace
}  // namespace warpline
