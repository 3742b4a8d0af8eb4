// What the coordinator derives from its configuration and the model file before anything starts.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/cache_allocator.h"
#include "coordinator/capacity_plan.h"
#include "coordinator/config.h"
#include "coordinator/pipeline.h"
#include "coordinator/split_plan.h"
#include "model/gguf.h"
#include "model/model_spec.h"

namespace warpline {

struct Deployment {
  std::unique_ptr<GgufFile> file;
  ModelSpec spec;
  int64_t ple_table_bytes = 0;  // of the n-gram table, on disk
  int64_t header_bytes = 0;     // of the model file: metadata and tensor infos
  SplitPlan split;
  CapacityPlan capacity;
  int max_chunk_rows = 0;  // of a prompt chunk
  int max_step_rows = 0;   // of any step
};

// Why a deployment cannot be, with the exit code that says so.
struct DeploymentError {
  int exit_code = 0;
  std::string message;
};

// `error` is set when nothing is returned.
std::unique_ptr<Deployment> PlanDeployment(const CoordinatorConfig& config, DeploymentError& error);

// A table for people: stages, layers, bytes, and what fits.
std::string PlanText(const CoordinatorConfig& config, const Deployment& deployment);

}  // namespace warpline
