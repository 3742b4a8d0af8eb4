#include "worker/step_proto.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "proto/stage_protocol.h"

namespace warpline {
namespace {

using ::testing::HasSubstr;

constexpr int kWidth = 4;
constexpr EdgeLimits kLimits{.epoch = 3,
                             .slot_count = 2,
                             .page_count = 3,
                             .max_context = 150,
                             .max_chunk_rows = 70,
                             .width = kWidth,
                             .n_vocab = 100,
                             .edge_slot_count = 3,
                             .payload = Payload::kBytes};

v1::OpenMessage Open(uint64_t id, uint32_t generation, uint32_t slot) {
  v1::OpenMessage open;
  open.set_sequence_id(id);
  open.set_generation(generation);
  open.set_kv_slot(slot);
  open.set_logits_from(-1);
  return open;
}

v1::CloseMessage Close(uint64_t id, uint32_t generation, uint32_t slot) {
  v1::CloseMessage close;
  close.set_sequence_id(id);
  close.set_generation(generation);
  close.set_kv_slot(slot);
  return close;
}

void AddEntry(v1::StepMessage& step, uint64_t id, uint32_t slot, uint64_t position, int rows,
              std::vector<uint32_t> pages) {
  v1::StepEntryMessage& entry = *step.add_entries();
  entry.set_sequence_id(id);
  entry.set_generation(1);
  entry.set_kv_slot(slot);
  entry.set_position(position);
  for (int row = 0; row < rows; ++row) entry.add_token_ids(row);
  for (const uint32_t page : pages) entry.add_new_pages(page);
  step.mutable_activations()->append(static_cast<size_t>(rows) * kWidth * 4, '\0');
}

// A step that is right for an edge where sequence 7 generation 1 has slot 1 and nothing ran.
v1::StepMessage GoodStep() {
  v1::StepMessage step;
  step.set_epoch(3);
  step.set_step_id(5);
  AddEntry(step, 7, 1, 0, 65, {2, 0});
  return step;
}

EdgeReader OpenReader(const EdgeLimits& limits = kLimits) {
  EdgeReader reader(limits);
  EXPECT_TRUE(reader.Open(Open(7, 1, 1)).ok());
  return reader;
}

TEST(EdgeReaderTest, ConvertsAGoodStep) {
  EdgeReader reader = OpenReader();
  v1::StepMessage message = GoodStep();
  message.mutable_entries(0)->set_sample(true);
  message.set_edge_slot(2);
  const float value = 1.5f;
  message.mutable_activations()->replace(4, 4, reinterpret_cast<const char*>(&value), 4);
  const absl::StatusOr<IncomingStep> incoming = reader.TakeStep(message);
  ASSERT_TRUE(incoming.ok()) << incoming.status();
  EXPECT_EQ(incoming->edge_slot, 2);
  EXPECT_EQ(incoming->step.epoch, 3u);
  EXPECT_EQ(incoming->step.step_id, 5u);
  EXPECT_EQ(incoming->step.kind, StepKind::kPrompt);
  ASSERT_EQ(incoming->step.entries.size(), 1u);
  const StepEntry& entry = incoming->step.entries[0];
  EXPECT_EQ(entry.key, (SequenceKey{7, 1}));
  EXPECT_EQ(entry.kv_slot, 1);
  EXPECT_EQ(entry.position, 0);
  EXPECT_EQ(entry.token_ids.size(), 65u);
  EXPECT_EQ(entry.token_ids[64], 64);
  EXPECT_EQ(entry.new_pages, (std::vector<int32_t>{2, 0}));
  EXPECT_TRUE(entry.sample);
  ASSERT_EQ(RowsOf(incoming->payload).size(), 65u * kWidth);
  EXPECT_EQ(RowsOf(incoming->payload)[1], 1.5f);
}

TEST(EdgeReaderTest, ATokenMayBeLeftToTheOnlyStageThatDrewOne) {
  const struct {
    bool draws, sampled, decode, taken;
  } cases[] = {{true, true, true, true},
               {false, true, true, false},
               {true, false, true, false},
               {true, true, false, false}};
  for (const auto& one : cases) {
    EdgeLimits limits = kLimits;
    limits.draws = one.draws;
    EdgeReader reader = OpenReader(limits);
    v1::StepMessage first = GoodStep();
    first.mutable_entries(0)->set_sample(one.sampled);
    ASSERT_TRUE(reader.TakeStep(first).ok());
    v1::StepMessage next;
    next.set_epoch(3);
    next.set_step_id(6);
    if (one.decode) next.set_kind(v1::STEP_MESSAGE_KIND_DECODE);
    AddEntry(next, 7, 1, 65, 1, {});
    next.mutable_entries(0)->set_token_ids(0, kTokenDrawnBefore);
    const absl::StatusOr<IncomingStep> incoming = reader.TakeStep(next);
    EXPECT_EQ(incoming.ok(), one.taken) << incoming.status();
    if (!one.taken) {
      EXPECT_THAT(std::string(incoming.status().message()), HasSubstr("entry.token_ids is -1"));
    }
  }
}

TEST(EdgeReaderTest, TakesABiasForEachTokenAndNoMore) {
  constexpr int kManyTokens = 10000;
  EdgeLimits limits = kLimits;
  limits.n_vocab = kManyTokens;
  v1::OpenMessage message = Open(7, 1, 1);
  for (int id = 0; id < kManyTokens; ++id) {
    message.mutable_sampling()->add_bias_ids(id);
    message.mutable_sampling()->add_bias_values(-1);
  }
  const absl::StatusOr<OpenSequence> open = EdgeReader(limits).Open(message);
  ASSERT_TRUE(open.ok()) << open.status();
  EXPECT_EQ(open->sampling.logit_bias.size(), kManyTokens);
  message.mutable_sampling()->add_bias_ids(0);
  message.mutable_sampling()->add_bias_values(-1);
  EXPECT_THAT(std::string(EdgeReader(limits).Open(message).status().message()),
              HasSubstr("at most 10000"));
}

TEST(EdgeReaderTest, MessagesSurviveTheRoundTrip) {
  const OpenSequence open{.key = {7, 9},
                          .kv_slot = 1,
                          .sampling = {.temperature = 0.5f,
                                       .top_k = 40,
                                       .top_p = 0.9f,
                                       .min_p = 0.1f,
                                       .repetition_penalty = 1.1f,
                                       .presence_penalty = 0.2f,
                                       .frequency_penalty = 0.3f,
                                       .penalty_window = -1,
                                       .seed = uint64_t{1} << 63,
                                       .logit_bias = {{5, -HUGE_VALF}, {6, 2.f}}},
                          .logits_from = 12};
  EdgeReader reader(kLimits);
  const absl::StatusOr<OpenSequence> read = reader.Open(ToProto(open).open());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->key, open.key);
  EXPECT_EQ(read->kv_slot, 1);
  EXPECT_EQ(read->logits_from, 12);
  EXPECT_EQ(read->sampling.temperature, 0.5f);
  EXPECT_EQ(read->sampling.top_k, 40);
  EXPECT_EQ(read->sampling.top_p, 0.9f);
  EXPECT_EQ(read->sampling.min_p, 0.1f);
  EXPECT_EQ(read->sampling.repetition_penalty, 1.1f);
  EXPECT_EQ(read->sampling.presence_penalty, 0.2f);
  EXPECT_EQ(read->sampling.frequency_penalty, 0.3f);
  EXPECT_EQ(read->sampling.penalty_window, -1);
  EXPECT_EQ(read->sampling.seed, uint64_t{1} << 63);
  EXPECT_EQ(read->sampling.logit_bias, open.sampling.logit_bias);

  const Step step{.epoch = 3,
                  .step_id = 4,
                  .kind = StepKind::kDecode,
                  .entries = {{.key = {7, 9},
                               .kv_slot = 1,
                               .position = 0,
                               .token_ids = {42},
                               .new_pages = {1},
                               .sample = true}}};
  v1::EdgeMessage message = ToProto(step, 2);
  message.mutable_step()->set_activations(std::string(kWidth * 4, '\0'));
  const absl::StatusOr<IncomingStep> incoming = reader.TakeStep(*message.mutable_step());
  ASSERT_TRUE(incoming.ok()) << incoming.status();
  EXPECT_EQ(incoming->edge_slot, 2);
  EXPECT_EQ(incoming->step.kind, StepKind::kDecode);
  ASSERT_EQ(incoming->step.entries.size(), 1u);
  EXPECT_EQ(incoming->step.entries[0].token_ids, (std::vector<int32_t>{42}));
  EXPECT_EQ(incoming->step.entries[0].new_pages, (std::vector<int32_t>{1}));
  EXPECT_TRUE(incoming->step.entries[0].sample);

  const absl::StatusOr<CloseSequence> close =
      reader.Close(ToProto(CloseSequence{.key = {7, 9}, .kv_slot = 1}).close());
  ASSERT_TRUE(close.ok()) << close.status();
  EXPECT_EQ(close->key, (SequenceKey{7, 9}));
}

struct BadStep {
  const char* name;
  std::function<void(v1::StepMessage&)> spoil;
  const char* says;
};

class BadStepTest : public ::testing::TestWithParam<BadStep> {};

TEST_P(BadStepTest, IsRefusedAndNamed) {
  EdgeReader reader = OpenReader();
  v1::StepMessage message = GoodStep();
  GetParam().spoil(message);
  const absl::Status status = reader.TakeStep(message).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.ToString(), HasSubstr(GetParam().says));
}

INSTANTIATE_TEST_SUITE_P(
    All, BadStepTest,
    ::testing::Values(
        BadStep{"Epoch", [](auto& step) { step.set_epoch(2); }, "step.epoch is 2, expected 3"},
        BadStep{"NoRows", [](auto& step) { step.clear_entries(); }, "rows of the step is 0"},
        BadStep{"EmptyEntry",
                [](auto& step) {
                  AddEntry(step, 7, 1, 65, 0, {});
                  step.mutable_entries()->SwapElements(0, 1);
                },
                "expected"},
        BadStep{"TooManyRows",
                [](auto& step) {
                  step.clear_entries();
                  step.clear_activations();
                  AddEntry(step, 7, 1, 0, 71, {0, 1});
                },
                "rows of the step is 71, expected 1 to 70"},
        BadStep{"FewerBytes", [](auto& step) { step.mutable_activations()->pop_back(); },
                "is 1039, expected 1040 for 65 rows of width 4"},
        BadStep{"MoreBytes", [](auto& step) { step.mutable_activations()->push_back('x'); },
                "is 1041, expected 1040"},
        BadStep{"NoBytes", [](auto& step) { step.clear_activations(); }, "is 0, expected 1040"},
        BadStep{"EdgeSlot", [](auto& step) { step.set_edge_slot(3); },
                "edge_slot is 3, expected less than 3"},
        BadStep{"Kind", [](auto& step) { step.set_kind(static_cast<v1::StepMessageKind>(7)); },
                "step.kind is 7"},
        BadStep{"DecodeOfManyRows", [](auto& step) { step.set_kind(v1::STEP_MESSAGE_KIND_DECODE); },
                "token_ids is 65, expected 1"},
        BadStep{"UnknownSequence", [](auto& step) { step.mutable_entries(0)->set_sequence_id(8); },
                "8 generation 1, expected an open one"},
        BadStep{"OtherGeneration", [](auto& step) { step.mutable_entries(0)->set_generation(2); },
                "7 generation 2"},
        BadStep{"OtherSlot", [](auto& step) { step.mutable_entries(0)->set_kv_slot(0); },
                "kv_slot is 0, expected 1"},
        BadStep{"HugeSlot", [](auto& step) { step.mutable_entries(0)->set_kv_slot(0xffffffff); },
                "kv_slot is 4294967295"},
        BadStep{"Position", [](auto& step) { step.mutable_entries(0)->set_position(1); },
                "position is 1, expected 0"},
        BadStep{"HugePosition",
                [](auto& step) { step.mutable_entries(0)->set_position(~uint64_t{0}); },
                "position is 18446744073709551615"},
        BadStep{"NegativeToken", [](auto& step) { step.mutable_entries(0)->set_token_ids(3, -1); },
                "token_ids is -1, expected 0 to 99"},
        BadStep{"TokenOutOfVocabulary",
                [](auto& step) { step.mutable_entries(0)->set_token_ids(3, 100); },
                "token_ids is 100"},
        BadStep{"PageOutOfRange", [](auto& step) { step.mutable_entries(0)->set_new_pages(0, 3); },
                "new_pages is 3, expected less than 3"},
        BadStep{"TooFewPages", [](auto& step) { step.mutable_entries(0)->clear_new_pages(); },
                "pages of the sequence is 0"},
        BadStep{"TooManyPages",
                [](auto& step) {
                  step.mutable_entries(0)->add_new_pages(1);
                  step.mutable_entries(0)->add_new_pages(1);
                },
                "pages of the sequence is 4"},
        BadStep{"SequenceTwice",
                [](auto& step) {
                  step.clear_entries();
                  step.clear_activations();
                  AddEntry(step, 7, 1, 0, 1, {0});
                  AddEntry(step, 7, 1, 1, 1, {});
                },
                "only once"}),
    [](const auto& info) { return info.param.name; });

TEST(EdgeReaderTest, RefusesRepeatedAndReorderedSteps) {
  EdgeReader reader = OpenReader();
  v1::StepMessage first = GoodStep();
  ASSERT_TRUE(reader.TakeStep(first).ok());
  v1::StepMessage again = GoodStep();
  EXPECT_THAT(reader.TakeStep(again).status().ToString(),
              HasSubstr("step_id is 5, expected more than 5"));
  v1::StepMessage earlier = GoodStep();
  earlier.set_step_id(4);
  EXPECT_THAT(reader.TakeStep(earlier).status().ToString(), HasSubstr("step_id is 4"));
}

TEST(EdgeReaderTest, PositionsGoOnAndEndAtTheLongestContext) {
  EdgeReader reader = OpenReader();
  v1::StepMessage first = GoodStep();
  ASSERT_TRUE(reader.TakeStep(first).ok());
  v1::StepMessage next;
  next.set_epoch(3);
  next.set_step_id(6);
  AddEntry(next, 7, 1, 65, 63, {});  // up to position 127, still on two pages
  ASSERT_TRUE(reader.TakeStep(next).ok());
  v1::StepMessage beyond;
  beyond.set_epoch(3);
  beyond.set_step_id(7);
  AddEntry(beyond, 7, 1, 128, 23, {1});
  EXPECT_THAT(reader.TakeStep(beyond).status().ToString(), HasSubstr("room for 23 rows below 150"));
}

TEST(EdgeReaderTest, TheFirstStageTakesNoPayload) {
  EdgeLimits limits = kLimits;
  limits.payload = Payload::kNone;
  EdgeReader reader = OpenReader(limits);
  v1::StepMessage with = GoodStep();
  EXPECT_FALSE(reader.TakeStep(with).ok());
  v1::StepMessage without = GoodStep();
  without.clear_activations();
  EXPECT_TRUE(reader.TakeStep(without).ok());
}

TEST(EdgeReaderTest, ChecksOpens) {
  EdgeReader reader = OpenReader();
  EXPECT_THAT(reader.Open(Open(8, 1, 2)).status().ToString(),
              HasSubstr("kv_slot is 2, expected less than 2"));
  EXPECT_THAT(reader.Open(Open(8, 1, 1)).status().ToString(),
              HasSubstr("sequence 7 generation 1 has it"));
  EXPECT_THAT(reader.Open(Open(7, 1, 0)).status().ToString(), HasSubstr("one that is not open"));
  v1::OpenMessage bad = Open(8, 1, 0);
  bad.mutable_sampling()->set_temperature(std::numeric_limits<float>::quiet_NaN());
  EXPECT_THAT(reader.Open(bad).status().ToString(), HasSubstr("sampling.temperature"));
  bad = Open(8, 1, 0);
  bad.mutable_sampling()->add_bias_ids(1);
  EXPECT_THAT(reader.Open(bad).status().ToString(), HasSubstr("bias_values is 0"));
  bad.mutable_sampling()->add_bias_values(1);
  bad.mutable_sampling()->set_bias_ids(0, 100);
  EXPECT_THAT(reader.Open(bad).status().ToString(), HasSubstr("bias_ids is 100"));
  bad = Open(8, 1, 0);
  bad.set_logits_from(-2);
  EXPECT_THAT(reader.Open(bad).status().ToString(), HasSubstr("logits_from is -2"));
  // None of the refused ones has taken a place.
  EXPECT_TRUE(reader.Open(Open(8, 1, 0)).ok());
}

TEST(EdgeReaderTest, ChecksCloses) {
  EdgeReader reader = OpenReader();
  EXPECT_THAT(reader.Close(Close(8, 1, 1)).status().ToString(), HasSubstr("an open one"));
  EXPECT_THAT(reader.Close(Close(7, 2, 1)).status().ToString(), HasSubstr("an open one"));
  EXPECT_THAT(reader.Close(Close(7, 1, 0)).status().ToString(), HasSubstr("kv_slot is 0"));
  ASSERT_TRUE(reader.Close(Close(7, 1, 1)).ok());
  EXPECT_THAT(reader.Close(Close(7, 1, 1)).status().ToString(), HasSubstr("an open one"));
  // A step for a finished request.
  v1::StepMessage late = GoodStep();
  EXPECT_THAT(reader.TakeStep(late).status().ToString(), HasSubstr("an open one"));
  EXPECT_TRUE(reader.Open(Open(7, 2, 1)).ok());
}

}  // namespace
}  // namespace warpline
