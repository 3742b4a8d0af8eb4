#include "kernels/cuda/self_check.h"

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/product_check.h"

namespace warpline::cuda {
namespace {

// Of max |ref|. Sums of 256 products in floats are far better; a wrong one is far worse.
constexpr double kBound = 2.5e-6;
const ParityShape kShape = {256, 256, true};

bool IsFew(Op op) { return op == Op::kFewGateUp || op == Op::kFewPlain; }

// Empty tiles, single rows, and rows on both sides of every tile size.
RowPlan PlanOf(bool is_few) {
  if (is_few) return {"few", {1, 0, 2, 8, 0, 3, 9, 1}, 8};
  return {"mixed", {0, 1, 9, 33, 64, 65, 130, 257}, 8};
}

// What is wrong with one kernel; empty when it is right.
absl::StatusOr<std::string> Judge(ProductCheck& check, const PreparedKernel& kernel,
                                  const ProductCheck::Call& call) {
  const KernelSet alone = {.policy = kernel.row.policy, .kernels = {kernel}};
  const absl::StatusOr<Comparison> comparison = check.Run(alone, call, false);
  if (!comparison.ok()) {
    WL_RETURN_IF_ERROR(CudaStatus(cudaDeviceSynchronize(), "the device is lost"));
    static_cast<void>(cudaGetLastError());
    return std::string(comparison.status().message());
  }
  if (comparison->touched > 0) return absl::StrCat(kernel.row.name, " wrote beyond its rows");
  if (comparison->not_finite > 0 ||
      !(comparison->max_excess <= kBound * comparison->max_reference)) {
    return absl::StrCat(kernel.row.name, " is wrong by ", comparison->max_error, " of ",
                        comparison->max_reference);
  }
  return std::string();
}

absl::StatusOr<std::string> JudgeSet(ProductCheck& check, const KernelSet& set, Op op) {
  const bool is_fused = op == Op::kGateUp || op == Op::kFewGateUp;
  for (const PreparedKernel& kernel : set.kernels) {
    for (const bool y_is_float : {false, true}) {
      if (is_fused && y_is_float) continue;
      WL_ASSIGN_OR_RETURN(std::string fault,
                          Judge(check, kernel, {.op = op, .y_is_float = y_is_float}));
      if (!fault.empty()) return fault;
    }
  }
  return std::string();
}

absl::Status CheckType(ExpertKernels& kernels, QuantType type) {
  WL_ASSIGN_OR_RETURN(const std::unique_ptr<ProductCheck> check,
                      ProductCheck::Create(kernels, type, kShape, 3));
  for (const bool is_few : {false, true}) {
    WL_RETURN_IF_ERROR(check->SetRows(LayOutRows(PlanOf(is_few), 1), 2));
    for (int op_index = 0; op_index < kOpCount; ++op_index) {
      const Op op = static_cast<Op>(op_index);
      if (IsFew(op) != is_few) continue;
      for (int p = 0; p < kPolicyCount; ++p) {
        const Policy policy = static_cast<Policy>(p);
        const absl::StatusOr<const KernelSet*> set = kernels.choices().For(op, type, policy);
        if (!set.ok()) continue;
        WL_ASSIGN_OR_RETURN(const std::string fault, JudgeSet(*check, **set, op));
        if (!fault.empty()) {
          kernels.choices().Refuse(op, type, policy,
                                   absl::StrCat("failed its check on device ",
                                                kernels.device().facts().ordinal, ": ", fault));
        }
      }
      WL_RETURN_IF_ERROR(kernels.choices().For(op, type).status());
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SelfCheck(ExpertKernels& kernels, absl::Span<const QuantType> types) {
  WL_RETURN_IF_ERROR(kernels.device().MakeCurrent());
  absl::Status result;
  for (const QuantType type : types) {
    const absl::Status status = CheckType(kernels, type);
    if (absl::IsInternal(status)) return status;
    result.Update(status);  // The others are checked all the same.
  }
  return result;
}

std::string CapabilityLine(const ExpertKernels& kernels) {
  const DeviceFacts& facts = kernels.device().facts();
  const std::vector<std::string> fallbacks = kernels.choices().Fallbacks();
  return absl::StrCat("device ", facts.ordinal, " ", facts.name, " sm_", facts.capability, ": ",
                      kernels.choices().Summary(),
                      "; fallbacks: ", fallbacks.empty() ? "none" : absl::StrJoin(fallbacks, "; "));
}

}  // namespace warpline::cuda
