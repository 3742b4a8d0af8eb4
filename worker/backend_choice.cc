#include "worker/backend_choice.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cuda/cuda_library.h"

namespace warpline {

absl::StatusOr<std::unique_ptr<Backend>> OpenBackend(const WorkerConfig& config) {
  if (config.backend != "cuda") return CreateCpuBackend({.thread_count = config.threads});
  // The library stays loaded after this.
  WL_ASSIGN_OR_RETURN(const std::unique_ptr<CudaApi> api, OpenCudaLibrary());
  return api->CreateBackend({.device = config.device, .tiles = config.tiles});
}

absl::Status CheckModelRuns(const WorkerConfig& config, const ModelSpec& spec) {
  if (config.backend != "cuda") return absl::OkStatus();
  const auto refuse = [&spec](absl::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat("the CUDA back end cannot run models of ",
                                                      spec.architecture_name, " yet: it has no ",
                                                      what, "; --backend cpu can"));
  };
  if (spec.hyper.stream_count > 1) return refuse("hyper-connections");
  for (const LayerSpec& layer : spec.layers) {
    if (layer.kind == LayerKind::kDeltaNet) return refuse("Gated DeltaNet layers");
    if (layer.compress_ratio > 0) return refuse("sparse attention");
  }
  return absl::OkStatus();
}

}  // namespace warpline
