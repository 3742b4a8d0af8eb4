// The CPU back end's class; programs see only kernels/backend.h and the factory.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cpu_memory.h"
#include "kernels/cpu/hybrid_kernels.h"
#include "kernels/cpu/matrix_product.h"
#include "kernels/cpu/moe.h"
#include "kernels/cpu/op_checks.h"
#include "kernels/cpu/qsa_select.h"
#include "kernels/cpu/rope_table.h"
#include "kernels/cpu/step_state.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/wide_jobs.h"

namespace warpline {

// Used by one thread, the stage executor. Every op is complete when it returns. Weights live until
// the back end ends.
class CpuBackend final : public Backend {
 public:
  CpuBackend(InstructionSet set, int thread_count);

  std::string Describe() const override;

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t byte_count) override;
  absl::Status Upload(absl::Span<const uint8_t> bytes, Buffer& buffer,
                      int64_t offset_bytes) override;
  absl::Status Download(const Buffer& buffer, int64_t offset_bytes,
                        absl::Span<uint8_t> bytes) override;
  absl::StatusOr<std::unique_ptr<Weight>> LoadWeight(const WeightArgs& args) override;
  absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheArgs& args) override;
  absl::StatusOr<std::unique_ptr<SlotState>> CreateSlotState(const SlotStateArgs& args) override;
  absl::Status Reserve(int64_t max_rows, int64_t max_context) override;

  absl::Status BeginStep(const StepArgs& args) override;
  absl::Status EndStep() override;

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
  // Calls task(row) for all rows, in parallel when there is enough to do.
  template <typename Task>
  void ForRows(int64_t row_count, int64_t floats_per_row, const Task& task) {
    constexpr int64_t kInlineFloats = 16 << 10;  // less work is not worth waking anybody
    constexpr int64_t kRowsPerTask = 8;
    const bool one_task = row_count * floats_per_row < kInlineFloats;
    const int64_t rows = one_task ? row_count : kRowsPerTask;
    const int64_t tasks = one_task ? 1 : (row_count + rows - 1) / rows;
    pool_.Run(tasks, [&](int64_t index, int) {
      const int64_t end = std::min(row_count, (index + 1) * rows);
      for (int64_t row = index * rows; row < end; ++row) task(row);
    });
  }
  absl::Status CheckInStep() const;
  absl::StatusOr<AttentionJob> CheckAttention(const AttentionArgs& args) const;
  absl::StatusOr<HyperJob> CheckHyperMix(const HyperMixArgs& args) const;
  absl::Status MixRows(const HyperMixArgs& args, const HyperJob& job, int64_t first,
                       int64_t row_count);
  absl::StatusOr<PleJob> CheckPle(const PleArgs& args) const;
  absl::Status InjectRows(const PleArgs& args, const PleJob& job, int64_t first, int64_t row_count);
  absl::Status ApplyGate(const AttentionArgs& args);
  absl::Status CheckExperts(const MoeFfnArgs& args, MoeJob& job) const;

  const InstructionSet set_;
  const RowKernels& row_;
  const HybridKernels& hybrid_;
  CpuArena arena_;  // weights
  int64_t max_rows_ = 0;
  StepState step_;
  RopeTables rope_tables_;
  CpuScratch hidden_;     // DenseFfn, between gate and down
  CpuScratch head_rows_;  // Head, the chosen rows
  ThreadPool pool_;
  MatrixProduct product_;
  PagedAttention attention_;
  MoeLayer moe_;
  QsaSelector selector_;
  CpuScratch wide_normed_, wide_gates_, wide_low_,
      wide_conv_;  // HyperMix and Ple, some rows at a time
};

}  // namespace warpline
