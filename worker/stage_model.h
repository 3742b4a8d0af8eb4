// The layers of one stage over a back end: weights of its range, KV caches, page lists of its
// slots.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "model/gguf.h"
#include "model/layer_range.h"
#include "model/model_spec.h"
#include "worker/ple/ngram_reader.h"
#include "worker/step.h"

namespace warpline {

struct StageModelOptions {
  LayerRange layers;
  KvType kv_type = KvType::kF16;
  int slot_count = 1;
  int64_t page_count = 0;          // KV pages for all slots together
  int64_t max_context = 0;         // longest sequence
  int64_t configured_context = 0;  // before it was lowered; longrope chooses its factors by it
  int max_rows = 512;              // most rows of a step
  int max_logit_rows = 32;         // most rows of one Logits() or Candidates() call
  // Rows of the n-gram table; must outlive the stage. The stage that has the table's layer needs
  // it.
  NgramReader* ngram_reader = nullptr;
};

// Owned and used by the stage executor's thread alone. An error of Forward or Logits leaves the
// slots' caches undefined for the sequences of that step only.
class StageModel {
 public:
  // `progress` is called with 0..1 while weights load. Only the tensors of the range are read: the
  // embedding on the first stage, output norm and head on the last. FailedPrecondition, with the
  // numbers, where the device has not enough memory.
  static absl::StatusOr<std::unique_ptr<StageModel>> Load(
      const GgufFile& file, const ModelSpec& spec, const StageModelOptions& options,
      Backend& backend, const std::function<void(double)>& progress);
  virtual ~StageModel() = default;

  virtual bool is_first() const = 0;
  virtual bool is_last() const = 0;
  virtual int64_t weight_bytes() const = 0;
  virtual int64_t cache_bytes() const = 0;
  // For the log: what the stage took of the memory of its device, and what was planned. Empty
  // where the device has none of its own.
  virtual std::string DeviceMemoryLine() const { return ""; }

  // Makes the slot empty: no pages, no state.
  virtual absl::Status ResetSlot(int kv_slot) = 0;
  virtual absl::Status ResetAllSlots() = 0;
  // Tells of a step that Forward will be called for, so that what it needs from disk is read
  // meanwhile. Steps may be told of several ahead, in their order; not telling costs nothing but
  // time. `step` has not been checked.
  virtual void Prefetch(const Step& /*step*/) {}
  // Runs the step's rows through the layers. `in` [row_count, residual_width] f32, empty on the
  // first stage (which embeds); `out` the same shape, empty on the last stage (which keeps the rows
  // for Logits). Entries append their new pages. InvalidArgument when an entry does not fit: slot,
  // page id, position, token id out of range.
  virtual absl::Status Forward(const Step& step, absl::Span<const float> in,
                               absl::Span<float> out) = 0;
  // Last stage: logits of these rows of the step that Forward ran last, [rows.size(), n_vocab].
  virtual absl::Status Logits(absl::Span<const int32_t> rows, absl::Span<float> out) = 0;
  // Last stage: computes the logits of these rows and answers a query for each of them, in `out`
  // [rows.size()].
  virtual absl::Status Candidates(absl::Span<const int32_t> rows,
                                  absl::Span<const CandidateQuery> queries,
                                  absl::Span<RowCandidates> out) = 0;
  // The logits [n_vocab] of the row that query `index` of the last Candidates call was about, with
  // its edits.
  virtual absl::Status EditedLogits(int index, absl::Span<float> out) = 0;
};

}  // namespace warpline
