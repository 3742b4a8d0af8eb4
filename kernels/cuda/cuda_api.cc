// What libwarpline_cuda.so exports: one entry that gives the implementation of CudaApi.
#include <cstring>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cuda/doctor.h"
#include "kernels/cuda/parity.h"

namespace warpline::cuda {
namespace {

class Api final : public CudaApi {
 public:
  absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const CudaOptions& options) override {
    return CreateCudaBackend(options);
  }
  absl::StatusOr<DeviceMemory> MemoryOf(int device) override { return DeviceMemoryOf(device); }
  absl::StatusOr<DoctorReport> Doctor() override { return ExamineDevices(); }
  absl::StatusOr<ParityResult> Parity(const ParityOptions& options) override {
    return RunParity(options);
  }
};

}  // namespace
}  // namespace warpline::cuda

extern "C" __attribute__((visibility("default"))) warpline::CudaApi* WarplineCudaOpen(
    const char* version) {
  if (std::strcmp(version, WARPLINE_VERSION) != 0) return nullptr;
  return new warpline::cuda::Api();  // The caller owns it.
}
