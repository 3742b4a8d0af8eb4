// Whole workers as processes, driven as a coordinator would: right logits over both kinds of edges.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/stage_protocol.h"
#include "worker/worker_test_client.h"

namespace warpline {
namespace {

// Workers of consecutive layers and their control streams, serving.
class Pipeline {
 public:
  Pipeline(const GoldenModel& model, int stage_count, v1::EdgeKind edge) : model_(model) {
    for (int stage = 0; stage < stage_count; ++stage) {
      addresses_.push_back("unix:" + folder_.File(absl::StrCat("w", stage)));
      workers_.push_back(std::make_unique<WorkerProcess>(
          std::vector<std::string>{"-m", model.path, "--listen", addresses_.back(), "-t", "1"}));
    }
    for (int stage = 0; stage < stage_count; ++stage) {
      EXPECT_TRUE(workers_[stage]->WaitReady()) << workers_[stage]->Stderr();
      clients_.push_back(std::make_unique<WorkerClient>(addresses_[stage]));
      controls_.push_back(clients_[stage]->Control());
      const bool last = stage == stage_count - 1;
      v1::ControlRequest assign =
          AssignFor(model, stage, stage_count, model.n_layer * stage / stage_count,
                    model.n_layer * (stage + 1) / stage_count, last ? "" : addresses_[stage + 1]);
      assign.mutable_assign()->set_next_edge(edge);
      EXPECT_TRUE(controls_[stage].Write(assign));
      if (stage == 0) first_ = assign.assign();
    }
    for (ControlStream& control : controls_) {
      const auto serving =
          ReadUntil(control, [](const v1::ControlReply& reply) { return reply.has_serving(); });
      EXPECT_TRUE(serving.has_value());
      if (serving.has_value()) edges_.push_back(serving->serving().edge());
    }
    edge_ = clients_[0]->Edge();
    EXPECT_TRUE(edge_.Write(HelloFor(first_)));
    const auto admitted = edge_.Read();
    EXPECT_TRUE(admitted.has_value() && admitted->hello_ok());
  }

  // What the stages said of their outgoing edges.
  const std::vector<std::string>& edges() const { return edges_; }
  WorkerProcess& worker(int stage) { return *workers_[stage]; }
  ControlStream& control(int stage) { return controls_[stage]; }
  ControlStream& last() { return controls_.back(); }

  void Open(uint64_t id, uint32_t slot, int64_t logits_from) {
    v1::EdgeMessage message;
    v1::OpenMessage& open = *message.mutable_open();
    open.set_sequence_id(id);
    open.set_generation(1);
    open.set_kv_slot(slot);
    open.set_logits_from(logits_from);
    open.mutable_sampling()->set_top_p(1);
    open.mutable_sampling()->set_repetition_penalty(1);
    EXPECT_TRUE(edge_.Write(message));
  }

  // One entry of `count` golden tokens from `position` on; pages are slot * 10 and up.
  void Run(uint64_t id, uint32_t slot, int position, int count, bool sample = false) {
    const auto begin = model_.tokens.begin() + position;
    EXPECT_TRUE(Send(id, slot, position, std::vector<int32_t>(begin, begin + count), sample));
    EXPECT_EQ(ReadAck(), next_step_ - 1);
  }

  // The same with any tokens, without waiting for the acknowledgement; false when the edge has
  // ended.
  bool Send(uint64_t id, uint32_t slot, int position, const std::vector<int32_t>& tokens,
            bool sample = false) {
    const int count = static_cast<int>(tokens.size());
    v1::EdgeMessage message;
    v1::StepMessage& step = *message.mutable_step();
    step.set_epoch(first_.epoch());
    step.set_step_id(next_step_++);
    step.set_kind(count == 1 ? v1::STEP_MESSAGE_KIND_DECODE : v1::STEP_MESSAGE_KIND_PROMPT);
    v1::StepEntryMessage& entry = *step.add_entries();
    entry.set_sequence_id(id);
    entry.set_generation(1);
    entry.set_kv_slot(slot);
    entry.set_position(static_cast<uint64_t>(position));
    for (const int32_t token : tokens) entry.add_token_ids(token);
    for (int page = (position + 63) / 64; page * 64 < position + count; ++page) {
      entry.add_new_pages(slot * 10 + static_cast<uint32_t>(page));
    }
    entry.set_sample(sample);
    return edge_.Write(message);
  }

  // The step that is acknowledged next, 0 when the edge has ended.
  uint64_t ReadAck() { return edge_.Read().value_or(v1::EdgeAck()).step_id(); }
  // How the edge into the first stage ends.
  grpc::Status EndOfEdge() { return edge_.End(); }

  void Close(uint64_t id, uint32_t slot) {
    v1::EdgeMessage message;
    message.mutable_close()->set_sequence_id(id);
    message.mutable_close()->set_generation(1);
    message.mutable_close()->set_kv_slot(slot);
    EXPECT_TRUE(edge_.Write(message));
  }

  // Logits of all golden tokens, fed in chunks.
  std::vector<float> Logits(int chunk) {
    Open(1, 0, 0);
    const int count = static_cast<int>(model_.tokens.size());
    for (int begin = 0; begin < count; begin += chunk) {
      Run(1, 0, begin, std::min(chunk, count - begin));
    }
    Close(1, 0);
    std::vector<float> logits;
    while (const auto reply = last().Read()) {
      if (reply->has_closed()) return logits;
      EXPECT_FALSE(reply->has_failure()) << reply->failure().message();
      if (!reply->has_logits()) continue;
      EXPECT_EQ(reply->logits().first_position() * model_.n_vocab, logits.size());
      const size_t begin = logits.size();
      logits.resize(begin + reply->logits().values().size() / sizeof(float));
      memcpy(logits.data() + begin, reply->logits().values().data(),
             reply->logits().values().size());
    }
    return {};
  }

 private:
  const GoldenModel& model_;
  TempFolder folder_;
  std::vector<std::string> addresses_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  std::vector<std::unique_ptr<WorkerClient>> clients_;
  std::vector<ControlStream> controls_;
  std::vector<std::string> edges_;
  v1::Assign first_;
  EdgeStream edge_;
  uint64_t next_step_ = 1;
};

double Nmse(const std::vector<float>& values, const std::vector<float>& expected) {
  double difference = 0;
  double total = 0;
  for (size_t index = 0; index < expected.size(); ++index) {
    difference += std::pow(double{values[index]} - double{expected[index]}, 2);
    total += std::pow(double{expected[index]}, 2);
  }
  return difference / total;
}

TEST(PipelineTest, LogitsAreRightAndTheSameForEverySplitEdgeAndChunk) {
  for (const char* name : {"llama-plain", "qwen3moe-plain"}) {
    const GoldenModel model = ReadGolden(name);
    std::vector<float> first;
    struct Setting {
      int stages;
      v1::EdgeKind edge;
      int chunk;
    };
    for (const Setting& setting :
         {Setting{1, v1::EDGE_KIND_AUTO, 64}, Setting{1, v1::EDGE_KIND_AUTO, 1},
          Setting{2, v1::EDGE_KIND_SHM, 7}, Setting{2, v1::EDGE_KIND_GRPC, 7},
          Setting{2, v1::EDGE_KIND_AUTO, 64}}) {
      SCOPED_TRACE(absl::StrCat(name, " stages ", setting.stages, " edge ",
                                static_cast<int>(setting.edge), " chunk ", setting.chunk));
      Pipeline pipeline(model, setting.stages, setting.edge);
      const std::vector<float> logits = pipeline.Logits(setting.chunk);
      ASSERT_EQ(logits.size(), model.logits.size());
      EXPECT_LE(Nmse(logits, model.logits), 1e-10);
      if (first.empty()) first = logits;
      EXPECT_EQ(memcmp(logits.data(), first.data(), logits.size() * sizeof(float)), 0);
      EXPECT_EQ(pipeline.edges().back(), "");
      if (setting.stages > 1) {
        EXPECT_EQ(pipeline.edges()[0], setting.edge == v1::EDGE_KIND_GRPC ? "grpc" : "shm");
      }
    }
  }
}

TEST(PipelineTest, SamplesTheMostLikelyToken) {
  const GoldenModel model = ReadGolden("llama-plain");
  Pipeline pipeline(model, 2, v1::EDGE_KIND_AUTO);
  const int count = static_cast<int>(model.tokens.size());
  pipeline.Open(1, 3, -1);
  pipeline.Run(1, 3, 0, count - 1);
  pipeline.Run(1, 3, count - 1, 1, /*sample=*/true);
  const auto prompt =
      ReadUntil(pipeline.last(), [](const auto& reply) { return reply.has_result(); });
  ASSERT_TRUE(prompt.has_value());
  EXPECT_EQ(prompt->result().tokens_size(), 0);
  const auto drawn =
      ReadUntil(pipeline.last(), [](const auto& reply) { return reply.has_result(); });
  ASSERT_TRUE(drawn.has_value());
  ASSERT_EQ(drawn->result().tokens_size(), 1);
  const float* const row = &model.logits[static_cast<size_t>((count - 1) * model.n_vocab)];
  EXPECT_EQ(drawn->result().tokens(0).token_id(), std::max_element(row, row + model.n_vocab) - row);
}

// A next stage that stands still takes three steps and no more. The fourth then waits in the first
// stage, however fast that is, and with two others it has all credits of the edge before it.
TEST(PipelineTest, StepsBeyondTheCreditsAreRefused) {
  const GoldenModel model = ReadGolden("llama-plain");
  Pipeline pipeline(model, 2, v1::EDGE_KIND_SHM);
  pipeline.Open(7, 0, -1);
  pipeline.worker(1).Signal(SIGSTOP);
  siginfo_t stopped{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pipeline.worker(1).pid()), &stopped, WSTOPPED), 0);
  const std::vector<int32_t> tokens(64, 1);
  for (int step = 1; step <= 7; ++step) {
    ASSERT_TRUE(pipeline.Send(7, 0, (step - 1) * 64, tokens)) << step;
    if (step <= 3) {
      ASSERT_EQ(pipeline.ReadAck(), static_cast<uint64_t>(step));
    }
  }
  const grpc::Status status = pipeline.EndOfEdge();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(status.error_message(), "edge message: step 7 came without a credit, 3 are under way");
  EXPECT_FALSE(pipeline.worker(0).WaitExit(0).has_value());
}

TEST(PipelineTest, AKilledNextStageIsNoticedAndItsNeighbourLives) {
  const GoldenModel model = ReadGolden("llama-plain");
  Pipeline pipeline(model, 2, v1::EDGE_KIND_SHM);
  pipeline.Open(1, 0, -1);
  pipeline.Run(1, 0, 0, 4);
  pipeline.worker(1).Signal(SIGKILL);
  const auto failure =
      ReadUntil(pipeline.control(0), [](const auto& reply) { return reply.has_failure(); });
  ASSERT_TRUE(failure.has_value());
  EXPECT_EQ(failure->failure().sequence_id(), 1u);
  EXPECT_EQ(failure->failure().code(), static_cast<int>(absl::StatusCode::kUnavailable));
  EXPECT_EQ(pipeline.last().End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(pipeline.worker(0).WaitExit(0).has_value());
}

TEST(PipelineTest, AKilledFirstStageLeavesTheNextOneWaiting) {
  const GoldenModel model = ReadGolden("llama-plain");
  Pipeline pipeline(model, 2, v1::EDGE_KIND_SHM);
  pipeline.worker(0).Signal(SIGKILL);
  EXPECT_EQ(pipeline.control(0).End().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(pipeline.worker(1).WaitExit(0).has_value());
  // It takes the next epoch with the weights it has.
  v1::ControlRequest assign = AssignFor(model, 1, 2, model.n_layer / 2, model.n_layer);
  assign.mutable_assign()->set_epoch(101);
  ASSERT_TRUE(pipeline.control(1).Write(assign));
  const auto serving = ReadUntil(pipeline.control(1), [](const auto& reply) {
    EXPECT_FALSE(reply.has_loading() && reply.loading().fraction() < 1);
    return reply.has_serving();
  });
  ASSERT_TRUE(serving.has_value());
  EXPECT_EQ(serving->serving().epoch(), 101u);
}

}  // namespace
}  // namespace warpline
