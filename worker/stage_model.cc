#include "worker/stage_model.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/device_bytes.h"
#include "model/state_bytes.h"
#include "worker/layers/hyper_connection.h"
#include "worker/layers/hyper_layer.h"
#include "worker/layers/pre_norm_layer.h"
#include "worker/layers/workspace.h"
#include "worker/ple/ngram_feed.h"
#include "worker/rope.h"
#include "worker/slots.h"
#include "worker/stage_weights.h"

namespace warpline {
namespace {

absl::Status CheckAtLeastOne(absl::string_view name, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("stage option ", name, " is ", value, ", expected at least 1"));
}

absl::Status CheckOptions(const StageModelOptions& options, const ModelSpec& spec) {
  const LayerRange layers = options.layers;
  if (layers.begin < 0 || layers.size() < 1 || layers.end > spec.n_layer) {
    return absl::InvalidArgumentError(absl::StrCat("layer range [", layers.begin, ", ", layers.end,
                                                   ") does not lie in a model of ", spec.n_layer,
                                                   " layers"));
  }
  WL_RETURN_IF_ERROR(CheckAtLeastOne("slot_count", options.slot_count));
  WL_RETURN_IF_ERROR(CheckAtLeastOne("page_count", options.page_count));
  WL_RETURN_IF_ERROR(CheckAtLeastOne("max_context", options.max_context));
  WL_RETURN_IF_ERROR(CheckAtLeastOne("max_rows", options.max_rows));
  if (spec.ple.layer >= layers.begin && spec.ple.layer < layers.end &&
      options.ngram_reader == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("no reader for the n-gram table, which layer ", spec.ple.layer, " needs"));
  }
  return CheckAtLeastOne("max_logit_rows", options.max_logit_rows);
}

// What the stage loads, as bytes of the file. A tied embedding counts once where a stage needs it
// for both ends.
int64_t BytesToLoad(const GgufFile& file, const ModelSpec& spec, LayerRange layers) {
  const ModelBytes bytes = BytesOf(spec, file);
  int64_t total = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer) total += bytes.layers[layer];
  const bool is_first = layers.begin == 0;
  const bool is_last = layers.end == spec.n_layer;
  if (is_first) total += bytes.embedding;
  if (is_last) total += bytes.head;
  if (is_first && is_last) total -= bytes.shared_ends;
  return total;
}

CacheFormat FormatOf(KvType type) {
  switch (type) {
    case KvType::kF32:
      return CacheFormat::kF32;
    case KvType::kF16:
      return CacheFormat::kF16;
    case KvType::kQ8_0:
      return CacheFormat::kQ8_0;
  }
  return CacheFormat::kF32;
}

int64_t MiB(int64_t bytes) { return bytes >> 20; }

absl::Status NoRoom(const DeviceBytes& planned, const DeviceMemory& memory) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the device has ", MiB(memory.free), " MiB free of ", MiB(memory.total),
      ", this stage needs about ", MiB(planned.sum()), " MiB: weights ", MiB(planned.weights),
      ", caches ", MiB(planned.caches), ", steps ", MiB(planned.step),
      "; a smaller -c, --parallel or --chunk, --kv-type q8_0 or more workers need less"));
}

absl::Span<uint8_t> BytesOf(absl::Span<float> values) {
  return {reinterpret_cast<uint8_t*>(values.data()), values.size() * sizeof(float)};
}

class LoadedStage final : public StageModel {
 public:
  LoadedStage(const ModelSpec& spec, const StageModelOptions& options, Backend& backend)
      : spec_(spec),
        options_(options),
        backend_(backend),
        slots_({.slot_count = options.slot_count,
                .page_count = options.page_count,
                .max_context = options.max_context,
                .max_rows = options.max_rows,
                .n_vocab = spec.n_vocab}) {}

  absl::Status Load(const GgufFile& file, const std::function<void(double)>& progress);

  bool is_first() const override { return options_.layers.begin == 0; }
  bool is_last() const override { return options_.layers.end == spec_.n_layer; }
  int64_t weight_bytes() const override { return weight_bytes_; }
  int64_t cache_bytes() const override { return cache_bytes_; }
  std::string DeviceMemoryLine() const override { return device_memory_line_; }

  absl::Status ResetSlot(int kv_slot) override;
  absl::Status ResetAllSlots() override;
  void Prefetch(const Step& step) override {
    if (ngrams_.has_value()) ngrams_->Prefetch(step);
  }
  absl::Status Forward(const Step& step, absl::Span<const float> in,
                       absl::Span<float> out) override;
  absl::Status Logits(absl::Span<const int32_t> rows, absl::Span<float> out) override;
  absl::Status Candidates(absl::Span<const int32_t> rows, absl::Span<const CandidateQuery> queries,
                          absl::Span<RowCandidates> out) override;
  absl::Status EditedLogits(int index, absl::Span<float> out) override;

 private:
  absl::Status LoadAll(const GgufFile& file, const std::function<void(double)>& progress);
  bool is_wide() const { return spec_.hyper.stream_count > 1; }
  bool has_ngram_layer() const {
    return spec_.ple.layer >= options_.layers.begin && spec_.ple.layer < options_.layers.end;
  }
  absl::Status LoadEnds(WeightLoader& loader);
  absl::Status RunDrySteps();
  absl::Status RunDryStep(StepKind kind, int sequence_count, int rows_each);
  absl::Status FetchNgrams(const Step& step);
  absl::Status CheckStep(const Step& step, absl::Span<const float> in, absl::Span<float> out) const;
  absl::Status RunLayers(const Tensor& residual, absl::Span<const float> in);
  absl::Status CheckLogitRows(absl::Span<const int32_t> rows) const;
  Tensor LogitRows(size_t row_count) const {
    return PackedRows(logits_.get(), static_cast<int64_t>(row_count), spec_.n_vocab);
  }
  absl::Status RunHead(absl::Span<const int32_t> rows);
  int64_t CacheBytes() const;

  const ModelSpec spec_;
  const StageModelOptions options_;
  Backend& backend_;
  SlotTable slots_;
  RopeTable rope_;
  RopeTable rope_local_;
  Workspace workspace_;
  std::vector<std::unique_ptr<Layer>> layers_;
  Matrix embedding_;  // first stage; also the head of a last stage that is the first one and tied
  std::unique_ptr<Buffer> output_gamma_;  // [n_embd], last stage, unless the residual is wide
  std::optional<HyperConnection> output_streams_;
  std::optional<NgramFeed> ngrams_;  // on the stage with the n-gram table's layer
  std::vector<float> ngram_values_;  // [rows of the step, n_embd]
  Matrix head_;                      // last stage, unless embedding_ serves
  std::unique_ptr<Buffer> logits_;   // [max_logit_rows, n_vocab], last stage
  int64_t weight_bytes_ = 0;
  int64_t cache_bytes_ = 0;
  std::string device_memory_line_;
  int row_count_ = 0;               // of the step that Forward ran last; 0 after a failure
  int candidate_rows_ = 0;          // of the Candidates call whose logits are still there
  std::vector<int32_t> token_ids_;  // of the step, row by row
  std::vector<StepSequence> sequences_;
};

absl::Status LoadedStage::Load(const GgufFile& file, const std::function<void(double)>& progress) {
  WL_ASSIGN_OR_RETURN(const std::optional<DeviceMemory> before, backend_.Memory());
  if (!before.has_value()) return LoadAll(file, progress);
  const DeviceBytes planned = DeviceBytesOf(file, spec_,
                                            {.layers = options_.layers,
                                             .format = FormatOf(options_.kv_type),
                                             .page_count = options_.page_count,
                                             .slot_count = options_.slot_count,
                                             .max_rows = options_.max_rows,
                                             .max_context = options_.max_context});
  // What steps take is an estimate, which must not refuse what would fit.
  if (planned.weights + planned.caches > before->free) return NoRoom(planned, *before);
  absl::Status loaded = LoadAll(file, progress);
  if (loaded.ok()) loaded = RunDrySteps();
  if (absl::IsResourceExhausted(loaded))
    return Annotate(NoRoom(planned, *before), loaded.message());
  WL_RETURN_IF_ERROR(loaded);
  WL_ASSIGN_OR_RETURN(const std::optional<DeviceMemory> after, backend_.Memory());
  device_memory_line_ = absl::StrCat(
      " device_taken_mib=", MiB(before->free - after->free), " planned_mib=", MiB(planned.sum()),
      " device_used_mib=", MiB(after->total - after->free), " device_free_mib=", MiB(after->free));
  if (progress) progress(1);
  return absl::OkStatus();
}

absl::Status LoadedStage::LoadAll(const GgufFile& file,
                                  const std::function<void(double)>& progress) {
  WL_ASSIGN_OR_RETURN(const std::vector<float> factors,
                      FrequencyFactors(file, spec_.rope, options_.configured_context));
  rope_ = ComputeRope(spec_.rope, factors);
  rope_local_ = ComputeRope(spec_.rope_local, {});
  WL_ASSIGN_OR_RETURN(workspace_, Workspace::Create(spec_, options_.layers, options_.max_rows,
                                                    options_.max_context, backend_));
  const StatePlan state{.kv_type = options_.kv_type,
                        .page_count = options_.page_count,
                        .slot_count = options_.slot_count,
                        .max_context = options_.max_context};
  WeightLoader loader(file, backend_, BytesToLoad(file, spec_, options_.layers), progress);
  for (int layer = options_.layers.begin; layer < options_.layers.end; ++layer) {
    WL_ASSIGN_OR_RETURN(std::unique_ptr<Layer> loaded,
                        is_wide() ? HyperLayer::Load(loader, spec_, layer, state, backend_)
                                  : PreNormLayer::Load(loader, spec_, layer, state, backend_));
    layers_.push_back(std::move(loaded));
  }
  WL_RETURN_IF_ERROR(LoadEnds(loader));
  weight_bytes_ = loader.loaded_bytes();
  cache_bytes_ = CacheBytes();
  token_ids_.reserve(options_.max_rows);
  if (has_ngram_layer()) {
    ngrams_.emplace(spec_.ple, *options_.ngram_reader, options_.slot_count);
  }
  WL_RETURN_IF_ERROR(backend_.Reserve(options_.max_rows, options_.max_context));
  if (progress) progress(1);
  return absl::OkStatus();
}

absl::Status LoadedStage::LoadEnds(WeightLoader& loader) {
  const MatrixShape shape{.input_width = spec_.n_embd, .output_width = spec_.n_vocab};
  if (is_first()) {
    WL_ASSIGN_OR_RETURN(embedding_, loader.LoadMatrix("token_embd", shape));
  }
  if (!is_last()) return absl::OkStatus();
  if (is_wide()) {
    WL_ASSIGN_OR_RETURN(output_streams_, HyperConnection::Load(loader, spec_, "output_hc_",
                                                               HyperConnection::Inject::kNone));
  } else {
    WL_ASSIGN_OR_RETURN(output_gamma_, loader.LoadVector("output_norm.weight", spec_.n_embd));
  }
  MatrixShape head_shape = shape;
  head_shape.only_multiplied = true;
  if (!spec_.tied_embeddings) {
    const Bias bias = spec_.architecture == Architecture::kQwen2 ? Bias::kIfPresent : Bias::kNone;
    WL_ASSIGN_OR_RETURN(head_, loader.LoadMatrix("output", head_shape, bias));
  } else if (!is_first()) {
    WL_ASSIGN_OR_RETURN(head_, loader.LoadMatrix("token_embd", head_shape));
  }
  const int64_t logit_count = int64_t{options_.max_logit_rows} * spec_.n_vocab;
  WL_ASSIGN_OR_RETURN(logits_,
                      backend_.Allocate(logit_count * static_cast<int64_t>(sizeof(float))));
  return absl::OkStatus();
}

// Steps on tokens that nobody asked for, of the largest shapes and of those that come most often:
// what a device allocates and records in its first steps is there before the first request.
absl::Status LoadedStage::RunDrySteps() {
  const int64_t prompt_rows = std::min(
      {int64_t{options_.max_rows}, options_.max_context, options_.page_count * kPageTokens});
  WL_RETURN_IF_ERROR(RunDryStep(StepKind::kPrompt, 1, static_cast<int>(prompt_rows)));
  const int most_sequences = std::min(options_.slot_count, options_.max_rows);
  WL_RETURN_IF_ERROR(RunDryStep(StepKind::kDecode, most_sequences, 1));
  // Now that the largest one has made the room, each shape is recorded when it comes again.
  constexpr int kTimes = 2;
  for (int rows = most_sequences; rows > 0; rows /= 2) {
    for (int time = 0; time < kTimes; ++time) {
      WL_RETURN_IF_ERROR(RunDryStep(StepKind::kDecode, rows, 1));
    }
  }
  return absl::OkStatus();
}

absl::Status LoadedStage::RunDryStep(StepKind kind, int sequence_count, int rows_each) {
  Step step{.kind = kind};
  for (int slot = 0; slot < sequence_count; ++slot) {
    StepEntry entry{.kv_slot = slot};
    for (int row = 0; row < rows_each; ++row) {
      entry.token_ids.push_back((slot + row) % spec_.n_vocab);
    }
    // Nobody reads these pages, so sequences of one row each may share one.
    for (int64_t page = 0; page * kPageTokens < rows_each; ++page) {
      entry.new_pages.push_back(static_cast<int32_t>((slot + page) % options_.page_count));
    }
    step.entries.push_back(std::move(entry));
  }
  const int row_count = step.RowCount();
  const size_t value_count = static_cast<size_t>(row_count) * spec_.residual_width;
  const std::vector<float> in(is_first() ? 0 : value_count);
  std::vector<float> out(is_last() ? 0 : value_count);
  WL_RETURN_IF_ERROR(Forward(step, in, absl::MakeSpan(out)));
  if (is_last()) {
    std::vector<int32_t> rows(std::min(row_count, options_.max_logit_rows));
    std::iota(rows.begin(), rows.end(), 0);
    const std::vector<CandidateQuery> queries(rows.size(),
                                              {.temperature = 1, .most = kMaxCandidates});
    std::vector<RowCandidates> found(rows.size());
    WL_RETURN_IF_ERROR(Candidates(rows, queries, absl::MakeSpan(found)));
  }
  row_count_ = candidate_rows_ = 0;
  return ResetAllSlots();
}

int64_t LoadedStage::CacheBytes() const {
  return CacheBytesOf(spec_, options_.layers, FormatOf(options_.kv_type), options_.page_count,
                      options_.slot_count);
}

absl::Status LoadedStage::ResetSlot(int kv_slot) {
  WL_RETURN_IF_ERROR(slots_.Reset(kv_slot));
  for (const std::unique_ptr<Layer>& layer : layers_) {
    WL_RETURN_IF_ERROR(layer->ResetSlot(kv_slot));
  }
  if (ngrams_.has_value()) ngrams_->ResetSlot(kv_slot);
  return absl::OkStatus();
}

absl::Status LoadedStage::ResetAllSlots() {
  for (int slot = 0; slot < options_.slot_count; ++slot) WL_RETURN_IF_ERROR(ResetSlot(slot));
  return absl::OkStatus();
}

absl::Status LoadedStage::CheckStep(const Step& step, absl::Span<const float> in,
                                    absl::Span<float> out) const {
  WL_RETURN_IF_ERROR(slots_.Check(step));
  const size_t value_count = static_cast<size_t>(step.RowCount()) * spec_.residual_width;
  const size_t in_count = is_first() ? 0 : value_count;
  const size_t out_count = is_last() ? 0 : value_count;
  if (in.size() != in_count) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step.step_id, ": ", in.size(),
                                                   " values come in, expected ", in_count));
  }
  if (out.size() != out_count) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step.step_id, ": room for ", out.size(),
                                                   " values, expected ", out_count));
  }
  return absl::OkStatus();
}

absl::Status LoadedStage::Forward(const Step& step, absl::Span<const float> in,
                                  absl::Span<float> out) {
  row_count_ = candidate_rows_ = 0;
  WL_RETURN_IF_ERROR(CheckStep(step, in, out));
  slots_.Advance(step, sequences_);
  token_ids_.clear();
  for (const StepEntry& entry : step.entries) {
    token_ids_.insert(token_ids_.end(), entry.token_ids.begin(), entry.token_ids.end());
  }
  const int row_count = static_cast<int>(token_ids_.size());
  const Tensor residual = PackedRows(workspace_.residual.get(), row_count, spec_.residual_width);
  WL_RETURN_IF_ERROR(
      backend_.BeginStep({.kind = step.kind, .token_ids = token_ids_, .sequences = sequences_}));
  absl::Status ran = ngrams_.has_value() ? FetchNgrams(step) : absl::OkStatus();
  if (ran.ok()) ran = RunLayers(residual, in);
  if (!ran.ok()) {
    backend_.AbandonStep();
    return ran;
  }
  WL_RETURN_IF_ERROR(backend_.EndStep());
  if (!is_last()) {
    WL_RETURN_IF_ERROR(backend_.Download(*workspace_.residual, 0, BytesOf(out)));
  }
  row_count_ = row_count;
  return absl::OkStatus();
}

absl::Status LoadedStage::FetchNgrams(const Step& step) {
  ngram_values_.resize(token_ids_.size() * static_cast<size_t>(spec_.n_embd));
  WL_RETURN_IF_ERROR(ngrams_->Fetch(step, absl::MakeSpan(ngram_values_)));
  const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(ngram_values_.data()),
                                        ngram_values_.size() * sizeof(float));
  return backend_.Upload(bytes, *workspace_.ngrams, 0);
}

// Runs between BeginStep and EndStep.
absl::Status LoadedStage::RunLayers(const Tensor& residual, absl::Span<const float> in) {
  if (!is_first()) {
    const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(in.data()),
                                          in.size() * sizeof(float));
    WL_RETURN_IF_ERROR(backend_.Upload(bytes, *workspace_.residual, 0));
  }
  if (!backend_.NeedsOps()) return absl::OkStatus();
  if (is_first()) {
    WL_RETURN_IF_ERROR(backend_.Embed({.table = embedding_.weight.get(),
                                       .factor = static_cast<float>(spec_.embedding_factor),
                                       .copies = spec_.hyper.stream_count,
                                       .out = residual}));
  }
  const LayerContext context{
      .backend = backend_, .workspace = workspace_, .rope = rope_, .rope_local = rope_local_};
  for (const std::unique_ptr<Layer>& layer : layers_) {
    WL_RETURN_IF_ERROR(layer->Run(context, residual));
  }
  if (!is_last()) return absl::OkStatus();
  const Tensor normed = PackedRows(workspace_.normed.get(), residual.row_count, spec_.n_embd);
  if (output_streams_.has_value()) return output_streams_->Mix(context, residual, normed);
  return backend_.NormConvert({.in = residual,
                               .gamma = output_gamma_.get(),
                               .eps = static_cast<float>(spec_.rms_eps),
                               .out = normed});
}

absl::Status LoadedStage::CheckLogitRows(absl::Span<const int32_t> rows) const {
  if (!is_last()) return absl::InvalidArgumentError("logits asked of a stage that is not the last");
  if (rows.size() > static_cast<size_t>(options_.max_logit_rows)) {
    return absl::InvalidArgumentError(absl::StrCat("logits of ", rows.size(),
                                                   " rows asked, more than max_logit_rows ",
                                                   options_.max_logit_rows));
  }
  for (const int32_t row : rows) {
    if (row < 0 || row >= row_count_) {
      return absl::InvalidArgumentError(
          absl::StrCat("logits of row ", row, " asked, the last step has ", row_count_, " rows"));
    }
  }
  return absl::OkStatus();
}

absl::Status LoadedStage::Logits(absl::Span<const int32_t> rows, absl::Span<float> out) {
  candidate_rows_ = 0;
  WL_RETURN_IF_ERROR(CheckLogitRows(rows));
  if (out.size() != rows.size() * spec_.n_vocab) {
    return absl::InvalidArgumentError(
        absl::StrCat("room for ", out.size(), " logits, expected ", rows.size() * spec_.n_vocab));
  }
  if (rows.empty()) return absl::OkStatus();
  WL_RETURN_IF_ERROR(RunHead(rows));
  return backend_.Download(*logits_, 0, BytesOf(out));
}

absl::Status LoadedStage::Candidates(absl::Span<const int32_t> rows,
                                     absl::Span<const CandidateQuery> queries,
                                     absl::Span<RowCandidates> out) {
  candidate_rows_ = 0;
  WL_RETURN_IF_ERROR(CheckLogitRows(rows));
  if (rows.empty()) return absl::OkStatus();
  WL_RETURN_IF_ERROR(RunHead(rows));
  WL_RETURN_IF_ERROR(
      backend_.TopCandidates({.logits = LogitRows(rows.size()), .queries = queries, .out = out}));
  candidate_rows_ = static_cast<int>(rows.size());
  return absl::OkStatus();
}

absl::Status LoadedStage::EditedLogits(int index, absl::Span<float> out) {
  if (index < 0 || index >= candidate_rows_ || out.size() != static_cast<size_t>(spec_.n_vocab)) {
    return absl::InvalidArgumentError(
        absl::StrCat("room for ", out.size(), " logits of query ", index, " of ", candidate_rows_));
  }
  const int64_t row_bytes = int64_t{spec_.n_vocab} * static_cast<int64_t>(sizeof(float));
  return backend_.Download(*logits_, index * row_bytes, BytesOf(out));
}

absl::Status LoadedStage::RunHead(absl::Span<const int32_t> rows) {
  const Matrix& matrix = head_.weight != nullptr ? head_ : embedding_;
  return backend_.Head({.matrix = matrix.linear(),
                        .in = PackedRows(workspace_.normed.get(), row_count_, spec_.n_embd),
                        .rows = rows,
                        .soft_cap = static_cast<float>(spec_.logit_soft_cap),
                        .out = LogitRows(rows.size())});
}

}  // namespace

absl::StatusOr<std::unique_ptr<StageModel>> StageModel::Load(
    const GgufFile& file, const ModelSpec& spec, const StageModelOptions& options, Backend& backend,
    const std::function<void(double)>& progress) {
  WL_RETURN_IF_ERROR(CheckOptions(options, spec));
  auto stage = std::make_unique<LoadedStage>(spec, options, backend);
  WL_RETURN_IF_ERROR(stage->Load(file, progress));
  return stage;
}

}  // namespace warpline
