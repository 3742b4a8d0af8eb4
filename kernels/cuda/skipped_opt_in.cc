#include "kernels/cuda/skipped_opt_in.h"

#include <cuda_runtime_api.h>

#include <cstdio>
#include <vector>

#include "base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/grouped_args.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/tile_tables.h"

namespace warpline::cuda {
namespace {

bool IsOfThisDevice(const KernelRow& row, const DeviceFacts& facts) {
  return row.function != nullptr && row.shared_bytes > facts.shared_bytes_default &&
         row.shared_bytes <= facts.shared_bytes_optin && facts.capability >= row.min_capability &&
         facts.capability <= row.max_capability;
}

// The error of a launch with no work to do.
absl::StatusOr<cudaError_t> LaunchIdle(const KernelRow& row, const DeviceBuffer& zero) {
  GroupedArgs args;
  args.item_count = zero.as<int32_t>();
  args.table = zero.as();
  void* parameters[] = {&args};
  const cudaError_t error =
      cudaLaunchKernel(row.function, dim3(1), dim3(static_cast<unsigned>(row.threads)), parameters,
                       static_cast<size_t>(row.shared_bytes), nullptr);
  static_cast<void>(cudaGetLastError());  // Taken away: the device must go on.
  return error;
}

}  // namespace

absl::StatusOr<bool> ShowSkippedOptIn(int ordinal) {
  WL_ASSIGN_OR_RETURN(const Device device, Device::Open(ordinal));
  WL_RETURN_IF_ERROR(device.MakeCurrent());
  constexpr int64_t kZeroBytes = 64 << 10;  // room for the largest decoder table
  WL_ASSIGN_OR_RETURN(const DeviceBuffer zero, DeviceBuffer::Create(kZeroBytes));
  WL_RETURN_IF_ERROR(CudaStatus(cudaMemset(zero.as(), 0, kZeroBytes), "clearing a buffer"));
  int tried = 0;
  int refused = 0;
  for (const KernelRow& row : TileRows()) {
    if (!IsOfThisDevice(row, device.facts())) continue;
    WL_ASSIGN_OR_RETURN(const cudaError_t error, LaunchIdle(row, zero));
    if (tried == 0) {
      std::printf("device %d: %s of %s asks for %d B of shared memory without opting in: %s\n",
                  ordinal, row.name, InfoOf(row.type).name, row.shared_bytes,
                  cudaGetErrorString(error));
    }
    ++tried;
    refused += error == cudaErrorInvalidValue ? 1 : 0;
  }
  const absl::Status after = CudaStatus(cudaDeviceSynchronize(), "using the device afterwards");
  std::printf("device %d: %d of %d such launches were refused, and the device %s\n", ordinal,
              refused, tried, after.ok() ? "works on" : "is lost");
  return tried > 0 && refused == tried && after.ok();
}

}  // namespace warpline::cuda
