// Runs a stage: applies what comes over the edge, in order, and hands the rows on.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "worker/ple/ngram_reader.h"
#include "worker/stage_links.h"
#include "worker/stage_model.h"
#include "worker/stage_output.h"
#include "worker/stage_sequences.h"
#include "worker/step.h"

namespace warpline {

// What arrived over the edge into this stage, with the epoch of that edge.
struct EdgeTask {
  uint64_t epoch = 0;
  std::shared_ptr<Inlet> inlet;
  std::variant<OpenSequence, IncomingStep, CloseSequence> item;
};

// Owns the executor thread, the only one that touches the model, the back end and the device. Its
// methods may be called from any thread and never block. The destructor drains the inbox and joins.
class StageExecutor {
 public:
  using Loader = std::function<absl::StatusOr<std::unique_ptr<StageModel>>(
      const StageAssignment& assignment, const std::function<void(double)>& progress)>;
  struct Options {
    int residual_width = 0;
    int n_vocab = 0;
    Loader load;
    // Asks the process to end with this code: after a device fault (its state is not trusted again)
    // or when the stage cannot be brought up.
    std::function<void(int exit_code)> stop;
    // The reader of the n-gram table, null while the stage has none; called by the executor's
    // thread. Its figures are reported, and a stage whose table cannot be read gives up.
    std::function<const NgramReader*()> ngram_reader = [] { return nullptr; };
    // How long a stage whose outgoing edge is lost waits for a new epoch before it gives its
    // coordinator up.
    std::chrono::milliseconds edge_loss_limit{10000};
  };

  explicit StageExecutor(Options options);
  ~StageExecutor();
  StageExecutor(const StageExecutor&) = delete;
  StageExecutor& operator=(const StageExecutor&) = delete;

  // A new epoch: forgets all sequences, keeps the weights when the share is the same, loads them
  // otherwise, opens `outlet` (null on the last stage) and reports Serving. The outlet of the epoch
  // before is broken at once. ResourceExhausted when the inbox is full, Cancelled after Stop.
  absl::Status Begin(const StageAssignment& assignment, std::shared_ptr<ControlSink> control,
                     std::shared_ptr<Outlet> outlet);
  // ResourceExhausted when the inbox is full, which credits rule out; Cancelled after Stop.
  absl::Status Submit(EdgeTask task);
  // To be called when the outgoing edge of this epoch has ended. May outlive the executor.
  std::function<void(const absl::Status&)> EdgeLostHandler(uint64_t epoch);
  // An edge message was refused.
  void CountRefused() { refused_messages_.fetch_add(1, std::memory_order_relaxed); }
  // Wakes the executor from every wait and lets it end without running what is queued.
  void Stop();

 private:
  struct BeginTask {
    StageAssignment assignment;
    std::shared_ptr<ControlSink> control;
    std::shared_ptr<Outlet> outlet;
  };
  struct EdgeLostTask {
    uint64_t epoch = 0;
    absl::Status status;
  };
  using Task = std::variant<BeginTask, EdgeTask, EdgeLostTask>;
  // A step on its way through the layers; on a device they may still compute.
  struct StartedStep {
    Step step;  // Without the entries that cannot be run.
    absl::Status status;
  };

  absl::Status WhyRefused() const;
  void Loop();
  // Empty when none came until NextWake.
  std::optional<Task> NextTask();
  void LookAhead();
  SteadyTime NextWake() const;
  void RunBegin(BeginTask task);
  absl::Status BringUp();
  absl::Status LoadModel();
  void TellLoaded(double fraction);  // the coordinator
  void RunEdgeLost(const EdgeLostTask& task);
  void RunEdge(EdgeTask task);
  void RunOpen(const OpenSequence& open);
  void RunClose(const CloseSequence& close);
  StartedStep StartStep(const IncomingStep& incoming);
  void FinishStep(const StartedStep& started);
  absl::Status RunLayers(const Step& step, absl::Span<const float> in);
  absl::Status HandOn(const Step& step);
  Step KeepRunnable(const Step& step, absl::Span<const float> in);
  void FailEntry(const Step& step, const StepEntry& entry, const absl::Status& status);
  void FailStep(const Step& step, const absl::Status& status);
  void AnswerEmpty(const Step& step);
  void Poison(const absl::Status& status);
  void ReportCounters();

  const Options options_;
  std::atomic<uint64_t> refused_messages_{0};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> closing_{false};
  const std::shared_ptr<BoundedQueue<Task>> inbox_;
  Mutex mutex_;
  // The outlet of the newest Begin, for breaking it while the executor waits on it.
  std::shared_ptr<Outlet> newest_outlet_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> newest_epoch_{0};

  // Below: the executor thread's own.
  std::deque<Task> ahead_;  // Taken from the inbox before their time, at most kMostAhead.
  StageAssignment assignment_;
  std::shared_ptr<ControlSink> control_;
  std::shared_ptr<Outlet> outlet_;
  std::unique_ptr<StageModel> model_;
  StageAssignment loaded_;  // What model_ was loaded for.
  std::unique_ptr<StageOutput> output_;
  StageSequences sequences_;
  std::vector<float> kept_rows_;  // [rows that are left of a step, residual_width]
  bool serving_ = false;
  bool poisoned_ = false;
  std::optional<SteadyTime> edge_lost_at_;
  v1::StageCounters counters_;
  v1::StageCounters reported_;
  SteadyTime reported_at_;

  std::thread thread_;
};

}  // namespace warpline
