// One CUDA device: what it is, and the driver's view of kernels on it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/kernel_choice.h"

namespace warpline::cuda {

// Facts of a device, read once.
struct DeviceFacts {
  int ordinal = 0;
  std::string name;  // "NVIDIA H200"
  std::string uuid;  // "GPU-..."
  int capability = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int processors = 0;
  int shared_bytes_default = 0;  // of a block, without opting in
  int shared_bytes_optin = 0;    // of a block, after opting in
  int shared_bytes_processor = 0;
};

class Device {
 public:
  // How many devices there are. FailedPrecondition, with a sentence for people, where there is no
  // driver, no device, or a driver too old for this build.
  static absl::StatusOr<int> Count();
  static absl::StatusOr<Device> Open(int ordinal);

  const DeviceFacts& facts() const { return facts_; }
  DeviceLimits limits() const;
  // Whether kernels may start while the one before ends; see early_launch.h.
  bool starts_early() const { return facts_.capability >= 90; }
  // Makes it the calling thread's device. All objects of a device are made and used with it
  // current.
  absl::Status MakeCurrent() const;

 private:
  explicit Device(DeviceFacts facts) : facts_(std::move(facts)) {}
  DeviceFacts facts_;
};

// Versions as "13.0"; "none" where there is no driver.
std::string DriverVersion();
std::string RuntimeVersion();

// The runtime's answers for the device that is current in the calling thread.
class RuntimeDriver final : public KernelDriver {
 public:
  absl::Status SetSharedLimit(const void* function, int bytes) override;
  absl::StatusOr<FunctionFacts> Facts(const void* function) override;
  absl::StatusOr<int> ResidentBlocks(const void* function, int threads, int shared_bytes) override;
};

}  // namespace warpline::cuda
