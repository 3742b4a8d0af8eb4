#include "worker/stage_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "proto/stage_protocol.h"
#include "worker/fakes.h"

namespace warpline {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsSupersetOf;
using ::testing::Not;

constexpr int kWidth = 2;
constexpr uint64_t kEpoch = 5;

// An executor among fakes. What it did is in the log, complete once Finish has returned.
class Stage {
 public:
  Stage(bool is_first, bool is_last, FakeModel::Options model = {},
        const NgramReader* reader = nullptr) {
    model.is_first = is_first;
    model.is_last = is_last;
    assignment_.epoch = kEpoch;
    assignment_.stage = is_first ? 0 : 1;
    assignment_.stage_count = assignment_.stage + (is_last ? 1 : 2);
    if (!is_last) outlet_ = std::make_shared<FakeOutlet>(log_);
    executor_ = std::make_unique<StageExecutor>(StageExecutor::Options{
        .residual_width = kWidth,
        .n_vocab = model.n_vocab,
        .load =
            [this, model](const StageAssignment&, const std::function<void(double)>&) {
              log_.Add("load");
              return std::make_unique<FakeModel>(log_, model);
            },
        .stop = [this](int code) { log_.Add(absl::StrCat("stop ", code)); },
        .ngram_reader = [reader] { return reader; },
        .edge_loss_limit = std::chrono::milliseconds(1)});
    Begin();
  }

  void Begin() { EXPECT_TRUE(executor_->Begin(assignment_, control_, outlet_).ok()); }
  void BeginEpoch(uint64_t epoch) {
    assignment_.epoch = epoch;
    Begin();
  }
  void Open(uint64_t id, int slot, SamplingParams sampling = {.temperature = 0},
            int64_t logits_from = -1) {
    Submit(OpenSequence{
        .key = {id, 1}, .kv_slot = slot, .sampling = sampling, .logits_from = logits_from});
  }
  void Close(uint64_t id, int slot) { Submit(CloseSequence{.key = {id, 1}, .kv_slot = slot}); }
  void Run(uint64_t step_id, std::vector<StepEntry> entries, std::vector<float> rows = {}) {
    IncomingStep incoming{.edge_slot = static_cast<int>(step_id % 3)};
    incoming.step = {.epoch = kEpoch, .step_id = step_id, .entries = std::move(entries)};
    incoming.payload.assign(reinterpret_cast<const char*>(rows.data()),
                            rows.size() * sizeof(float));
    Submit(std::move(incoming));
  }
  // Drains the inbox: no sleeps, no polling.
  std::vector<std::string> Finish() {
    executor_.reset();
    return log_.lines();
  }
  // Finish without the lines of bringing up and acknowledgements.
  std::vector<std::string> FinishBrief() {
    std::vector<std::string> brief;
    for (const std::string& line : Finish()) {
      if (line != "load" && line.rfind("serving", 0) != 0 && line.rfind("ack", 0) != 0 &&
          line.rfind("reset", 0) != 0 && line != "open edge") {
        brief.push_back(line);
      }
    }
    return brief;
  }

  StageExecutor& executor() { return *executor_; }
  FakeOutlet& outlet() { return *outlet_; }
  FakeControl& control() { return *control_; }
  CallLog& log() { return log_; }

 private:
  void Submit(std::variant<OpenSequence, IncomingStep, CloseSequence> item) {
    EXPECT_TRUE(
        executor_->Submit({.epoch = kEpoch, .inlet = inlet_, .item = std::move(item)}).ok());
  }

  CallLog log_;
  StageAssignment assignment_;
  std::shared_ptr<FakeInlet> inlet_ = std::make_shared<FakeInlet>(log_);
  std::shared_ptr<FakeControl> control_ = std::make_shared<FakeControl>(log_);
  std::shared_ptr<FakeOutlet> outlet_;
  std::unique_ptr<StageExecutor> executor_;
};

StepEntry Entry(uint64_t id, int slot, int64_t position, std::vector<int32_t> tokens,
                bool sample = false) {
  return {.key = {id, 1},
          .kv_slot = slot,
          .position = position,
          .token_ids = std::move(tokens),
          .sample = sample};
}

TEST(StageExecutorTest, AppliesOpenStepsAndCloseInOrderAndHandsThemOn) {
  Stage stage(true, false);
  stage.Open(7, 2);
  stage.Run(1, {Entry(7, 2, 0, {3, 4})});
  stage.Run(2, {Entry(7, 2, 2, {5})});
  stage.Close(7, 2);
  EXPECT_THAT(stage.Finish(), ElementsAre("load", "open edge", "serving 5 shm", "reset 2",
                                          "send open 7", "forward 7@0x2", "ack 1 slot 1",
                                          "send 7@0x2 values 1 1 1 1", "forward 7@2x1",
                                          "ack 2 slot 2", "send 7@2x1 values 1 1", "send close 7"));
}

TEST(StageExecutorTest, OnlyStageSamplesAndConfirmsTheClose) {
  Stage stage(true, true);
  stage.Open(7, 0);
  stage.Run(1, {Entry(7, 0, 0, {3, 4}, false)});
  stage.Run(2, {Entry(7, 0, 2, {5}, true)});
  stage.Close(7, 0);
  EXPECT_THAT(stage.FinishBrief(), ElementsAre("forward 7@0x2", "result 1 []", "forward 7@2x1",
                                               "result 2 [7:6]", "closed 7 slot 0"));
}

TEST(StageExecutorTest, AcknowledgesIdsBeforeTheDrawAndRowsAfterIt) {
  for (const bool is_first : {true, false}) {
    Stage stage(is_first, true);
    stage.Open(7, 0);
    stage.Run(1, {Entry(7, 0, 0, {3}, true)},
              is_first ? std::vector<float>() : std::vector<float>{1, 1});
    std::vector<std::string> lines = stage.Finish();
    lines.erase(lines.begin(), std::find(lines.begin(), lines.end(), "forward 7@0x1"));
    if (is_first) {
      EXPECT_THAT(lines, ElementsAre("forward 7@0x1", "ack 1 slot 1", "result 1 [7:4]"));
    } else {
      EXPECT_THAT(lines, ElementsAre("forward 7@0x1", "result 1 [7:4]", "ack 1 slot 1"));
    }
  }
}

TEST(StageExecutorTest, FeedsWhatItDrewBeforeTheCoordinatorKnowsIt) {
  // Where the token after the last has occurred, the penalty prefers the lowest id that has not:
  // the draw after 1 tells that the history has the 0 and the 1 that were drawn.
  Stage stage(true, true);
  stage.Open(7, 0, {.temperature = 0, .frequency_penalty = 2, .penalty_window = -1});
  stage.Open(8, 1);
  stage.Run(1, {Entry(7, 0, 0, {2, 4, 3}, true), Entry(8, 1, 0, {6}, true)});
  stage.Run(2,
            {Entry(8, 1, 1, {kTokenDrawnBefore}, true), Entry(7, 0, 3, {kTokenDrawnBefore}, true)});
  stage.Run(3, {Entry(7, 0, 4, {kTokenDrawnBefore}, true)});
  EXPECT_THAT(stage.FinishBrief(),
              ElementsAre("forward 7@0x3,8@0x1", "result 1 [7:0 8:7]", "forward 8@1x1,7@3x1",
                          "result 2 [8:0 7:1]", "forward 7@4x1", "result 3 [7:5]"));
}

TEST(StageExecutorTest, PenaltiesSeeAllEarlierTokens) {
  // After token 4 the fake prefers 5. With 5 among the prompt a strong penalty puts it below all
  // others; the lowest id that does not occur, 0, wins the tie.
  Stage stage(true, true);
  stage.Open(7, 0, {.temperature = 0, .frequency_penalty = 2, .penalty_window = -1});
  stage.Run(1, {Entry(7, 0, 0, {5, 4}, true)});
  stage.Run(2, {Entry(7, 0, 2, {0}, true)});
  // After token 0 it prefers 1, which does not occur.
  stage.Run(3, {Entry(7, 0, 3, {4}, true)});
  EXPECT_THAT(stage.FinishBrief(),
              ElementsAre("forward 7@0x2", "result 1 [7:0]", "forward 7@2x1", "result 2 [7:1]",
                          "forward 7@3x1", "result 3 [7:1]"));
}

TEST(StageExecutorTest, ReadsTheLogitsOfARowWhoseDrawGoesBeyondTheCandidates) {
  // Top-k asks for more than a device names; so cold a draw takes the best of them.
  Stage stage(true, true, {.n_vocab = 1000});
  stage.Open(7, 0);
  stage.Open(8, 1, {.temperature = 0.01f, .top_k = 999});
  stage.Open(9, 2, {.temperature = 0.01f, .top_k = 20});
  stage.Run(1, {Entry(7, 0, 0, {3}, true), Entry(8, 1, 0, {4}, true), Entry(9, 2, 0, {5}, true)});
  EXPECT_THAT(stage.FinishBrief(), ElementsAre("forward 7@0x1,8@0x1,9@0x1", "edited logits 1",
                                               "result 1 [7:4 8:5 9:6]"));
}

TEST(StageExecutorTest, LogitsThatCannotBeReadEndTheProcess) {
  Stage stage(true, true,
              {.n_vocab = 1000, .read_failure = absl::InternalError("the device is gone")});
  stage.Open(7, 0, {.top_k = 999});
  stage.Run(1, {Entry(7, 0, 0, {3}, true)});
  EXPECT_THAT(stage.FinishBrief(), IsSupersetOf({"end INTERNAL", "stop 1"}));
}

TEST(StageExecutorTest, DrawsForMoreRowsThanTheModelTakesAtOnce) {
  Stage stage(true, true, {.n_vocab = 100});
  std::vector<StepEntry> entries;
  std::vector<std::string> tokens;
  for (int id = 0; id < 70; ++id) {
    // Every tenth forbids its best token; the lowest id of the others is 0.
    SamplingParams sampling{.temperature = 0};
    if (id % 10 == 0) sampling.logit_bias = {{id + 1, -std::numeric_limits<float>::infinity()}};
    stage.Open(id, id, sampling);
    entries.push_back(Entry(id, id, 0, {id}, true));
    tokens.push_back(absl::StrCat(id, ":", id % 10 == 0 ? 0 : id + 1));
  }
  stage.Run(1, entries);
  EXPECT_THAT(stage.Finish(),
              Contains(absl::StrCat("result 1 [", absl::StrJoin(tokens, " "), "]")));
}

TEST(StageExecutorTest, SendsLogitsFromTheWantedPositionInPieces) {
  // 300,000 values a row: 2 MiB hold one row.
  Stage stage(true, true, {.n_vocab = 300000});
  stage.Open(7, 0, {}, /*logits_from=*/1);
  stage.Run(1, {Entry(7, 0, 0, {1, 2, 3})});
  EXPECT_THAT(
      stage.FinishBrief(),
      ElementsAre("forward 7@0x3", "compute logits of 2", "logits 7 from 1 rows 1 bytes 1200000",
                  "logits 7 from 2 rows 1 bytes 1200000", "result 1 []"));
}

TEST(StageExecutorTest, LogitPiecesHoldAsManyRowsAsTheModelTakes) {
  Stage stage(true, true);
  stage.Open(7, 0, {}, /*logits_from=*/0);
  stage.Run(1, {Entry(7, 0, 0, std::vector<int32_t>(40, 1))});
  EXPECT_THAT(
      stage.FinishBrief(),
      ElementsAre("forward 7@0x40", "compute logits of 32", "logits 7 from 0 rows 32 bytes 1024",
                  "compute logits of 8", "logits 7 from 32 rows 8 bytes 256", "result 1 []"));
}

TEST(StageExecutorTest, ComputesNoLogitsForACoordinatorThatHasLeft) {
  Stage stage(true, true);
  stage.control().Leave();
  stage.Open(7, 0, {}, /*logits_from=*/0);
  stage.Run(1, {Entry(7, 0, 0, std::vector<int32_t>(200, 1))});
  EXPECT_THAT(stage.FinishBrief(),
              ElementsAre("forward 7@0x200", "compute logits of 32", "result 1 []"));
}

TEST(StageExecutorTest, LogitsThatAreNotFiniteEndTheirEntryAndNoOther) {
  // Two rows in a piece: the first piece is right, the second is not, the third is not sent.
  Stage stage(true, true, {.n_vocab = 200000, .nan_after_token = 5});
  stage.Open(7, 0, {}, /*logits_from=*/0);
  stage.Open(8, 1, {}, /*logits_from=*/0);
  stage.Run(1, {Entry(7, 0, 0, {1, 2, 3, 5, 1, 2}), Entry(8, 1, 0, {4})});
  EXPECT_THAT(
      stage.FinishBrief(),
      ElementsAre("forward 7@0x6,8@0x1", "compute logits of 6",
                  "logits 7 from 0 rows 2 bytes 1600000", "failure 7 code 13 numerical_error",
                  "compute logits of 1", "logits 8 from 0 rows 1 bytes 800000", "result 1 []"));
}

TEST(StageExecutorTest, NonFiniteActivationsFailOnlyTheirEntry) {
  Stage stage(false, false);
  stage.Open(7, 0);
  stage.Open(8, 1);
  stage.Open(9, 2);
  const float inf = std::numeric_limits<float>::infinity();
  stage.Run(1, {Entry(7, 0, 0, {1}), Entry(8, 1, 0, {1, 1}), Entry(9, 2, 0, {1})},
            {10, 20, 30, -inf, 50, 60, 70, 80});
  // The failed one is dropped until its close, the others go on.
  stage.Run(2, {Entry(7, 0, 1, {1}), Entry(8, 1, 2, {1})}, {1, 2, 3, 4});
  stage.Close(8, 1);
  stage.Open(8, 1);
  EXPECT_THAT(
      stage.FinishBrief(),
      ElementsAre("send open 7", "send open 8", "send open 9", "failure 8 code 13 numerical_error",
                  "forward 7@0x1,9@0x1", "send 7@0x1,9@0x1 values 11 21 71 81", "forward 7@1x1",
                  "send 7@1x1 values 2 3", "send close 8", "send open 8"));
}

TEST(StageExecutorTest, NonFiniteLogitsFailOnlyTheirEntry) {
  Stage stage(true, true, {.nan_after_token = 3});
  stage.Open(7, 0);
  stage.Open(8, 1);
  stage.Run(1, {Entry(7, 0, 0, {3}, true), Entry(8, 1, 0, {4}, true)});
  EXPECT_THAT(
      stage.FinishBrief(),
      ElementsAre("forward 7@0x1,8@0x1", "failure 7 code 13 numerical_error", "result 1 [8:5]"));
}

TEST(StageExecutorTest, AStepWithoutRunnableEntriesIsAnsweredHere) {
  Stage stage(false, false);
  stage.Run(1, {Entry(7, 0, 0, {1})}, {1, 2});
  EXPECT_THAT(stage.Finish(), IsSupersetOf({"result 1 []", "ack 1 slot 1"}));
  EXPECT_THAT(stage.log().lines(), Not(Contains("forward 7@0x1")));
}

TEST(StageExecutorTest, ARefusedStepFailsItsSequencesAndTheStageGoesOn) {
  Stage stage(true, false, {.fail_step = 1, .failure = absl::InvalidArgumentError("page 9 of 4")});
  stage.Open(7, 0);
  stage.Open(8, 1);
  stage.Run(1, {Entry(7, 0, 0, {1})});
  stage.Run(2, {Entry(7, 0, 1, {1}), Entry(8, 1, 0, {1})});
  EXPECT_THAT(stage.FinishBrief(),
              ElementsAre("send open 7", "send open 8", "forward 7@0x1", "failure 7 code 3 ",
                          "result 1 []", "forward 8@0x1", "send 8@0x1 values 1 1"));
}

TEST(StageExecutorTest, ADeviceFaultEndsTheProcessAndNothingRunsAfterIt) {
  Stage stage(true, false, {.fail_step = 1, .failure = absl::InternalError("device lost")});
  stage.Open(7, 0);
  stage.Run(1, {Entry(7, 0, 0, {1})});
  stage.Run(2, {Entry(7, 0, 1, {1})});
  EXPECT_THAT(stage.FinishBrief(),
              ElementsAre("send open 7", "forward 7@0x1", "end INTERNAL", "stop 1"));
}

// The executor only looks at its counters.
class CountedReader final : public NgramReader {
 public:
  explicit CountedReader(const NgramCounters& counters) : counters_(counters) {}
  absl::Status Fetch(absl::Span<const int64_t>, absl::Span<float>) override {
    return absl::OkStatus();
  }
  void Prefetch(absl::Span<const int64_t>) override {}
  NgramCounters counters() const override { return counters_; }

 private:
  const NgramCounters counters_;
};

TEST(StageExecutorTest, ATableThatCannotBeReadAnyMoreEndsTheProcess) {
  const CountedReader failed_often({.errors = 9, .consecutive_errors = 8});
  Stage stage(true, false, {.fail_step = 1, .failure = absl::DataLossError("short read")},
              &failed_often);
  stage.Open(7, 0);
  stage.Run(1, {Entry(7, 0, 0, {1})});
  EXPECT_THAT(stage.FinishBrief(), IsSupersetOf({"failure 7 code 15 ", "end DATA_LOSS", "stop 1"}));
  const CountedReader failed_seldom({.errors = 9, .consecutive_errors = 7});
  Stage other(true, false, {.fail_step = 1, .failure = absl::DataLossError("short read")},
              &failed_seldom);
  other.Open(7, 0);
  other.Run(1, {Entry(7, 0, 0, {1})});
  const std::vector<std::string> lines = other.FinishBrief();
  EXPECT_THAT(lines, IsSupersetOf({"failure 7 code 15 ", "result 1 []"}));
  EXPECT_THAT(lines, Not(Contains("stop 1")));
}

TEST(StageExecutorTest, ReportsTheReaderOfTheTable) {
  const CountedReader reader({.rows_requested = 6,
                              .cache_hits = 5,
                              .rows_read = 4,
                              .mode_changes = 3,
                              .errors = 2,
                              .slow_batches = 1,
                              .mode = PleIo::kMmap});
  Stage stage(true, false, {}, &reader);
  stage.log().WaitFor(
      "ple rows_requested: 6 cache_hits: 5 rows_read: 4 mode_changes: 3 errors: 2 slow_batches: 1 "
      "mode: \"mmap\"");
}

TEST(StageExecutorTest, StepsThatWaitAreToldOfBeforeTheirTime) {
  const CountedReader reader({});
  Stage stage(true, true, {}, &reader);
  stage.log().WaitFor("serving 5 ");
  stage.Open(7, 0);
  for (int step = 0; step < 6; ++step) stage.Run(step + 1, {Entry(7, 0, step, {1})});
  const std::vector<std::string> lines = stage.FinishBrief();
  // How many were waiting is a matter of time; each was told of at most once, and before it ran.
  for (int step = 0; step < 6; ++step) {
    const std::string entry = absl::StrCat(" 7@", step, "x1");
    const auto told = std::find(lines.begin(), lines.end(), "prefetch" + entry);
    const auto ran = std::find(lines.begin(), lines.end(), "forward" + entry);
    ASSERT_NE(ran, lines.end()) << entry;
    EXPECT_LE(std::count(lines.begin(), lines.end(), "prefetch" + entry), 1) << entry;
    if (told != lines.end()) {
      EXPECT_LT(told, ran) << entry;
    }
  }
}

TEST(StageExecutorTest, ANewEpochKeepsTheWeightsAndForgetsTheSequences) {
  Stage stage(true, true);
  stage.Open(7, 0);
  stage.BeginEpoch(kEpoch + 1);
  // Still of the old edge: dropped.
  stage.Run(1, {Entry(7, 0, 0, {1}, true)});
  EXPECT_THAT(stage.Finish(),
              ElementsAre("load", "serving 5 ", "reset 0", "reset all", "loaded", "serving 6 "));
}

TEST(StageExecutorTest, WhatComesAfterAStopIsCancelledNotRefusedAsTooMuch) {
  Stage stage(true, false);
  stage.executor().Stop();
  const absl::Status status =
      stage.executor().Submit({.epoch = kEpoch, .item = CloseSequence{.key = {7, 1}}});
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
}

TEST(StageExecutorTest, TheEdgesLossWakesTheWaitForACredit) {
  Stage stage(true, false);
  stage.Open(7, 0);
  stage.outlet().WithholdCredits();
  stage.Run(1, {Entry(7, 0, 0, {1})});
  stage.log().WaitFor("waiting for a credit");
  stage.outlet().Break(absl::UnavailableError("killed"));
  EXPECT_THAT(stage.FinishBrief(), ElementsAre("send open 7", "waiting for a credit",
                                               "failure 7 code 14 ", "result 1 []"));
}

TEST(StageExecutorTest, ALostEdgeFailsOpenSequencesAndInTheEndTheStage) {
  Stage stage(true, false);
  stage.Open(7, 0);
  stage.log().WaitFor("send open 7");
  stage.executor().EdgeLostHandler(kEpoch - 1)(absl::UnavailableError("of an older epoch"));
  stage.executor().EdgeLostHandler(kEpoch)(absl::UnavailableError("killed"));
  stage.log().WaitFor("stop 1");
  EXPECT_THAT(stage.FinishBrief(),
              ElementsAre("send open 7", "failure 7 code 14 ", "end UNAVAILABLE", "stop 1"));
}

}  // namespace
}  // namespace warpline
