#include "worker/doctor.h"

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/flags.h"
#include "kernels/cuda/cuda_library.h"

namespace warpline {
namespace {

// Says why, and gives the exit code.
int NoDevice(const absl::Status& status) {
  std::printf("no CUDA device can be used: %s\n", std::string(status.message()).c_str());
  const bool is_missing = absl::IsFailedPrecondition(status) || absl::IsNotFound(status);
  return is_missing ? kExitNoDevice : kExitFailure;
}

}  // namespace

int RunDoctor() {
  const absl::StatusOr<std::unique_ptr<CudaApi>> api = OpenCudaLibrary();
  if (!api.ok()) return NoDevice(api.status());
  const absl::StatusOr<DoctorReport> report = (*api)->Doctor();
  if (!report.ok()) return NoDevice(report.status());
  std::printf("%s", report->sheet.c_str());
  return report->is_healthy ? kExitOk : kExitFailure;
}

int ShowDeviceMemory(int device) {
  const absl::StatusOr<std::unique_ptr<CudaApi>> api = OpenCudaLibrary();
  if (!api.ok()) return NoDevice(api.status());
  const absl::StatusOr<DeviceMemory> memory = (*api)->MemoryOf(device);
  if (!memory.ok()) return NoDevice(memory.status());
  std::printf("%lld %lld\n", static_cast<long long>(memory->free),
              static_cast<long long>(memory->total));
  return kExitOk;
}

}  // namespace warpline
