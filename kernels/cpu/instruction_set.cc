#include "kernels/cpu/instruction_set.h"

#include <cpuid.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace warpline {
namespace {

// Not among the names that every compiler's __builtin_cpu_supports knows.
bool HasF16c() {
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// What `set` needs and this processor (or its operating system) lacks.
std::vector<std::string> MissingFeatures(InstructionSet set) {
  std::vector<std::string> missing;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) missing.push_back("avx2");
  if (!__builtin_cpu_supports("fma")) missing.push_back("fma");
  if (!HasF16c()) missing.push_back("f16c");
  // The compiler may use these two wherever it may use AVX2: Highway's targets include them.
  if (!__builtin_cpu_supports("bmi")) missing.push_back("bmi");
  if (!__builtin_cpu_supports("bmi2")) missing.push_back("bmi2");
  if (set == InstructionSet::kAvx512) {
    if (!__builtin_cpu_supports("avx512f")) missing.push_back("avx512f");
    if (!__builtin_cpu_supports("avx512bw")) missing.push_back("avx512bw");
    if (!__builtin_cpu_supports("avx512dq")) missing.push_back("avx512dq");
    if (!__builtin_cpu_supports("avx512vl")) missing.push_back("avx512vl");
  }
  return missing;
}

absl::StatusOr<InstructionSet> Require(InstructionSet set) {
  const std::vector<std::string> missing = MissingFeatures(set);
  if (missing.empty()) return set;
  return absl::FailedPreconditionError(
      absl::StrCat("this processor lacks ", absl::StrJoin(missing, ", "),
                   ", which instruction set ", InstructionSetName(set), " needs"));
}

}  // namespace

const char* InstructionSetName(InstructionSet set) {
  return set == InstructionSet::kAvx512 ? "avx512" : "avx2";
}

absl::StatusOr<InstructionSet> DetectInstructionSet(absl::string_view forced) {
  if (forced == "avx2") return Require(InstructionSet::kAvx2);
  if (forced == "avx512") return Require(InstructionSet::kAvx512);
  if (!forced.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown instruction set \"", std::string(forced), "\": known are avx2 and avx512"));
  }
  if (MissingFeatures(InstructionSet::kAvx512).empty()) return InstructionSet::kAvx512;
  return Require(InstructionSet::kAvx2);
}

}  // namespace warpline
