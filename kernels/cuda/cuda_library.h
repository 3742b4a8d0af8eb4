// Opens the CUDA back end, a shared library of its own, at run time: programs start on machines
// without a driver, a card or the library, and say what is missing. No CUDA header is needed here.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/backend.h"

namespace warpline {

// Exit code of a program that found no device to run on; CTest counts it as skipped.
constexpr int kExitNoDevice = 77;

// What a back end is opened with.
struct CudaOptions {
  int device = 0;              // counted as the driver counts them
  std::string tiles = "auto";  // how products are computed: auto, wgmma, mma, wmma, off
};

// What `warpline-parity` was asked for.
struct ParityOptions {
  std::vector<std::string> types;     // names such as "IQ3_XXS"; empty: all
  std::vector<std::string> policies;  // names such as "wgmma"; empty: all
  int device = -1;                    // one device only; -1: all
  bool quick = false;                 // one shape and few row counts
  bool full = false;                  // every output of every case, not a sample of columns
  bool skip_opt_in = false;  // show the launch error of a kernel whose limit was not raised
  bool bench = false;
  std::string json;  // file for the results; empty: none
};

struct ParityResult {
  int failures = 0;
  int devices = 0;
  std::vector<std::string> digests;  // of all outputs of a device, in the order of the devices
};

// What `warpline doctor` says.
struct DoctorReport {
  std::string sheet;       // lines for people
  bool is_healthy = true;  // every device has a working kernel for every operation and type
};

// What the library offers. Methods print to standard output where they say so.
class CudaApi {
 public:
  virtual ~CudaApi() = default;

  // The back end of one device. It belongs to the calling thread. FailedPrecondition where no
  // driver or no such device is, or the device cannot run the tiles.
  virtual absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(const CudaOptions& options) = 0;

  // The memory of a device, as it is beside a process that does nothing there. FailedPrecondition
  // where no driver or no such device is.
  virtual absl::StatusOr<DeviceMemory> MemoryOf(int device) = 0;

  // Checks all devices. FailedPrecondition where no driver or no device is.
  virtual absl::StatusOr<DoctorReport> Doctor() = 0;

  // Runs the cases on each device in turn, printing a line for each. FailedPrecondition where no
  // driver or no device is, InvalidArgument for a wrong name.
  virtual absl::StatusOr<ParityResult> Parity(const ParityOptions& options) = 0;
};

// Loads libwarpline_cuda.so from the folder of the running program, else from the library path. It
// stays loaded until the process ends. NotFound, in a sentence for people, where there is none.
absl::StatusOr<std::unique_ptr<CudaApi>> OpenCudaLibrary();

// The library's one entry: null when it was built for another version of the programs. The caller
// owns the result.
using CudaEntry = CudaApi* (*)(const char* version);
constexpr char kCudaEntryName[] = "WarplineCudaOpen";

}  // namespace warpline
