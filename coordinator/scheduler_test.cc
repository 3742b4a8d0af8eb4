#include "coordinator/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace warpline {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

SchedulableSequence Reading(int64_t prompt, int64_t scheduled = 0) {
  return {.prompt_end = prompt,
          .scheduled_count = scheduled,
          .token_count = prompt,
          .max_chunk_rows = 1 << 20};
}

// Its latest token waits to be fed.
SchedulableSequence Decoding(int64_t tokens) {
  return {.prompt_end = 1,
          .scheduled_count = tokens - 1,
          .token_count = tokens,
          .max_chunk_rows = 1 << 20};
}

// "P0:4" or "D0,2"; "-" for nothing.
std::string Text(const std::optional<ChosenStep>& step) {
  if (!step.has_value()) return "-";
  if (step->kind == StepKind::kPrompt) {
    return absl::StrCat("P", step->rows[0].index, ":", step->rows[0].row_count);
  }
  return absl::StrCat("D",
                      absl::StrJoin(step->rows, ",", [](std::string* out, const ChosenRows& rows) {
                        absl::StrAppend(out, rows.index);
                      }));
}

// Runs the choices against a pipeline in which each step takes as many ticks as there are stages: a
// plain model of what the engine does, with a log of every choice. A single stage knows what it
// draws.
class Simulation {
 public:
  Simulation(std::vector<SchedulableSequence> sequences, SchedulerLimits limits)
      : sequences_(std::move(sequences)), limits_(limits) {}

  // Sends all that may be sent now.
  std::vector<std::string> Fill() {
    std::vector<std::string> log;
    while (const auto step = Choose()) {
      ++last_step_;
      Sent sent{.kind = step->kind};
      for (const ChosenRows& rows : step->rows) {
        SchedulableSequence& sequence = sequences_[rows.index];
        sequence.scheduled_count += rows.row_count;
        sequence.last_step_id = last_step_;
        if (AwaitsToken(sequence)) sent.drawn_for.push_back(rows.index);
      }
      ++counts_.steps;
      if (step->kind == StepKind::kDecode) ++counts_.decode_steps;
      counts_.last_kind = step->kind;
      in_flight_.push_back(std::move(sent));
      log.push_back(Text(step));
    }
    return log;
  }

  // The oldest step ends: sequences whose last row it carried get a token.
  void EndOldest() {
    --counts_.steps;
    if (in_flight_.front().kind == StepKind::kDecode) --counts_.decode_steps;
    for (const int index : in_flight_.front().drawn_for) ++sequences_[index].token_count;
    in_flight_.pop_front();
  }

  std::vector<SchedulableSequence>& sequences() { return sequences_; }

 private:
  static bool AwaitsToken(const SchedulableSequence& sequence) {
    return sequence.scheduled_count >= sequence.token_count;
  }
  std::optional<ChosenStep> Choose() {
    for (SchedulableSequence& sequence : sequences_) {
      sequence.may_run_ahead = limits_.stage_count == 1 && AwaitsToken(sequence);
    }
    return ChooseStep(sequences_, counts_, limits_);
  }

  struct Sent {
    StepKind kind = StepKind::kPrompt;
    std::vector<int> drawn_for;
  };

  std::vector<SchedulableSequence> sequences_;
  const SchedulerLimits limits_;
  std::deque<Sent> in_flight_;
  InFlight counts_;
  uint64_t last_step_ = 0;
};

TEST(SchedulerTest, ChunksOfOnePromptFollowWithoutWaiting) {
  Simulation run({Reading(10)}, {.stage_count = 3, .max_chunk_rows = 4});
  EXPECT_THAT(run.Fill(), ElementsAre("P0:4", "P0:4", "P0:2"));
  run.EndOldest();
  EXPECT_THAT(run.Fill(), IsEmpty()) << "the first token is not known yet";
  run.EndOldest();
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("D0"));
}

TEST(SchedulerTest, AtMostOneStepMoreThanStagesIsInFlight) {
  Simulation run({Reading(100)}, {.stage_count = 2, .max_chunk_rows = 4});
  EXPECT_THAT(run.Fill(), ElementsAre("P0:4", "P0:4", "P0:4"));
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("P0:4"));
}

TEST(SchedulerTest, OnOneStageTheNextMicroBatchWaitsBehindTheOneThatComputes) {
  Simulation run({Decoding(5), Decoding(9), Decoding(3)}, {.stage_count = 1});
  EXPECT_THAT(run.Fill(), ElementsAre("D0,1,2", "D0,1,2"));
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("D0,1,2"));
}

TEST(SchedulerTest, DecodingSequencesSplitIntoAsManyMicroBatchesAsStages) {
  Simulation run({Decoding(5), Decoding(5), Decoding(5), Decoding(5), Decoding(5)},
                 {.stage_count = 2});
  EXPECT_THAT(run.Fill(), ElementsAre("D0,1,2", "D3,4"));
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("D0,1,2"));
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("D3,4"));
}

TEST(SchedulerTest, ANewcomerJoinsTheMicroBatches) {
  Simulation run({Decoding(5), Decoding(5), Reading(4)}, {.stage_count = 2, .max_chunk_rows = 4});
  EXPECT_THAT(run.Fill(), ElementsAre("P2:4", "D0,1")) << "a place is left for the newcomer";
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("D2"));
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("D0,1"));
}

TEST(SchedulerTest, ANewcomerSharesTheOneMicroBatchFromItsFirstTokenOn) {
  Simulation run({Decoding(5), Reading(8)}, {.stage_count = 1, .max_chunk_rows = 4});
  EXPECT_THAT(run.Fill(), ElementsAre("P1:4", "D0"));
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("P1:4"));
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("D0,1")) << "its first token is still being drawn";
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("D0,1"));
}

TEST(SchedulerTest, NeverMoreRowsThanAStepMayHave) {
  Simulation run({Decoding(2), Decoding(2), Decoding(2)}, {.stage_count = 1, .max_decode_rows = 2});
  EXPECT_THAT(run.Fill(), ElementsAre("D0,1", "D2,0")) << "who waited longest goes first";
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("D1,0"));
}

TEST(SchedulerTest, PromptAndDecodeStepsAlternate) {
  for (const int stages : {1, 2, 4}) {
    Simulation run({Decoding(5), Reading(100000)}, {.stage_count = stages, .max_chunk_rows = 4});
    std::vector<std::string> log = run.Fill();
    int without_decode = 0;
    for (int round = 0; round < 200; ++round) {
      run.EndOldest();
      for (const std::string& step : run.Fill()) {
        without_decode = step[0] == 'D' ? 0 : without_decode + 1;
        // A decode step comes back after those that were in flight with it.
        ASSERT_LE(without_decode, stages + 1) << stages << " stages, round " << round;
      }
    }
    EXPECT_GT(run.sequences()[0].token_count, 200 / (stages + 2));
    EXPECT_GT(run.sequences()[1].scheduled_count, 200 / 2);
  }
}

TEST(SchedulerTest, PromptsTakeTurns) {
  Simulation run({Reading(12), Reading(4), Reading(8)}, {.stage_count = 5, .max_chunk_rows = 4});
  EXPECT_THAT(run.Fill(), ElementsAre("P0:4", "P1:4", "P2:4", "P0:4", "P2:4", "P0:4"));
}

TEST(SchedulerTest, BlockedSequencesAndShorterChunksAreRespected) {
  SchedulableSequence blocked = Reading(8);
  blocked.blocked = true;
  SchedulableSequence narrow = Reading(8);
  narrow.max_chunk_rows = 3;
  Simulation run({blocked, narrow}, {.stage_count = 4, .max_chunk_rows = 4});
  EXPECT_THAT(run.Fill(), ElementsAre("P1:3", "P1:3", "P1:2"));
}

TEST(SchedulerTest, KnownTokensGoByPipelinedDecodeStepsWhenAsked) {
  // Evaluation with decode_from 3: rows 3.. are known, yet each takes a decode step of its own.
  SchedulableSequence sequence{
      .prompt_end = 3, .scheduled_count = 0, .token_count = 6, .max_chunk_rows = 512};
  Simulation run({sequence}, {.stage_count = 2, .max_chunk_rows = 2});
  EXPECT_THAT(run.Fill(), ElementsAre("P0:2", "P0:1", "D0"));
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("D0"));
  run.EndOldest();
  EXPECT_THAT(run.Fill(), IsEmpty()) << "as many decode steps as stages are under way";
  run.EndOldest();
  EXPECT_THAT(run.Fill(), ElementsAre("D0"));
}

}  // namespace
}  // namespace warpline
