// Stand-ins for what surrounds a stage executor, which write down in order what was asked of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/mutex.h"
#include "kernels/find_candidates.h"
#include "worker/stage_links.h"
#include "worker/stage_model.h"

namespace warpline {

// Lines of all fakes of a test, in the order in which they happened.
class CallLog {
 public:
  void Add(const std::string& line) {
    MutexLock lock(mutex_);
    lines_.push_back(line);
    changed_.NotifyAll();
  }
  // Waits for `line`, since `Add` of it is the only sign that a thread has come so far.
  void WaitFor(const std::string& line) {
    MutexLock lock(mutex_);
    while (std::find(lines_.begin(), lines_.end(), line) == lines_.end()) changed_.Wait(mutex_);
  }
  std::vector<std::string> lines() const {
    MutexLock lock(mutex_);
    return lines_;
  }

 private:
  mutable Mutex mutex_;
  CondVar changed_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
};

inline std::string EntriesText(const Step& step) {
  std::vector<std::string> texts;
  for (const StepEntry& entry : step.entries) {
    texts.push_back(
        absl::StrCat(entry.key.sequence_id, "@", entry.position, "x", entry.token_ids.size()));
  }
  return absl::StrJoin(texts, ",");
}

// Its layers add 1 to every value; logit t of a row is 1 for t = (last token id + 1) mod n_vocab,
// else 0.
class FakeModel final : public StageModel {
 public:
  struct Options {
    int n_vocab = 8;
    bool is_first = true;
    bool is_last = true;
    uint64_t fail_step = 0;
    absl::Status failure;
    int32_t nan_after_token = -1;  // the logits after this token id are not finite
    absl::Status read_failure;     // of EditedLogits
  };
  FakeModel(CallLog& log, Options options) : log_(log), options_(std::move(options)) {}

  bool is_first() const override { return options_.is_first; }
  bool is_last() const override { return options_.is_last; }
  int64_t weight_bytes() const override { return 1; }
  int64_t cache_bytes() const override { return 1; }
  absl::Status ResetSlot(int kv_slot) override {
    log_.Add(absl::StrCat("reset ", kv_slot));
    return absl::OkStatus();
  }
  absl::Status ResetAllSlots() override {
    log_.Add("reset all");
    return absl::OkStatus();
  }
  absl::Status Forward(const Step& step, absl::Span<const float> in,
                       absl::Span<float> out) override {
    log_.Add(absl::StrCat("forward ", EntriesText(step)));
    if (step.step_id == options_.fail_step) return options_.failure;
    tokens_.clear();
    for (const StepEntry& entry : step.entries) {
      tokens_.insert(tokens_.end(), entry.token_ids.begin(), entry.token_ids.end());
    }
    for (size_t index = 0; index < out.size(); ++index) {
      out[index] = (in.empty() ? 0 : in[index]) + 1;
    }
    return absl::OkStatus();
  }
  void Prefetch(const Step& step) override {
    log_.Add(absl::StrCat("prefetch ", EntriesText(step)));
  }
  absl::Status Logits(absl::Span<const int32_t> rows, absl::Span<float> out) override {
    log_.Add(absl::StrCat("compute logits of ", rows.size()));
    ComputeLogits(rows, out);
    return absl::OkStatus();
  }
  absl::Status Candidates(absl::Span<const int32_t> rows, absl::Span<const CandidateQuery> queries,
                          absl::Span<RowCandidates> out) override {
    const size_t width = static_cast<size_t>(options_.n_vocab);
    logits_.resize(rows.size() * width);
    ComputeLogits(rows, absl::MakeSpan(logits_));
    for (size_t index = 0; index < rows.size(); ++index) {
      FindCandidates(queries[index], absl::MakeSpan(logits_).subspan(index * width, width),
                     out[index]);
    }
    return absl::OkStatus();
  }
  absl::Status EditedLogits(int index, absl::Span<float> out) override {
    std::copy_n(logits_.begin() + index * options_.n_vocab, out.size(), out.begin());
    log_.Add(absl::StrCat("edited logits ", index));
    return options_.read_failure;
  }

 private:
  void ComputeLogits(absl::Span<const int32_t> rows, absl::Span<float> out) const {
    std::fill(out.begin(), out.end(), 0.f);
    const size_t width = static_cast<size_t>(options_.n_vocab);
    for (size_t index = 0; index < rows.size(); ++index) {
      const int32_t token = tokens_[static_cast<size_t>(rows[index])];
      const bool nan = token == options_.nan_after_token;
      out[index * width + static_cast<size_t>(token + 1) % width] = nan ? 0.f / 0.f : 1.f;
    }
  }

  CallLog& log_;
  const Options options_;
  std::vector<int32_t> tokens_;  // of the step that ran last
  std::vector<float> logits_;    // of the Candidates call that ran last
};

class FakeInlet final : public Inlet {
 public:
  explicit FakeInlet(CallLog& log) : log_(log) {}
  void Acknowledge(uint64_t step_id, int edge_slot) override {
    log_.Add(absl::StrCat("ack ", step_id, " slot ", edge_slot));
  }

 private:
  CallLog& log_;
};

class FakeOutlet final : public Outlet {
 public:
  explicit FakeOutlet(CallLog& log) : log_(log) {}

  // From now on Reserve waits until the edge breaks, as with a next stage that gives no credit
  // back.
  void WithholdCredits() {
    MutexLock lock(mutex_);
    withheld_ = true;
  }

  absl::Status Open() override {
    log_.Add("open edge");
    return absl::OkStatus();
  }
  std::string kind() const override { return "shm"; }
  absl::StatusOr<absl::Span<float>> Reserve(int64_t value_count) override {
    MutexLock lock(mutex_);
    if (withheld_) log_.Add("waiting for a credit");
    while (withheld_ && broken_.ok()) changed_.Wait(mutex_);
    if (!broken_.ok()) return broken_;
    values_.assign(static_cast<size_t>(value_count), 0);
    return absl::MakeSpan(values_);
  }
  absl::Status SendStep(const Step& step) override {
    log_.Add(absl::StrCat("send ", EntriesText(step), " values ", absl::StrJoin(values_, " ")));
    return absl::OkStatus();
  }
  absl::Status SendOpen(const OpenSequence& open) override {
    log_.Add(absl::StrCat("send open ", open.key.sequence_id));
    return absl::OkStatus();
  }
  absl::Status SendClose(const CloseSequence& close) override {
    log_.Add(absl::StrCat("send close ", close.key.sequence_id));
    return absl::OkStatus();
  }
  void Break(const absl::Status& status) override {
    MutexLock lock(mutex_);
    broken_ = status;
    changed_.NotifyAll();
  }

 private:
  CallLog& log_;
  Mutex mutex_;
  CondVar changed_;
  bool withheld_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  std::vector<float> values_ ABSL_GUARDED_BY(mutex_);
};

class FakeControl final : public ControlSink {
 public:
  explicit FakeControl(CallLog& log) : log_(log) {}

  // As if the coordinator had left: large replies are not taken any more.
  void Leave() { has_left_ = true; }

  void Send(v1::ControlReply reply) override {
    if (reply.has_result()) {
      std::vector<std::string> tokens;
      for (const v1::SampledToken& token : reply.result().tokens()) {
        tokens.push_back(absl::StrCat(token.sequence_id(), ":", token.token_id()));
      }
      log_.Add(
          absl::StrCat("result ", reply.result().step_id(), " [", absl::StrJoin(tokens, " "), "]"));
    } else if (reply.has_failure()) {
      log_.Add(absl::StrCat("failure ", reply.failure().sequence_id(), " code ",
                            reply.failure().code(), " ", reply.failure().detail_code()));
    } else if (reply.has_closed()) {
      log_.Add(absl::StrCat("closed ", reply.closed().sequence_id(), " slot ",
                            reply.closed().kv_slot()));
    } else if (reply.has_logits()) {
      log_.Add(absl::StrCat("logits ", reply.logits().sequence_id(), " from ",
                            reply.logits().first_position(), " rows ", reply.logits().row_count(),
                            " bytes ", reply.logits().values().size()));
    } else if (reply.has_counters() && reply.counters().has_ple()) {
      log_.Add(absl::StrCat("ple ", reply.counters().ple().ShortDebugString()));
    } else if (reply.has_loading() && reply.loading().fraction() == 1) {
      log_.Add("loaded");
    } else if (reply.has_serving()) {
      log_.Add(absl::StrCat("serving ", reply.serving().epoch(), " ", reply.serving().edge()));
    }
  }
  bool SendLarge(v1::ControlReply reply) override {
    if (has_left_) return false;
    Send(std::move(reply));
    return true;
  }
  void End(const absl::Status& status) override {
    log_.Add(absl::StrCat("end ", absl::StatusCodeToString(status.code())));
  }

 private:
  CallLog& log_;
  std::atomic<bool> has_left_{false};
};

}  // namespace warpline
