// warpline-coordinator: plans the deployment, drives the workers and serves clients.
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status.h"
#include "coordinator/config.h"
#include "coordinator/deployment.h"
#include "coordinator/engine.h"
#include "coordinator/inference_service.h"
#include "coordinator/metrics.h"
#include "coordinator/served_model.h"
#include "coordinator/tokenizer_pool.h"
#include "model/mapped_file.h"
#include "proto/grpc_server.h"
#include "proto/peer_secret.h"

namespace warpline {
namespace {

constexpr int kMaxRequestBytes = 16 << 20;  // Of one gRPC message from a client; documented.
constexpr int kMaxStreams = 4096;           // Of one connection; more wait in the client.
constexpr int kMaxTokenizerThreads = 4;
constexpr size_t kTokenizerQueue = 1024;
constexpr auto kCloseLimit = std::chrono::seconds(1);  // For streams after all requests ended.
constexpr int kExitGraceSeconds = 10;                  // After the drain.

int Complain(int exit_code, absl::string_view message) {
  std::cerr << "warpline-coordinator: " << EscapeForLog(message) << std::endl;
  return exit_code;
}

absl::StatusOr<ServedModel> LoadServedModel(const CoordinatorConfig& config,
                                            const Deployment& deployment,
                                            const std::string& fingerprint) {
  ServedModel model;
  WL_ASSIGN_OR_RETURN(model.tokenizer, Tokenizer::Create(*deployment.file));
  for (const std::string& warning : model.tokenizer->warnings()) LogWarning(warning);
  WL_ASSIGN_OR_RETURN(ChatPrompts chat, ChatPrompts::Create(*deployment.file, *model.tokenizer,
                                                            config.chat_template));
  model.chat = std::make_unique<ChatPrompts>(std::move(chat));
  model.vocab_size = deployment.spec.n_vocab;
  model.context_length = deployment.capacity.context;
  model.info.set_name(config.alias.empty() ? deployment.spec.name : config.alias);
  model.info.set_architecture(deployment.spec.architecture_name);
  model.info.set_fingerprint(fingerprint);
  model.info.set_layer_count(deployment.spec.n_layer);
  model.info.set_vocab_size(deployment.spec.n_vocab);
  model.info.set_file_bytes(deployment.file->total_file_bytes());
  model.info.set_training_context(deployment.spec.context_length);
  model.info.set_has_chat_template(model.chat->available());
  return model;
}

EngineOptions EngineOptionsOf(const CoordinatorConfig& config, const Deployment& deployment,
                              const ServedModel& model, PeerSecret secret) {
  EngineOptions options;
  options.pipeline = {.addresses = config.workers,
                      .split = deployment.split,
                      .capacity = deployment.capacity,
                      .fingerprint = model.info.fingerprint(),
                      .layer_count = deployment.spec.n_layer,
                      .width = deployment.spec.residual_width,
                      .max_step_rows = deployment.max_step_rows,
                      .edge = config.edge,
                      .kv_type = config.kv_type,
                      .secret = std::move(secret),
                      .load_limit = std::chrono::seconds(config.load_timeout_s)};
  options.max_chunk_rows = deployment.max_chunk_rows;
  options.queue_capacity = config.queue;
  options.vocab_size = deployment.spec.n_vocab;
  const int32_t bos = model.tokenizer->bos_id();
  options.warm_up_token = bos >= 0 && bos < deployment.spec.n_vocab ? bos : 0;
  return options;
}

// Servers on all addresses, each with its own service object. Built and stopped by main; once Start
// has returned, the engine thread says through it whether requests are taken.
class Servers {
 public:
  absl::Status Start(const std::vector<std::string>& addresses, const ServiceContext& context) {
    for (const std::string& address : addresses) {
      services_.push_back(std::make_unique<InferenceService>(context));
      grpc::ServerBuilder builder;
      builder.SetMaxReceiveMessageSize(kMaxRequestBytes);
      builder.SetMaxSendMessageSize(kMaxInternalMessageBytes);
      builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
      builder.RegisterService(services_.back().get());
      WL_ASSIGN_OR_RETURN(ServerHandle handle, StartServer(builder, address));
      // By its name and as the whole server: clients ask for either.
      grpc::HealthCheckServiceInterface& health = *handle.server->GetHealthCheckService();
      health.SetServingStatus(false);
      health.SetServingStatus(v1::Inference::service_full_name(), false);
      LogInfo("listening address=", address,
              handle.port != 0 ? absl::StrCat(" port=", handle.port) : "");
      servers_.push_back(std::move(handle));
    }
    return absl::OkStatus();
  }

  void SetReady(bool ready, const std::string& reason) {
    if (ready != serving_) SetServing(ready);
    if (ready) {
      NotifySupervisor("READY=1\nSTATUS=serving");
    } else {
      // However long the workers take: each call buys a minute.
      NotifySupervisor(absl::StrCat("EXTEND_TIMEOUT_USEC=60000000\nSTATUS=", reason));
    }
  }

  // Ends what still runs after the limit.
  void Stop() {
    for (ServerHandle& server : servers_) server.Shutdown(kCloseLimit);
  }

 private:
  // Those who watch hear of every call, so it is made when something changes.
  void SetServing(bool serving) {
    for (const ServerHandle& handle : servers_) {
      handle.server->GetHealthCheckService()->SetServingStatus(serving);
    }
    serving_ = serving;
  }

  std::vector<std::unique_ptr<InferenceService>> services_;
  std::vector<ServerHandle> servers_;
  bool serving_ = false;
};

// Waits for the signal, then lets running requests end.
void RunUntilStopped(const CoordinatorConfig& config, Engine& engine) {
  if (WaitForStop(config.watch_fd) == StopReason::kParentGone) {
    LogWarning("the parent process is gone, exiting at once");
    std::_Exit(kExitFailure);
  }
  NotifySupervisor("STOPPING=1");
  LogInfo("stopping, running requests have ", config.drain_seconds, " s");
  ExitOnSecondSignal(config.drain_seconds + kExitGraceSeconds);
  std::promise<void> drained;
  engine.Drain([&drained] { drained.set_value(); });
  std::future<void> end = drained.get_future();
  if (end.wait_for(std::chrono::seconds(config.drain_seconds)) == std::future_status::timeout) {
    engine.FailAll(absl::UnavailableError("the service is shutting down"));
    end.wait();
  }
}

int Serve(const CoordinatorConfig& config, const Deployment& deployment) {
  absl::StatusOr<PeerSecret> secret = PeerSecret::Load(config.secret_file);
  if (!secret.ok()) return Complain(kExitUsage, secret.status().message());
  absl::StatusOr<std::string> fingerprint = FingerprintOf(*deployment.file, config.verify);
  if (!fingerprint.ok()) return Complain(kExitModelFile, fingerprint.status().message());
  absl::StatusOr<ServedModel> model = LoadServedModel(config, deployment, *fingerprint);
  if (!model.ok()) {
    const bool is_option = absl::IsNotFound(model.status());  // --chat-template
    return Complain(is_option ? kExitUsage : kExitModelFile, model.status().message());
  }
  LogInfo("model=", model->info.name(), " architecture=", model->info.architecture(),
          " layers=", model->info.layer_count(), " stages=", config.stage_count(),
          " context=", deployment.capacity.context, " slots=", deployment.capacity.slot_count,
          " pages=", deployment.capacity.page_count);

  Metrics metrics;
  const int threads = std::clamp<int>(std::thread::hardware_concurrency(), 1, kMaxTokenizerThreads);
  TokenizerPool pool(threads, kTokenizerQueue);
  Servers servers;  // Outlives the engine, which tells it whether requests are taken.
  EngineOptions options = EngineOptionsOf(config, deployment, *model, *std::move(secret));
  options.on_readiness = [&servers](bool ready, const std::string& reason) {
    servers.SetReady(ready, reason);
  };
  Engine engine(std::move(options), metrics);
  const absl::Status started =
      servers.Start(config.listen, {.model = *model,
                                    .engine = engine,
                                    .pool = pool,
                                    .metrics = metrics,
                                    .request_limit = std::chrono::seconds(config.request_timeout)});
  if (!started.ok()) {
    servers.Stop();
    return Complain(kExitFailure, started.message());
  }
  engine.Start();
  RunUntilStopped(config, engine);
  servers.Stop();
  return kExitOk;
}

int Main(int argc, const char* const* argv) {
  InstallTerminateHandler();
  BlockSignals();
  CoordinatorConfig config;
  if (const std::optional<int> code = ReadConfig(argc, argv, config); code.has_value()) {
    return *code;
  }
  InstallMappedFileFaultHandler();
  DeploymentError error;
  const std::unique_ptr<Deployment> deployment = PlanDeployment(config, error);
  if (deployment == nullptr) return Complain(error.exit_code, error.message);
  if (config.print_plan) {
    std::cout << PlanText(config, *deployment) << std::flush;
    return kExitOk;
  }
  if (const absl::Status threads = CheckThreads(kMaxTokenizerThreads + 1); !threads.ok()) {
    return Complain(kExitFailure, threads.message());
  }
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  return Serve(config, *deployment);
}

}  // namespace
}  // namespace warpline

int main(int argc, char** argv) {
  return warpline::FinishOutput("warpline-coordinator", warpline::Main(argc, argv));
}
