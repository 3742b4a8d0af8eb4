#include "kernels/cuda/doctor.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/self_check.h"

namespace warpline::cuda {
namespace {

std::string FactLines(const DeviceFacts& facts) {
  return absl::StrFormat(
      "device %d  %s\n"
      "  uuid               %s\n"
      "  compute capability %d.%d, %d multiprocessors\n"
      "  memory             %.1f GiB, L2 cache %.0f MiB\n"
      "  shared memory      %d B a block, %d B after opting in, %d B a multiprocessor\n",
      facts.ordinal, facts.name, facts.uuid, facts.capability / 10, facts.capability % 10,
      facts.processors, static_cast<double>(facts.memory_bytes) / (1 << 30),
      static_cast<double>(facts.l2_bytes) / (1 << 20), facts.shared_bytes_default,
      facts.shared_bytes_optin, facts.shared_bytes_processor);
}

// Appends what a device's kernels are and whether they compute right.
absl::Status ExamineKernels(const Device& device, std::string& sheet) {
  WL_ASSIGN_OR_RETURN(ExpertKernels kernels, ExpertKernels::Create(device));
  const absl::Status checked = SelfCheck(kernels, kernels.choices().Types());
  absl::StrAppend(&sheet, "  expert products    ", kernels.choices().Summary(), "\n");
  for (const std::string& sentence : kernels.choices().Fallbacks()) {
    absl::StrAppend(&sheet, "  replaced           ", sentence, "\n");
  }
  return checked;
}

}  // namespace

absl::StatusOr<DoctorReport> ExamineDevices() {
  WL_ASSIGN_OR_RETURN(const int count, Device::Count());
  DoctorReport report;
  report.sheet = absl::StrCat("CUDA driver ", DriverVersion(), ", runtime ", RuntimeVersion(), ", ",
                              count, count == 1 ? " device\n" : " devices\n");
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    WL_ASSIGN_OR_RETURN(const Device device, Device::Open(ordinal));
    absl::StrAppend(&report.sheet, FactLines(device.facts()));
    const absl::Status checked = ExamineKernels(device, report.sheet);
    absl::StrAppend(
        &report.sheet, "  self-check         ",
        checked.ok() ? "passed" : absl::StrCat("FAILED: ", std::string(checked.message())), "\n");
    report.is_healthy = report.is_healthy && checked.ok();
  }
  return report;
}

}  // namespace warpline::cuda
