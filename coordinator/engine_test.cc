#include "coordinator/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <future>
#include <map>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_detail.h"
#include "coordinator/fakes.h"
#include "proto/stage_protocol.h"

namespace warpline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr auto kPatience = std::chrono::seconds(10);
constexpr int kChunk = 8;

// Keeps what a sequence gave.
class RecordingSink final : public SequenceSink {
 public:
  explicit RecordingSink(int32_t stop_at) : stop_at_(stop_at) {}
  void OnAccepted() override {}
  Verdict OnToken(int32_t token_id) override {
    MutexLock lock(mutex_);
    tokens_.push_back(token_id);
    changed_.NotifyAll();
    return token_id == stop_at_ ? Verdict::kStop : Verdict::kContinue;
  }
  void OnFinished(const absl::Status& status, FinishKind) override {
    MutexLock lock(mutex_);
    status_ = status;
    changed_.NotifyAll();
  }
  void Flush() override {}

  absl::Status AwaitEnd() {
    const SteadyTime limit = Now() + kPatience;
    MutexLock lock(mutex_);
    while (!status_.has_value()) {
      if (!changed_.WaitUntil(mutex_, limit)) return absl::UnknownError("it never ended");
    }
    return *status_;
  }
  bool AwaitTokens(size_t count) {
    const SteadyTime limit = Now() + kPatience;
    MutexLock lock(mutex_);
    while (tokens_.size() < count) {
      if (!changed_.WaitUntil(mutex_, limit)) return false;
    }
    return true;
  }
  std::vector<int32_t> tokens() {
    MutexLock lock(mutex_);
    return tokens_;
  }

 private:
  const int32_t stop_at_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<int32_t> tokens_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> status_ ABSL_GUARDED_BY(mutex_);
};

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    std::string pattern = "/tmp/warpline-test-XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    worker_ = std::make_unique<FakeWorker>(address());
  }
  ~EngineTest() override {
    engine_.reset();
    worker_.reset();
    std::filesystem::remove_all(folder_);
  }

  std::string address() const { return absl::StrCat("unix:", folder_, "/worker.sock"); }

  // With `next_address` there is a second stage.
  void Start(int slots = 4, int64_t pages = 64, const std::string& next_address = "") {
    EngineOptions options;
    options.pipeline = {.addresses = {address()},
                        .split = {.stages = {{.layers = {0, 3}}}},
                        .capacity = {.context = 1024,
                                     .configured_context = 1024,
                                     .slot_count = slots,
                                     .page_count = pages},
                        .fingerprint = "f",
                        .layer_count = 3,
                        .width = 16,
                        .max_step_rows = kChunk,
                        .hello_limit = std::chrono::milliseconds(200),
                        .load_limit = std::chrono::milliseconds(500)};
    if (!next_address.empty()) {
      options.pipeline.addresses.push_back(next_address);
      options.pipeline.split.stages.push_back({.layers = {3, 6}});
      options.pipeline.layer_count = 6;
    }
    options.max_chunk_rows = kChunk;
    options.queue_capacity = 64;
    options.vocab_size = 1000;
    options.on_readiness = [this](bool ready, const std::string& reason) {
      MutexLock lock(mutex_);
      ready_ = ready;
      reason_ = reason;
      changed_.NotifyAll();
    };
    engine_ = std::make_unique<Engine>(std::move(options), metrics_);
    engine_->Start();
  }

  bool AwaitReady() {
    const SteadyTime limit = Now() + kPatience;
    MutexLock lock(mutex_);
    while (!ready_) {
      if (!changed_.WaitUntil(mutex_, limit)) return false;
    }
    return true;
  }
  bool AwaitReason(const std::string& part) {
    const SteadyTime limit = Now() + kPatience;
    MutexLock lock(mutex_);
    while (ready_ || !absl::StrContains(reason_, part)) {
      if (!changed_.WaitUntil(mutex_, limit)) return false;
    }
    return true;
  }
  std::string reason() {
    MutexLock lock(mutex_);
    return reason_;
  }

  std::shared_ptr<RecordingSink> Submit(int64_t prompt, int64_t max_tokens, int32_t first = 1,
                                        uint64_t* id = nullptr, int32_t stop_at = -1) {
    auto sink = std::make_shared<RecordingSink>(stop_at);
    SequenceRequest request{.max_tokens = max_tokens, .sink = sink};
    for (int64_t index = 0; index < prompt; ++index) {
      request.tokens.push_back(static_cast<int32_t>(first + index % 100));
    }
    const absl::StatusOr<uint64_t> submitted = engine_->Submit(std::move(request));
    EXPECT_TRUE(submitted.ok());
    if (id != nullptr) *id = *submitted;
    return sink;
  }

  // Whether the line stands in the metrics; asks until then.
  bool AwaitMetric(const std::string& line) {
    const SteadyTime limit = Now() + kPatience;
    while (Now() < limit) {
      if (absl::StrContains(metrics_.Text(), absl::StrCat("\n", line, "\n"))) return true;
      std::promise<void> round;  // One round of the engine.
      EXPECT_TRUE(engine_->GetStatus([&round](v1::StatusResponse) { round.set_value(); }));
      round.get_future().wait();
    }
    return false;
  }

  Metrics metrics_;
  std::string folder_;
  std::unique_ptr<FakeWorker> worker_;
  Mutex mutex_;
  CondVar changed_;
  bool ready_ ABSL_GUARDED_BY(mutex_) = false;
  std::string reason_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Engine> engine_;
};

TEST_F(EngineTest, AFullInboxRefusesQuestionsAndAnswersTheOthers) {
  Start();
  std::promise<void> go_on;
  // Holds the engine's thread up.
  ASSERT_TRUE(engine_->GetStatus([&go_on](v1::StatusResponse) { go_on.get_future().wait(); }));
  int asked = 0;
  std::atomic<int> answered{0};
  std::promise<void> last;
  while (engine_->GetStatus([&](v1::StatusResponse) {
    if (++answered == asked) last.set_value();
  })) {
    ++asked;
  }
  EXPECT_GT(asked, 1000);
  EXPECT_FALSE(engine_->Submit({.tokens = {1}, .max_tokens = 1}).ok());
  go_on.set_value();
  EXPECT_EQ(last.get_future().wait_for(kPatience), std::future_status::ready);
}

TEST_F(EngineTest, EachTokenFeedsTheNextStep) {
  Start();
  ASSERT_TRUE(AwaitReady());
  const auto sink = Submit(3, 4, 10);
  EXPECT_TRUE(sink->AwaitEnd().ok());
  EXPECT_THAT(sink->tokens(), ElementsAre(13, 14, 15, 16));
}

TEST_F(EngineTest, TheOnlyStageIsSentOneStepAheadOfItsTokens) {
  Start();
  ASSERT_TRUE(AwaitReady());
  worker_->Behave({.hold_results = true});
  const size_t before = worker_->Received().size();
  const auto fed_since = [before](const std::vector<v1::EdgeMessage>& all) {
    std::vector<std::pair<int64_t, int32_t>> fed;
    for (size_t index = before; index < all.size(); ++index) {
      if (!all[index].has_step()) continue;
      const v1::StepEntryMessage& entry = all[index].step().entries(0);
      EXPECT_TRUE(entry.sample());
      fed.emplace_back(entry.position(), entry.token_ids(0));
    }
    return fed;
  };
  const auto sink = Submit(1, 4, 10);
  EXPECT_TRUE(worker_->Await([&](const auto& all) { return fed_since(all).size() == 2; }));
  EXPECT_THAT(fed_since(worker_->Received()),
              ElementsAre(std::pair(0, 10), std::pair(1, kTokenDrawnBefore)));
  worker_->ReleaseResults();
  EXPECT_TRUE(sink->AwaitEnd().ok());
  EXPECT_THAT(sink->tokens(), ElementsAre(11, 12, 13, 14));
  EXPECT_EQ(fed_since(worker_->Received()).size(), 4u) << "the last token is never fed";
}

TEST_F(EngineTest, WhatWasSentAheadOfTheEndIsDroppedWithoutAWord) {
  Start();
  ASSERT_TRUE(AwaitReady());
  for (int round = 0; round < 3; ++round) {
    const auto sink = Submit(1, 100, 10, /*id=*/nullptr, /*stop_at=*/15);
    EXPECT_TRUE(sink->AwaitEnd().ok());
    EXPECT_THAT(sink->tokens(), ElementsAre(11, 12, 13, 14, 15));
  }
  EXPECT_TRUE(AwaitMetric("warpline_slots_used 0"));
  EXPECT_TRUE(AwaitMetric("warpline_stale_results_total 0"));
}

TEST_F(EngineTest, AMismatchInTheHelloIsNamedWithBothValues) {
  const struct {
    std::function<void(v1::Hello&)> change;
    const char* field;
    const char* worker_value;
    const char* own_value;
  } cases[] = {
      {[](v1::Hello& hello) { hello.set_fingerprint("g"); }, "fingerprint", "is g", "and f"},
      {[](v1::Hello& hello) { hello.set_layer_end(2); }, "layer_end", "is 2", "and 3"},
      {[](v1::Hello& hello) { hello.set_layer_begin(1); }, "layer_begin", "is 1", "and 0"},
      {[](v1::Hello& hello) { hello.set_width(8); }, "width", "is 8", "and 16"},
      {[](v1::Hello& hello) { hello.set_slot_bytes(1); }, "slot_bytes", "is 1 ", "and 512"},
      {[](v1::Hello& hello) { hello.set_protocol_version(99); }, "protocol_version", "is 99",
       "and"},
      {[](v1::Hello& hello) { hello.set_version("v9"); }, "version", "is v9", "and"},
  };
  for (const auto& one : cases) {
    worker_->Behave({.change_hello = one.change});
    Start();
    EXPECT_TRUE(AwaitReason(one.field)) << one.field << ": " << reason();
    EXPECT_THAT(reason(), AllOf(HasSubstr("stage 0: down"), HasSubstr(one.worker_value),
                                HasSubstr(one.own_value)));
    worker_->Behave({});
    EXPECT_TRUE(AwaitReady()) << "it is tried again: " << reason();
    engine_.reset();
    MutexLock lock(mutex_);
    ready_ = false;
  }
}

TEST_F(EngineTest, AWorkerThatNeverSaysHelloIsGivenUpAndTriedAgain) {
  worker_->Behave({.silent = true});
  Start();
  EXPECT_TRUE(AwaitReason("no hello within")) << reason();
  worker_->Behave({});
  EXPECT_TRUE(AwaitReady());
}

TEST_F(EngineTest, AStageThatLoadsNothingMoreIsGivenUpAndTriedAgain) {
  worker_->Behave({.stops_loading_at = 0.5F});
  Start();
  EXPECT_TRUE(AwaitReason("stage 0: down (no progress of loading within 0.5 s)")) << reason();
  worker_->Behave({});
  EXPECT_TRUE(AwaitReady());
  engine_.reset();
}

TEST_F(EngineTest, AStageWhoseEdgeDoesNotOpenIsGivenUpOnceTheNextOneIsThere) {
  const std::string next_address = absl::StrCat("unix:", folder_, "/next.sock");
  worker_->Behave({.stops_loading_at = 1.0F});
  Start(4, 64, next_address);
  // Not as long as the next stage is away: more than the limit passes with its hellos missing.
  EXPECT_TRUE(AwaitReason("stage 1: down (no hello within 200 ms)")) << reason();
  const SteadyTime begin = Now();
  FakeWorker next(next_address);
  EXPECT_TRUE(AwaitReason("stage 0: down (no edge to the next stage within 0.5 s)")) << reason();
  EXPECT_GE(SecondsSince(begin), 0.5);
  engine_.reset();
}

TEST_F(EngineTest, AStageThatIsLoadedWaitsForTheNextOne) {
  worker_->Behave({.stops_loading_at = 0.5F});
  Start(4, 64, absl::StrCat("unix:", folder_, "/nobody.sock"));
  EXPECT_TRUE(AwaitReason("stage 0: loading 50 %")) << reason();
  engine_.reset();
  worker_->Behave({.stops_loading_at = 1.0F});
  Start(4, 64, absl::StrCat("unix:", folder_, "/nobody.sock"));
  EXPECT_TRUE(AwaitReason("stage 0: waiting for stage 1; stage 1: ")) << reason();
  std::promise<v1::StatusResponse> status;
  ASSERT_TRUE(engine_->GetStatus([&](v1::StatusResponse answer) { status.set_value(answer); }));
  const v1::StageStatus stage = status.get_future().get().stages(0);
  EXPECT_EQ(stage.state(), "waiting");
  EXPECT_EQ(stage.reason(), "for stage 1");
}

TEST_F(EngineTest, AFailedWarmUpTokenKeepsItNotReadyUntilOnePasses) {
  std::atomic<int> failures{0};
  worker_->Behave({.fails = [&failures](const v1::StepEntryMessage&) { return ++failures <= 3; }});
  Start();
  EXPECT_TRUE(AwaitReady());
  EXPECT_EQ(failures, 4);
  EXPECT_EQ(worker_->assignments(), 4) << "each failure begins a new epoch";
}

TEST_F(EngineTest, NonFiniteValuesEndTheirRequestOnly) {
  Start();
  ASSERT_TRUE(AwaitReady());
  worker_->Behave({.fails = [](const v1::StepEntryMessage& entry) {
    return entry.token_ids(entry.token_ids_size() - 1) == 503;
  }});
  const auto good = Submit(2, 300, 10);
  const auto bad = Submit(1, 300, 500);
  const absl::Status status = bad->AwaitEnd();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(DetailOf(status).code, "numerical_error");
  EXPECT_THAT(bad->tokens(), ElementsAre(501, 502, 503));
  EXPECT_TRUE(good->AwaitEnd().ok());
  EXPECT_EQ(good->tokens().size(), 300u);
  EXPECT_TRUE(AwaitMetric("warpline_non_finite_requests_total 1"));
  EXPECT_TRUE(AwaitMetric("warpline_pages_used 0"));
}

TEST_F(EngineTest, ChunksAreSentBeforeTheChunkBeforeHasEnded) {
  Start();
  ASSERT_TRUE(AwaitReady());
  worker_->Behave({.hold_results = true});
  const size_t before = worker_->Received().size();
  const auto sink = Submit(3 * kChunk, 1);
  // One stage: one chunk computes, one waits; the third may not come yet.
  const auto steps_since = [before](const std::vector<v1::EdgeMessage>& all) {
    std::vector<std::pair<int64_t, int>> steps;
    for (size_t index = before; index < all.size(); ++index) {
      if (!all[index].has_step()) continue;
      const v1::StepEntryMessage& entry = all[index].step().entries(0);
      steps.emplace_back(entry.position(), entry.token_ids_size());
    }
    return steps;
  };
  EXPECT_TRUE(worker_->Await([&](const auto& all) { return steps_since(all).size() == 2; }));
  EXPECT_THAT(steps_since(worker_->Received()),
              ElementsAre(std::pair(int64_t{0}, kChunk), std::pair(int64_t{kChunk}, kChunk)));
  worker_->ReleaseResults();
  EXPECT_TRUE(sink->AwaitEnd().ok());
  EXPECT_EQ(steps_since(worker_->Received()).size(), 3u);
}

TEST_F(EngineTest, OpenStepsCloseInOrderAndPagesBelongToOneSequenceAtATime) {
  Start(/*slots=*/3, /*pages=*/8);
  ASSERT_TRUE(AwaitReady());
  std::vector<std::shared_ptr<RecordingSink>> sinks;
  for (int index = 0; index < 10; ++index) sinks.push_back(Submit(60 + index, 20));
  for (const auto& sink : sinks) EXPECT_TRUE(sink->AwaitEnd().ok());
  ASSERT_TRUE(AwaitMetric("warpline_slots_used 0"));
  struct Open {
    uint32_t slot = 0;
    int64_t rows = 0;
    int64_t pages = 0;
  };
  std::map<uint64_t, Open> open;
  std::map<uint32_t, uint64_t> page_owner;
  std::set<uint32_t> slots;
  for (const v1::EdgeMessage& message : worker_->Received()) {
    if (message.has_open()) {
      EXPECT_TRUE(slots.insert(message.open().kv_slot()).second) << "the slot is in use";
      open[message.open().sequence_id()] = {.slot = message.open().kv_slot()};
    } else if (message.has_close()) {
      const uint64_t id = message.close().sequence_id();
      ASSERT_EQ(open.count(id), 1u);
      slots.erase(open[id].slot);
      open.erase(id);
      for (auto page = page_owner.begin(); page != page_owner.end();) {
        page = page->second == id ? page_owner.erase(page) : std::next(page);
      }
    } else {
      for (const v1::StepEntryMessage& entry : message.step().entries()) {
        ASSERT_EQ(open.count(entry.sequence_id()), 1u);
        Open& sequence = open[entry.sequence_id()];
        EXPECT_EQ(static_cast<int64_t>(entry.position()), sequence.rows) << "no hole, no overlap";
        sequence.rows += entry.token_ids_size();
        for (const uint32_t page : entry.new_pages()) {
          EXPECT_LT(page, 8u);
          EXPECT_TRUE(page_owner.emplace(page, entry.sequence_id()).second) << "in use";
          ++sequence.pages;
        }
        EXPECT_EQ(sequence.pages, (sequence.rows + 63) / 64) << "when first needed, none too many";
      }
    }
  }
  EXPECT_TRUE(open.empty());
}

TEST_F(EngineTest, AfterACancelNoFurtherChunkIsSentThenClose) {
  Start();
  ASSERT_TRUE(AwaitReady());
  worker_->Behave({.hold_results = true});
  uint64_t id = 0;
  const auto sink = Submit(50 * kChunk, 1, 1, &id);
  const auto count_of = [&id](const std::vector<v1::EdgeMessage>& all, bool closes) {
    int count = 0;
    for (const v1::EdgeMessage& message : all) {
      count += closes ? message.has_close() && message.close().sequence_id() == id
                      : message.has_step() && message.step().entries(0).sequence_id() == id;
    }
    return count;
  };
  ASSERT_TRUE(worker_->Await([&](const auto& all) { return count_of(all, false) == 2; }));
  engine_->Cancel(id, absl::CancelledError("the client has left"));
  EXPECT_EQ(sink->AwaitEnd().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(worker_->Await([&](const auto& all) { return count_of(all, true) == 1; }));
  worker_->ReleaseResults();
  EXPECT_TRUE(AwaitMetric("warpline_pages_used 0"));
  EXPECT_EQ(count_of(worker_->Received(), false), 2);
  EXPECT_TRUE(Submit(1, 1)->AwaitEnd().ok());
}

TEST_F(EngineTest, PagesAreReservedSoThatTheyNeverRunOutHalfWay) {
  Start(/*slots=*/4, /*pages=*/4);
  ASSERT_TRUE(AwaitReady());
  // Three pages each: only one fits, although there are slots for four.
  const auto first = Submit(1, 192);
  const auto second = Submit(1, 192);
  ASSERT_TRUE(second->AwaitTokens(1));
  EXPECT_EQ(first->tokens().size(), 192u) << "the second had to wait for all of the first";
  EXPECT_TRUE(first->AwaitEnd().ok());
  EXPECT_TRUE(second->AwaitEnd().ok());
}

TEST_F(EngineTest, AResultThatComesTwiceIsDroppedAndCounted) {
  Start();
  ASSERT_TRUE(AwaitReady());
  worker_->Behave({.repeat_results = true});
  const auto sink = Submit(1, 3, 20);
  EXPECT_TRUE(sink->AwaitEnd().ok());
  EXPECT_THAT(sink->tokens(), ElementsAre(21, 22, 23));
  EXPECT_TRUE(AwaitMetric("warpline_stale_results_total 3"));
}

TEST_F(EngineTest, ALostWorkerEndsRunningAndQueuedRequestsAndASecondOneServes) {
  Start(/*slots=*/1);
  ASSERT_TRUE(AwaitReady());
  worker_->Behave({.hold_results = true});
  const auto running = Submit(1, 5);
  const auto queued = Submit(1, 5);
  ASSERT_TRUE(worker_->Await([](const auto& all) { return all.back().has_step(); }));
  worker_.reset();
  for (const auto& sink : {running, queued}) {
    const absl::Status status = sink->AwaitEnd();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(status.message()), HasSubstr("stage 0"));
  }
  EXPECT_EQ(Submit(1, 5)->AwaitEnd().code(), absl::StatusCode::kUnavailable);
  {
    MutexLock lock(mutex_);
    ready_ = false;
  }
  worker_ = std::make_unique<FakeWorker>(address());
  ASSERT_TRUE(AwaitReady());
  EXPECT_TRUE(Submit(1, 5)->AwaitEnd().ok());
}

}  // namespace
}  // namespace warpline
