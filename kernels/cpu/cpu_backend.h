// The CPU back end: SIMD with run-time dispatch (AVX2+FMA, AVX-512; both give the same bits), a
// pool of threads.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace warpline {

struct CpuOptions {
  int thread_count = 0;         // 0: as many as this process may use
  std::string instruction_set;  // "", "avx2" or "avx512": force one (tests); "" takes the best
};

// FailedPrecondition on a processor without AVX2 and FMA.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(const CpuOptions& options);

}  // namespace warpline
