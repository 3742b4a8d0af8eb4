// Which kernel each operation uses on one device. Kernels come as rows of a constant table; a
// KernelChoices object is made for one device, raises that device's limits, and replaces what the
// device cannot run. Plain C++ over an interface to the driver, so that choosing is tested with
// invented devices.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "kernels/cuda/kernel_row.h"
#include "model/quant.h"

namespace warpline::cuda {

absl::string_view PolicyName(Policy policy);  // "wgmma", "mma_sync", "wmma", "off"
absl::StatusOr<Policy> ParsePolicy(absl::string_view name);

absl::string_view OpName(Op op);  // "gate_up", "plain", "few_gate_up", "few_plain"

// The value of --tiles: nothing for "auto", else the policy ("mma" is mma_sync).
absl::StatusOr<absl::optional<Policy>> ParseTiles(absl::string_view name);

// What a device says of itself.
struct DeviceLimits {
  int ordinal = 0;
  int capability = 0;
  int shared_bytes_optin = 0;  // most dynamic shared memory of a block, after opting in
  int processors = 0;          // multiprocessors
};

// What the driver says of a kernel on the device of the KernelDriver.
struct FunctionFacts {
  int max_dynamic_shared_bytes = 0;
  int max_threads = 0;  // of a block
};

// The driver as seen from one device. Its limits belong to (kernel, device): what one device has
// been told, another does not know.
class KernelDriver {
 public:
  virtual ~KernelDriver() = default;
  virtual absl::Status SetSharedLimit(const void* function, int bytes) = 0;
  virtual absl::StatusOr<FunctionFacts> Facts(const void* function) = 0;
  // Blocks of this launch that a multiprocessor holds at once; 0 where it cannot be launched.
  virtual absl::StatusOr<int> ResidentBlocks(const void* function, int threads,
                                             int shared_bytes) = 0;
};

// A kernel that may be launched on the device it was prepared for.
struct PreparedKernel {
  KernelRow row;
  int resident_blocks = 0;  // of a multiprocessor
};

// The kernels of one operation, type and policy, largest n first.
struct KernelSet {
  Policy policy = Policy::kOff;
  std::vector<PreparedKernel> kernels;
};

// The choices of one device. Holding one is the proof that its kernels may be launched there.
class KernelChoices {
 public:
  // Prepares every row on the driver's device: raises its shared-memory limit where that is needed
  // and reads it back. A
  // policy with a row that cannot run is left out for that operation and type, with the reason;
  // a part of a policy is never mixed with another one, since their bits differ. The device of
  // `driver` must be current.
  static KernelChoices Prepare(KernelDriver& driver, const DeviceLimits& limits,
                               absl::Span<const KernelRow> rows);

  // The best policy left; FailedPrecondition with all reasons where none is.
  absl::StatusOr<const KernelSet*> For(Op op, QuantType type) const;
  // The same, of one policy only, for comparing policies.
  absl::StatusOr<const KernelSet*> For(Op op, QuantType type, Policy policy) const;

  // From now on prompts take this policy alone, and `off` is taken by decode steps too, whose other
  // kernels serve every policy. What cannot run it has nothing left. FailedPrecondition, with the
  // reasons, where no type can. Pointers to other sets end.
  absl::Status Restrict(Policy policy);
  // Leaves a policy out from now on, as one whose check has failed. Its pointers end.
  void Refuse(Op op, QuantType type, Policy policy, const std::string& reason);

  // The types that the table has kernels for.
  std::vector<QuantType> Types() const;
  // What was left out and what takes its place, one sentence for each reason: "gate_up IQ3_XXS,
  // plain IQ3_XXS: wgmma needs 198656 B of shared memory, device 1 allows 101376 B; mma_sync
  // instead".
  std::vector<std::string> Fallbacks() const;
  // "Q4_K IQ3_XXS: wgmma; TQ1_0: gate_up wgmma, plain off": the policies of all types in the table.
  std::string Summary() const;

 private:
  struct Left {  // a policy that was left out
    Policy policy;
    std::string reason;
  };
  struct Entry {
    std::vector<KernelSet> sets;  // best policy first
    std::vector<Left> left_out;
  };
  using Key = std::pair<Op, QuantType>;

  explicit KernelChoices(const DeviceLimits& limits) : limits_(limits) {}
  void Add(const KernelRow& row, int resident_blocks);
  void LeaveOut(const KernelRow& row, const std::string& reason);
  bool Allows(Op op, Policy policy) const;
  const Entry* Find(Op op, QuantType type) const;
  std::string Reasons(const Entry& entry) const;

  DeviceLimits limits_;
  absl::optional<Policy> only_;  // see Restrict
  std::map<Key, Entry> entries_;
};

}  // namespace warpline::cuda
