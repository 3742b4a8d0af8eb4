// The two instruction sets that CPU kernels are compiled for. Both give the same bits.
#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace warpline {

enum class InstructionSet {
  kAvx2,    // AVX2, FMA, F16C, BMI, BMI2
  kAvx512,  // the above and AVX-512 F, BW, DQ, VL
};

// "avx2" or "avx512", as in CpuOptions::instruction_set.
const char* InstructionSetName(InstructionSet set);

// `forced` is "" for the best that this processor has, or a name. InvalidArgument: another name;
// FailedPrecondition: the processor lacks something, which the message names.
absl::StatusOr<InstructionSet> DetectInstructionSet(absl::string_view forced);

}  // namespace warpline
