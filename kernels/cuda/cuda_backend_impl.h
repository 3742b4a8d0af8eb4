// The CUDA back end's class; others see only kernels/backend.h and the factory.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "absl/types/optional.h"
#include "kernels/backend.h"
#include "kernels/cpu/step_state.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/candidate_finder.h"
#include "kernels/cuda/cuda_checks.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/decode_rows.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/expert_product.h"
#include "kernels/cuda/fault_injection.h"
#include "kernels/cuda/matrix_products.h"
#include "kernels/cuda/rope_table.h"
#include "kernels/cuda/slot_sums.h"
#include "kernels/cuda/step_recorder.h"
#include "kernels/cuda/step_tables.h"

namespace warpline::cuda {

// Used by one thread, the stage executor, which is the only user of the device's stream. Ops are
// enqueued in their order; Download waits for them. Scratch grows with the first steps, which a
// stage runs before it serves, and is kept.
class CudaBackend final : public Backend {
 public:
  static absl::StatusOr<std::unique_ptr<CudaBackend>> Create(const CudaOptions& options);

  std::string Describe() const override;
  std::vector<std::string> TakeNotices() override;

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t byte_count) override;
  absl::Status Upload(absl::Span<const uint8_t> bytes, Buffer& buffer,
                      int64_t offset_bytes) override;
  absl::Status Download(const Buffer& buffer, int64_t offset_bytes,
                        absl::Span<uint8_t> bytes) override;
  absl::StatusOr<std::unique_ptr<Weight>> LoadWeight(const WeightArgs& args) override;
  absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheArgs& args) override;
  absl::StatusOr<std::unique_ptr<SlotState>> CreateSlotState(const SlotStateArgs& args) override;
  absl::Status PrepareMoe(const MoeFfnArgs& args) override;
  absl::Status Reserve(int64_t max_rows, int64_t max_context) override;
  absl::StatusOr<std::optional<DeviceMemory>> Memory() const override;

  absl::Status BeginStep(const StepArgs& args) override;
  bool NeedsOps() const override { return recorder_.needs_ops(); }
  absl::Status EndStep() override;
  void AbandonStep() override;

  absl::Status Embed(const EmbedArgs& args) override;
  absl::Status NormConvert(const NormConvertArgs& args) override;
  absl::Status Linear(const LinearArgs& args) override;
  absl::Status QkvRopeStore(const QkvRopeStoreArgs& args) override;
  absl::Status Attention(const AttentionArgs& args) override;
  absl::Status DenseFfn(const DenseFfnArgs& args) override;
  absl::Status MoeFfn(const MoeFfnArgs& args) override;
  absl::Status QsaIndexSelect(const QsaIndexSelectArgs& args) override;
  absl::Status QsaAttend(const QsaAttendArgs& args) override;
  absl::Status HyperMix(const HyperMixArgs& args) override;
  absl::Status HyperCombine(const HyperCombineArgs& args) override;
  absl::Status Ple(const PleArgs& args) override;
  absl::Status DeltaPrep(const DeltaPrepArgs& args) override;
  absl::Status DeltaRun(const DeltaRunArgs& args) override;
  absl::Status Head(const HeadArgs& args) override;
  absl::Status TopCandidates(const TopCandidatesArgs& args) override;

 private:
  // The experts of one layer, checked.
  struct MoeJob {
    CheckedMatrix router;
    const CudaWeight* gate = nullptr;  // or the fused matrix, and `up` is null
    const CudaWeight* up = nullptr;
    const CudaWeight* down = nullptr;
    int64_t n_ff = 0;
    bool is_float = false;  // multiplied in single precision, pair by pair
    FloatRows in;
    FloatRows out;
    TopExpertsArgs top;             // with all that is needed to choose them
    const float* shared = nullptr;  // [rows][n_embd] or null
  };
  using PlanKey = std::tuple<int32_t, int32_t, int32_t, int32_t>;
  struct PlannedExperts {
    std::unique_ptr<ExpertProduct> product;
    int64_t max_tokens = 0;
  };

  explicit CudaBackend(Device device)
      : device_(std::move(device)), staging_(device_.facts().ordinal) {}
  absl::Status Prepare(absl::optional<Policy> tiles);
  absl::Status CheckType(QuantType type, bool is_expert);
  // Once for each sentence; empty: nothing.
  void Notice(std::string sentence);
  absl::Status CheckInStep() const;
  // Of the steps that have ended: to be called where the host has waited for the stream.
  absl::Status CheckExpertIds() const;
  // Something that recorded steps rely on changes.
  void ForgetRecords() { recorder_.Forget(); }
  // Grows with the memory that steps work in.
  int64_t Footprint() const;
  int32_t RaisedContext(int32_t context) const;
  // To be called by each op of a step before it launches anything, with what its launches depend
  // on. False: they are in the record that EndStep launches.
  template <typename... Parts>
  absl::StatusOr<bool> EnterOp(const Parts&... parts) {
    WL_RETURN_IF_ERROR(RunDeferred());
    return EnterFollowingOp(parts...);
  }
  // The same for an op that may take what was deferred into its own kernel.
  template <typename... Parts>
  absl::StatusOr<bool> EnterFollowingOp(const Parts&... parts) {
    uint64_t digest = 0;
    ((digest = Digest(digest, DigestOf(parts))), ...);
    return recorder_.EnterOp(digest, stream_.get());
  }
  // Launches what ops of a decode step have left to the next one: the sums of an expert layer or a
  // norm, of which at most one is left.
  absl::Status RunDeferred();
  // Launches the norm, or leaves it to the next op.
  absl::Status Norm(NormArgs norm);
  static uint64_t DigestOf(const FloatRows& rows) {
    return Digest(DigestOf(rows.data), static_cast<uint64_t>(rows.row_count * 31 + rows.stride));
  }
  static uint64_t DigestOf(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }
  static uint64_t DigestOf(int value) { return static_cast<uint64_t>(value); }
  int64_t MostRows(int64_t rows) const { return rows > max_rows_ ? rows : max_rows_; }

  // out (+)= down(activation(gate in) . (up in)), then times the sigmoid of a row's gate.
  struct FfnJob {
    CheckedMatrix gate, up, down;
    Activation activation = Activation::kSilu;
    FloatRows in, out;
    const float* row_gate = nullptr;
    bool accumulate = false;
  };
  absl::StatusOr<FfnJob> CheckFfn(const LinearWeight& gate, const LinearWeight& up,
                                  const LinearWeight& down, const FloatRows& in) const;
  absl::Status RunFfn(const FfnJob& job);

  absl::StatusOr<MoeJob> CheckExperts(const MoeFfnArgs& args) const;
  absl::StatusOr<MoeJob> CheckMoe(const MoeFfnArgs& args) const;
  absl::Status ScoreExperts(const MoeFfnArgs& args, MoeJob& job);
  absl::Status ScoreRows(const MoeJob& job, float* logits);
  absl::Status RunSharedExpert(const MoeFfnArgs& args, MoeJob& job);
  absl::Status RunFloatExperts(const MoeFfnArgs& args, const MoeJob& job);
  absl::Status RunPackedExperts(const MoeFfnArgs& args, const MoeJob& job);
  absl::StatusOr<const ExpertWeights*> PackLayer(const MoeJob& job);
  absl::StatusOr<ExpertProduct*> PlanExperts(const MoeFfnArgs& args, const MoeJob& job,
                                             const ExpertWeights& weights);

  const Device device_;
  std::string tiles_;  // as asked for
  std::vector<std::string> notices_;
  std::set<std::string> told_;  // notices of this back end's life
  Stream stream_;
  DeviceGrids grids_;
  WeightStaging staging_;
  // Declared before what launches its kernels.
  absl::optional<ExpertKernels> kernels_;
  absl::optional<MatrixProducts> products_;
  absl::optional<PagedAttention> attention_;
  std::map<PlanKey, PlannedExperts> experts_;

  int64_t max_rows_ = 0;
  int64_t max_context_ = 0;
  int64_t page_count_ = 0;  // of the largest KV cache
  StepState step_;
  bool is_decode_ = false;  // of the step that was begun last
  absl::optional<StepTables> tables_;
  absl::optional<SlotSums> deferred_sums_;
  absl::optional<NormArgs> deferred_norm_;
  StepRecorder recorder_;
  FaultInjection faults_;
  bool can_record_ = true;  // whether all products of the weights that are loaded can be recorded
  int64_t footprint_ = 0;   // that the records were made with
  absl::optional<RopeTables> rope_tables_;
  int64_t rope_rows_ = 0;

  Scratch gate_, up_;  // of feed-forward layers, [rows][n_ff]
  Scratch head_rows_;  // Head, rows that are no neighbours
  CandidateFinder candidates_;
  Scratch logits_, expert_ids_, expert_weights_;  // of routers
  Scratch shared_gate_, shared_;                  // of shared experts
  Scratch packed_in_, packed_out_;                // rows without gaps, for the expert product
};

}  // namespace warpline::cuda
