// How much memory a stage takes on its machine, item by item. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/capacity_plan.h"
#include "model/layer_range.h"
#include "model/model_spec.h"
#include "proto/stage.pb.h"

namespace warpline {

// The n-gram table and how workers are told to read it.
struct NgramTableUse {
  std::string io = "auto";  // auto, direct, mmap or ram
  int64_t cache_bytes = 0;  // for rows kept in memory
  int64_t table_bytes = 0;  // on disk
};

struct StageMemoryArgs {
  LayerRange layers;
  int64_t weight_bytes = 0;
  v1::KvCacheType kv_type = v1::KV_CACHE_TYPE_F16;
  int64_t page_count = 0;
  int slot_count = 1;
  int64_t context = 0;       // tokens of the longest sequence
  int64_t step_rows = 0;     // most of one step
  int thread_count = 1;      // compute threads of the worker
  int64_t header_bytes = 0;  // of the model file: metadata and tensor infos
  NgramTableUse ngrams;
};

struct StageMemory {
  int64_t weights = 0;
  int64_t caches = 0;
  int64_t step = 0;     // room for the rows of a step
  int64_t process = 0;  // a worker with nothing loaded, what it knows of the file, its threads
  int64_t ngrams = 0;   // rows of the n-gram table in memory

  int64_t sum() const { return weights + caches + step + process + ngrams; }
  void Add(const StageMemory& other);
};

// What the worker of a stage takes at most.
StageMemory MemoryOfStage(const ModelSpec& spec, const StageMemoryArgs& args);

}  // namespace warpline
