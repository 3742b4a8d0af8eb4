// For tests of whole workers: the program as a child process, and a client that plays the
// coordinator.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "proto/stage.grpc.pb.h"

namespace warpline {

// A folder of its own that is removed at the end.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// A warpline-worker; killed at the end if it still runs.
class WorkerProcess {
 public:
  // `arguments` after the program's name.
  explicit WorkerProcess(const std::vector<std::string>& arguments);
  ~WorkerProcess();

  // Waits until the supervisor would be told READY; false when the process has ended before.
  bool WaitReady();
  // Waits for the end: the exit code, or minus the signal. Empty after `limit_ms`.
  std::optional<int> WaitExit(int limit_ms = 10000);
  void Signal(int number) const;
  // Closes the supervisor's end of the watched pipe.
  void CloseWatch() { watch_.Reset(); }
  pid_t pid() const { return pid_; }
  // All it wrote on stderr; call after WaitExit.
  std::string Stderr();

 private:
  TempFolder folder_;
  UniqueFd notify_;
  UniqueFd watch_;
  UniqueFd pidfd_;
  pid_t pid_ = -1;
  std::optional<int> exit_code_;
};

struct GoldenModel {
  std::string path;
  std::string fingerprint;
  int n_layer = 0;
  int residual_width = 0;
  int n_vocab = 0;
  std::vector<int32_t> tokens;
  std::vector<float> logits;  // [tokens, n_vocab]
};
// A case of tests/data/families.
GoldenModel ReadGolden(const std::string& name);

// A stream of either kind, for calls one after another, that cannot hang: it has a deadline.
template <typename Request, typename Reply>
struct ClientStream {
  std::unique_ptr<grpc::ClientContext> context;
  std::unique_ptr<grpc::ClientReaderWriter<Request, Reply>> stream;

  bool Write(const Request& request) { return stream->Write(request); }
  std::optional<Reply> Read() {
    Reply reply;
    if (!stream->Read(&reply)) return std::nullopt;
    return reply;
  }
  // Reads to the end.
  grpc::Status End() {
    Reply reply;
    while (stream->Read(&reply)) {
    }
    return stream->Finish();
  }
};
using ControlStream = ClientStream<v1::ControlRequest, v1::ControlReply>;
using EdgeStream = ClientStream<v1::EdgeMessage, v1::EdgeAck>;

// A worker as its coordinator sees it.
class WorkerClient {
 public:
  explicit WorkerClient(const std::string& address);
  ControlStream Control();
  EdgeStream Edge();

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Stage::Stub> stub_;
};

// The right assignment of `model`'s layers [begin, end) for stage `stage` of `stage_count`.
v1::ControlRequest AssignFor(const GoldenModel& model, int stage, int stage_count, int begin,
                             int end, const std::string& next_address = "");
// The right hello of an edge into stage 0, or with bytes into another one.
v1::EdgeMessage HelloFor(const v1::Assign& assign);

// Reads until a reply for which `wanted` is true; the replies before it are dropped.
std::optional<v1::ControlReply> ReadUntil(
    ControlStream& control, const std::function<bool(const v1::ControlReply&)>& wanted);

}  // namespace warpline
