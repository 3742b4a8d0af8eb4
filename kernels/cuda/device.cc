#include "kernels/cuda/device.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace warpline::cuda {
namespace {

std::string UuidText(const cudaUUID_t& uuid) {
  std::string text = "GPU";
  for (int i = 0; i < 16; ++i) {
    if (i == 0 || i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppendFormat(&text, "%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::string VersionText(int version) {
  if (version == 0) return "none";
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

}  // namespace

absl::StatusOr<int> Device::Count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());  // A missing device must not be the next call's error.
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    static_cast<void>(cudaDriverGetVersion(&driver));
    if (driver != 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("the NVIDIA driver is too old: it knows CUDA ", VersionText(driver),
                       ", this build needs ", RuntimeVersion()));
    }
    return absl::FailedPreconditionError("this machine has no NVIDIA driver");
  }
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0)) {
    return absl::FailedPreconditionError("the NVIDIA driver shows no GPU (CUDA_VISIBLE_DEVICES?)");
  }
  WL_RETURN_IF_ERROR(CudaStatus(error, "asking the driver for its devices"));
  return count;
}

absl::StatusOr<Device> Device::Open(int ordinal) {
  cudaDeviceProp properties;
  WL_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, ordinal),
                                absl::StrCat("reading the properties of device ", ordinal)));
  return Device(
      {.ordinal = ordinal,
       .name = properties.name,
       .uuid = UuidText(properties.uuid),
       .capability = properties.major * 10 + properties.minor,
       .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
       .l2_bytes = properties.l2CacheSize,
       .processors = properties.multiProcessorCount,
       .shared_bytes_default = static_cast<int>(properties.sharedMemPerBlock),
       .shared_bytes_optin = static_cast<int>(properties.sharedMemPerBlockOptin),
       .shared_bytes_processor = static_cast<int>(properties.sharedMemPerMultiprocessor)});
}

DeviceLimits Device::limits() const {
  return {.ordinal = facts_.ordinal,
          .capability = facts_.capability,
          .shared_bytes_optin = facts_.shared_bytes_optin,
          .processors = facts_.processors};
}

absl::Status Device::MakeCurrent() const {
  return CudaStatus(cudaSetDevice(facts_.ordinal),
                    absl::StrCat("making device ", facts_.ordinal, " current"));
}

std::string DriverVersion() {
  int version = 0;
  static_cast<void>(cudaDriverGetVersion(&version));
  return VersionText(version);
}

std::string RuntimeVersion() { return VersionText(CUDART_VERSION); }

absl::Status RuntimeDriver::SetSharedLimit(const void* function, int bytes) {
  const cudaError_t error =
      cudaFuncSetAttribute(function, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  static_cast<void>(cudaGetLastError());  // Reported here, not by the next launch.
  return CudaStatus(error, "shared-memory opt-in");
}

absl::StatusOr<FunctionFacts> RuntimeDriver::Facts(const void* function) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, function);
  static_cast<void>(cudaGetLastError());
  WL_RETURN_IF_ERROR(CudaStatus(error, "reading a kernel's attributes"));
  return FunctionFacts{.max_dynamic_shared_bytes = attributes.maxDynamicSharedSizeBytes,
                       .max_threads = attributes.maxThreadsPerBlock};
}

absl::StatusOr<int> RuntimeDriver::ResidentBlocks(const void* function, int threads,
                                                  int shared_bytes) {
  int blocks = 0;
  const cudaError_t error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(
      &blocks, function, threads, static_cast<size_t>(shared_bytes));
  static_cast<void>(cudaGetLastError());
  WL_RETURN_IF_ERROR(CudaStatus(error, "asking for a kernel's occupancy"));
  return blocks;
}

}  // namespace warpline::cuda
