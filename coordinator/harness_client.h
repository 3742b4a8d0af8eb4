// For tests: the real programs as processes in a private folder, and a client of them.
#pragma once

#include <grpcpp/channel.h>
#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/unique_fd.h"
#include "proto/inference.grpc.pb.h"

namespace warpline {

// A child process; killed and reaped when the object goes.
class ProgramRun {
 public:
  ProgramRun() = default;
  // Its standard output and error go into the file `log`.
  ProgramRun(const std::string& program, const std::vector<std::string>& arguments,
             const std::string& log);
  ProgramRun(ProgramRun&& other) noexcept { *this = std::move(other); }
  ProgramRun& operator=(ProgramRun&& other) noexcept;
  ~ProgramRun();

  pid_t pid() const { return pid_; }
  void Signal(int number) const;
  // The exit code, or minus the signal that ended it; waits.
  int Wait();

 private:
  pid_t pid_ = -1;
  UniqueFd watched_;  // The other end of the child's --watch-fd.
};

// What a Generate call gave.
struct Answer {
  absl::Status status;
  std::optional<v1::Started> started;
  std::vector<int32_t> ids;
  std::string text;
  std::optional<v1::Finished> finished;
};

// A coordinator and its workers on Unix sockets.
class TestService {
 public:
  // `model` is a file below tests/data. Starts everything; see WaitUntilReady.
  TestService(const std::string& model, int worker_count, std::vector<std::string> options = {});
  ~TestService();

  void StartWorker(int stage);
  // By the health service's stream, at most 20 s.
  bool WaitUntil(bool serving);
  bool WaitUntilReady() { return WaitUntil(true); }

  v1::Inference::Stub& stub() { return *stub_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }
  // Over a connection of its own that takes in little before it is read.
  std::unique_ptr<v1::Inference::Stub> NarrowStub();
  ProgramRun& worker(int stage) { return workers_[stage]; }
  ProgramRun& coordinator() { return coordinator_; }
  std::string Log() const;  // of all programs, so far

  // `on_event` sees each answer as it comes; false cancels the call.
  Answer Generate(const v1::GenerateRequest& request,
                  const std::function<bool(const v1::GenerateResponse&)>& on_event = nullptr);
  v1::StatusResponse Status();
  // The value of one line of the metrics, such as `warpline_pages_used`; NaN when absent.
  double Metric(const std::string& name);
  // Asks until the metric has the value, at most 10 s.
  bool AwaitMetric(const std::string& name, double value);

 private:
  std::string Socket(const std::string& name) const { return "unix:" + folder_ + "/" + name; }

  std::string model_;
  std::string folder_;
  std::vector<ProgramRun> workers_;
  ProgramRun coordinator_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Inference::Stub> stub_;
};

// Token ids as prompt, greedy.
v1::GenerateRequest GreedyRequest(const std::vector<int32_t>& tokens, int max_tokens);

}  // namespace warpline
