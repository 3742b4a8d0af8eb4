// warpline-worker: one stage of a model behind a gRPC service.
#include <grpcpp/server_builder.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status.h"
#include "model/gguf.h"
#include "model/mapped_file.h"
#include "model/model_spec.h"
#include "proto/grpc_server.h"
#include "proto/peer_secret.h"
#include "worker/backend_choice.h"
#include "worker/config.h"
#include "worker/control_service.h"
#include "worker/doctor.h"
#include "worker/edge_service.h"
#include "worker/finite_weights.h"
#include "worker/ple/ngram_source.h"
#include "worker/stage_executor.h"
#include "worker/stage_facts.h"
#include "worker/stage_model.h"
#include "worker/stage_service.h"

namespace warpline {
namespace {

// A worker must not outlive its coordinator because some thread is busy with a long step.
constexpr std::chrono::milliseconds kStopLimit{1500};
constexpr std::chrono::milliseconds kStreamEndLimit{100};
constexpr int kOwnThreads = 2;  // The executor, and the one that watches over the end.

int Fail(const absl::Status& status, int exit_code) {
  std::fprintf(stderr, "warpline-worker: %s\n", EscapeForLog(status.message()).c_str());
  return exit_code;
}

struct Model {
  std::unique_ptr<GgufFile> file;
  ModelSpec spec;
  std::string fingerprint;
};

absl::StatusOr<Model> OpenModel(const WorkerConfig& config) {
  Model model;
  WL_ASSIGN_OR_RETURN(model.file, GgufFile::Open(config.model));
  WL_ASSIGN_OR_RETURN(model.spec, ModelSpec::FromGguf(*model.file));
  for (const std::string& warning : model.file->warnings()) LogWarning(warning);
  if (config.verify) {
    NotifySupervisor("STATUS=verifying the model file");
    WL_RETURN_IF_ERROR(CheckFiniteWeights(*model.file));
  }
  WL_ASSIGN_OR_RETURN(model.fingerprint, FingerprintOf(*model.file, config.verify));
  return model;
}

// The process's end as seen from other threads: a signal to itself wakes WaitForStop like any other
// stop does.
class StopRequest {
 public:
  void operator()(int exit_code) {
    int none = kExitOk;
    exit_code_.compare_exchange_strong(none, exit_code);  // The first failure counts.
    kill(getpid(), SIGTERM);
  }
  int exit_code() const { return exit_code_; }

 private:
  std::atomic<int> exit_code_{kExitOk};
};

NgramReaderOptions NgramOptions(const WorkerConfig& config) {
  const absl::StatusOr<PleIo> io = ParsePleIo(config.ple_io);
  WL_CHECK(io.ok());  // The option takes no other names.
  return {.io = *io,
          .cache_bytes = int64_t{config.ple_cache_mib} << 20,
          .max_wait_seconds = static_cast<double>(config.ple_timeout_s)};
}

StageExecutor::Loader LoaderFor(const Model& model, NgramSource& ngrams, Backend& backend) {
  return [&model, &ngrams, &backend](const StageAssignment& assignment,
                                     const std::function<void(double)>& progress)
             -> absl::StatusOr<std::unique_ptr<StageModel>> {
    WL_ASSIGN_OR_RETURN(NgramReader* const ngram_reader, ngrams.ReaderFor(assignment.layers));
    auto loaded = StageModel::Load(*model.file, model.spec,
                                   {.layers = assignment.layers,
                                    .kv_type = assignment.kv_type,
                                    .slot_count = assignment.slot_count,
                                    .page_count = assignment.page_count,
                                    .max_context = assignment.max_context,
                                    .configured_context = assignment.configured_context,
                                    .max_rows = assignment.max_chunk_rows,
                                    .max_logit_rows = kMaxLogitRows,
                                    .ngram_reader = ngram_reader},
                                   backend, progress);
    for (const std::string& notice : backend.TakeNotices()) LogWarning(notice);
    return loaded;
  };
}

int Serve(const WorkerConfig& config, const PeerSecret& secret, const Model& model,
          Backend& backend) {
  if (const absl::Status threads = CheckThreads(kOwnThreads); !threads.ok()) {
    return Fail(threads, kExitFailure);
  }
  StopRequest stop;
  const auto request_stop = [&stop](int exit_code) { stop(exit_code); };
  NgramSource ngrams(*model.file, model.spec.ple, NgramOptions(config));
  StageExecutor executor({.residual_width = model.spec.residual_width,
                          .n_vocab = model.spec.n_vocab,
                          .load = LoaderFor(model, ngrams, backend),
                          .stop = request_stop,
                          .ngram_reader = [&ngrams] { return ngrams.reader(); }});
  EdgeGate gate(executor, secret);
  ControlDesk desk({.facts = {.fingerprint = model.fingerprint,
                              .n_layer = model.spec.n_layer,
                              .residual_width = model.spec.residual_width,
                              .n_vocab = model.spec.n_vocab,
                              .capability = backend.Describe()},
                    .secret = secret,
                    .stop = request_stop},
                   executor, gate);
  StageService service(desk, gate);
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  builder.SetMaxReceiveMessageSize(kMaxInternalMessageBytes);
  builder.SetMaxSendMessageSize(kMaxInternalMessageBytes);
  absl::StatusOr<ServerHandle> handle = StartServer(builder, config.listen);
  if (!handle.ok()) {
    return Fail(handle.status(),
                absl::IsInvalidArgument(handle.status()) ? kExitUsage : kExitFailure);
  }
  LogInfo("listening address=", config.listen, handle->port > 0 ? " port=" : "",
          handle->port > 0 ? absl::StrCat(handle->port) : "");
  NotifySupervisor("READY=1\nSTATUS=waiting");

  const StopReason reason = WaitForStop(config.watch_fd);
  LogInfo("stopping", reason == StopReason::kParentGone ? ": the supervisor is gone" : "");
  std::thread([exit_code = stop.exit_code()] {
    std::this_thread::sleep_for(kStopLimit);
    LogWarning("not stopped after ", kStopLimit.count(),
               " ms, exiting at once; a long step may run");
    std::_Exit(exit_code);
  }).detach();
  NotifySupervisor("STOPPING=1");
  executor.Stop();
  handle->Shutdown(kStreamEndLimit);
  return stop.exit_code();
}

int Main(int argc, char** argv) {
  InstallTerminateHandler();
  BlockSignals();
  const auto [config, exit_code] = ReadWorkerConfig(argc, argv);
  if (exit_code.has_value()) return *exit_code;
  if (config.doctor) return RunDoctor();
  if (config.show_device_memory) return ShowDeviceMemory(config.device);
  const absl::StatusOr<PeerSecret> secret = PeerSecret::Load(config.secret_file);
  if (!secret.ok()) return Fail(secret.status(), kExitUsage);
  if (const absl::Status status = CheckBindAllowed(config.listen, *secret); !status.ok()) {
    return Fail(status, kExitUsage);
  }
  InstallMappedFileFaultHandler();
  const absl::StatusOr<Model> model = OpenModel(config);
  if (!model.ok()) return Fail(model.status(), kExitModelFile);
  if (const absl::Status runs = CheckModelRuns(config, model->spec); !runs.ok()) {
    return Fail(runs, kExitFailure);
  }
  absl::StatusOr<std::unique_ptr<Backend>> backend = OpenBackend(config);
  if (!backend.ok()) return Fail(backend.status(), kExitFailure);
  LogInfo("device ", (*backend)->Describe());
  LogInfo("model path=", EscapeForLog(config.model),
          " architecture=", model->spec.architecture_name, " layers=", model->spec.n_layer,
          " fingerprint=", model->fingerprint);
  return Serve(config, *secret, *model, **backend);
}

}  // namespace
}  // namespace warpline

int main(int argc, char** argv) {
  return warpline::FinishOutput("warpline-worker", warpline::Main(argc, argv));
}
