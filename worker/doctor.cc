#include "worker/doctor.h"

#include <cstdio>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/flags.h"
#include "kernels/cuda/cuda_library.h"

namespace warpline {

int RunDoctor() {
  const absl::StatusOr<std::unique_ptr<CudaApi>> api = OpenCudaLibrary();
  if (!api.ok()) {
    std::printf("no CUDA device can be used: %s\n", std::string(api.status().message()).c_str());
    return kExitNoDevice;
  }
  const absl::StatusOr<DoctorReport> report = (*api)->Doctor();
  if (!report.ok()) {
    std::printf("no CUDA device can be used: %s\n", std::string(report.status().message()).c_str());
    return absl::IsFailedPrecondition(report.status()) ? kExitNoDevice : kExitFailure;
  }
  std::printf("%s", report->sheet.c_str());
  return report->is_healthy ? kExitOk : kExitFailure;
}

}  // namespace warpline
