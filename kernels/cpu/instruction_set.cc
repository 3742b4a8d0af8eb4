#include "kernels/cpu/instruction_set.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace warpline {
namespace {

// What `set` needs and this processor (or its operating system) lacks.
std::vector<std::string> MissingFeatures(InstructionSet set) {
  std::vector<std::string> missing;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2")) missing.push_back("avx2");
  if (!__builtin_cpu_supports("fma")) missing.push_back("fma");
  if (!__builtin_cpu_supports("f16c")) missing.push_back("f16c");
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
