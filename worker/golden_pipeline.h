// For tests: the golden models of tests/data/families and tests/data/stages, run through stage
// models in this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "model/gguf.h"
#include "model/model_spec.h"
#include "worker/stage_model.h"

namespace warpline {

// The fields of a case's .json that tests need.
struct GoldenCase {
  std::string model_path;
  std::vector<int32_t> tokens;
  std::vector<std::vector<int>> chunkings;
  std::vector<float> logits;  // [tokens.size(), vocabulary]
  bool is_f32 = false;        // all tensors are F32
  double tolerance_nmse = 0;  // of exact weights and f32 caches
  double tolerance_f16 = 0;
  double tolerance_kv_int8 = 0;
};

// Such as "families/llama-plain".
std::vector<std::string> GoldenCaseNames();
GoldenCase ReadGoldenCase(const std::string& name);

// Sum of squared differences over sum of squares of the expected values.
double Nmse(absl::Span<const float> got, absl::Span<const float> expected);

struct PipelineOptions {
  std::vector<int> split;  // first layer of each later stage
  KvType kv_type = KvType::kF32;
  int thread_count = 1;
  int slot_count = 2;
  int64_t page_count = 32;
  int max_rows = 640;
  // What stands between a stage and its back end; as it is by default.
  std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>)> wrap_backend;
};

// All stages of a model, one back end each, handing activations on in memory. Ends the test program
// on an error of loading; errors of steps are returned.
class GoldenPipeline {
 public:
  GoldenPipeline(const std::string& model_path, const PipelineOptions& options);

  // Runs the step through all stages: the logits of all of its rows.
  absl::StatusOr<std::vector<float>> Run(const Step& step);
  // The logits of `tokens` as one sequence in chunks of these lengths, in `kv_slot` from position 0
  // on, with `pages`.
  absl::StatusOr<std::vector<float>> RunSequence(absl::Span<const int32_t> tokens,
                                                 absl::Span<const int> chunks, int kv_slot,
                                                 absl::Span<const int32_t> pages);

  const GgufFile& file() const { return *file_; }
  const ModelSpec& spec() const { return spec_; }
  StageModel& stage(size_t index) { return *stages_[index]; }
  size_t stage_count() const { return stages_.size(); }

 private:
  std::unique_ptr<GgufFile> file_;
  ModelSpec spec_;
  std::unique_ptr<NgramReader> ngram_reader_;  // null: the model has no n-gram table
  std::vector<std::unique_ptr<Backend>> backends_;
  std::vector<std::unique_ptr<StageModel>> stages_;
};

// Lengths of the chunks that cut `count` rows into pieces of `length`.
std::vector<int> ChunksOf(int count, int length);

}  // namespace warpline
