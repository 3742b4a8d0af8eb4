#include "kernels/cuda/parity.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/expert_kernels.h"
#include "kernels/cuda/layer_check.h"
#include "kernels/cuda/parity_bench.h"
#include "kernels/cuda/parity_cases.h"
#include "kernels/cuda/parity_json.h"
#include "kernels/cuda/product_check.h"
#include "kernels/cuda/self_check.h"
#include "kernels/cuda/skipped_opt_in.h"

namespace warpline::cuda {
namespace {

// Of max |ref|. Tensor cores cut off what does not fit a sum's last place, a step of 16 values
// after the other, so that the error grows with k; up to 1,024 values it is held to one number.
// Halves are rounded once more, by 2^-11 of the value, which the comparison takes off first.
double BoundOf(int k) { return 2.5e-6 * std::max(1.0, k / 1024.0); }

// One row of the table, and what is wrong with it.
class LineTally {
 public:
  // `bound`: of max |ref|.
  LineTally(ParityLine line, double bound) : line_(std::move(line)), bound_(bound) {}

  void Add(const std::string& plan, const Comparison& comparison) {
    ++line_.cases;
    line_.max_error = std::max(line_.max_error, comparison.max_error);
    line_.max_reference = std::max(line_.max_reference, comparison.max_reference);
    line_.max_excess = std::max(line_.max_excess, comparison.max_excess);
    line_.bound = std::max(line_.bound, bound_ * comparison.max_reference);
    if (comparison.not_finite > 0) Fail(plan, comparison.not_finite, " outputs are not finite");
    if (comparison.touched > 0) Fail(plan, comparison.touched, " guard outputs were written");
    if (!(comparison.max_excess <= bound_ * comparison.max_reference)) {
      Fail(plan, "error ", comparison.max_error, " of ", comparison.max_reference);
    }
  }
  template <typename... Words>
  void Fail(const Words&... words) {
    if (line_.failure.empty()) line_.failure = absl::StrCat(words...);
  }
  const ParityLine& line() const { return line_; }

 private:
  ParityLine line_;
  double bound_;
};

void Print(const ParityLine& line) {
  if (line.cases == 0) {
    std::printf("%-8s %-9s %-16s %s%s\n", line.type.c_str(), line.shape.c_str(), line.op.c_str(),
                line.failure.empty() ? "the same bytes as the host's" : "FAIL ",
                line.failure.c_str());
    return;
  }
  std::printf("%-8s %-9s %-16s %-9s %2d cases  max |err| %.3g of max |ref| %.4g (%.2g)%s%s\n",
              line.type.c_str(), line.shape.c_str(), line.op.c_str(), line.policy.c_str(),
              line.cases, line.max_error, line.max_reference,
              line.max_reference > 0 ? line.max_error / line.max_reference : 0,
              line.failure.empty() ? "" : "  FAIL ", line.failure.c_str());
  std::fflush(stdout);
}

// All cases of one device.
class DeviceParity {
 public:
  DeviceParity(const ExpertKernels& kernels, const ParityOptions& options,
               const ParitySelection& selection)
      : kernels_(kernels), options_(options), selection_(selection) {}

  absl::Status Run() {
    const std::vector<QuantType> built = kernels_.choices().Types();
    for (const QuantType type : selection_.types) {
      if (std::find(built.begin(), built.end(), type) == built.end()) {
        std::printf("%-8s is not part of this build\n", InfoOf(type).name);
        continue;
      }
      for (const ParityShape& shape : ParityShapes(options_.quick)) {
        if (HasShape(type, shape)) WL_RETURN_IF_ERROR(RunShape(type, shape));
      }
      WL_RETURN_IF_ERROR(RunLayers(type, built));
    }
    return absl::OkStatus();
  }

  const std::vector<ParityLine>& lines() const { return lines_; }
  uint64_t digest() const { return digest_; }

 private:
  struct Member {
    ProductCheck::Call call;
    const KernelSet* set;
    LineTally tally;
  };

  absl::Status RunShape(QuantType type, const ParityShape& shape) {
    WL_ASSIGN_OR_RETURN(const std::unique_ptr<ProductCheck> check,
                        ProductCheck::Create(kernels_, type, shape, 11));
    LineTally packed(NewLine(type, shape, "repack", "-"), 0);
    WL_ASSIGN_OR_RETURN(const bool is_packed, check->PackedAsOnTheHost());
    if (!is_packed) packed.Fail("the device packs other bytes than the host");
    Finish(packed);
    WL_RETURN_IF_ERROR(RunPlans(*check, ParityRowPlans(options_.quick),
                                Members(type, shape, Op::kGateUp, Op::kPlain)));
    return RunPlans(*check, FewRowPlans(options_.quick),
                    Members(type, shape, Op::kFewGateUp, Op::kFewPlain));
  }

  // Gate and up of one type, and of two; every policy with the first type, then the best.
  absl::Status RunLayers(QuantType type, const std::vector<QuantType>& built) {
    LayerCase prompt = {type, type, type, StepKind::kPrompt, 300};
    WL_RETURN_IF_ERROR(RunLayer("layer prompt", prompt));
    prompt.x_is_half = true;
    WL_RETURN_IF_ERROR(RunLayer("layer prompt f16", prompt));
    WL_RETURN_IF_ERROR(RunLayer("layer decode", {type, type, type, StepKind::kDecode, 5}));
    const QuantType other = type == built.front() ? built.back() : built.front();
    if (other != type && !options_.quick) {
      WL_RETURN_IF_ERROR(RunLayer("layer mixed", {type, other, type, StepKind::kPrompt, 100}));
    }
    if (type != selection_.types.front() && !options_.full) return absl::OkStatus();
    for (const Policy policy : selection_.policies) {
      prompt.policy = policy;
      if (kernels_.choices().For(Op::kGateUp, type, policy).ok()) {
        WL_RETURN_IF_ERROR(RunLayer("layer prompt", prompt));
      }
    }
    return absl::OkStatus();
  }

  absl::Status RunLayer(const std::string& name, const LayerCase& layer_case) {
    WL_ASSIGN_OR_RETURN(const LayerResult result, CheckLayer(kernels_, layer_case));
    ParityLine line = {.device = absl::StrCat(kernels_.device().facts().ordinal),
                       .type = InfoOf(layer_case.gate).name,
                       .shape = "2048-768",
                       .op = name,
                       .policy = std::string(
                           layer_case.policy.has_value() ? PolicyName(*layer_case.policy) : "best"),
                       .cases = 1,
                       .max_error = result.max_error,
                       .max_reference = result.max_reference,
                       .bound = kLayerBound * result.max_reference,
                       .max_excess = result.max_error};
    if (!result.is_finite) line.failure = "outputs are not finite";
    if (!(line.max_excess <= line.bound)) line.failure = "error beyond the bound";
    if (!result.is_repeatable) line.failure = "other bits from a graph";
    digest_ = digest_ * 0x9E3779B97F4A7C15ull + result.hash;
    lines_.push_back(line);
    Print(line);
    return absl::OkStatus();
  }

  ParityLine NewLine(QuantType type, const ParityShape& shape, std::string op,
                     absl::string_view policy) const {
    return {.device = absl::StrCat(kernels_.device().facts().ordinal),
            .type = InfoOf(type).name,
            .shape = absl::StrCat(shape.rows, "x", shape.k),
            .op = std::move(op),
            .policy = std::string(policy)};
  }

  // Every policy that the device has for these operations, with every kind of output.
  std::vector<Member> Members(QuantType type, const ParityShape& shape, Op fused, Op plain) const {
    std::vector<Member> members;
    for (const Policy policy : selection_.policies) {
      const auto add = [&](const ProductCheck::Call& call, absl::string_view output) {
        const absl::StatusOr<const KernelSet*> set = kernels_.choices().For(call.op, type, policy);
        if (!set.ok()) return;
        members.push_back({call, *set,
                           LineTally(NewLine(type, shape, absl::StrCat(OpName(call.op), output),
                                             PolicyName(policy)),
                                     BoundOf(shape.k))});
      };
      if (shape.is_gate_up) add({.op = fused}, " f16");
      add({.op = plain, .y_is_float = true, .has_row_weight = false}, " f32");
      add({.op = plain, .y_is_float = false, .has_row_weight = true}, " f16");
    }
    return members;
  }

  absl::Status RunPlans(ProductCheck& check, const std::vector<RowPlan>& plans,
                        std::vector<Member> members) {
    if (members.empty()) return absl::OkStatus();
    for (const RowPlan& plan : plans) {
      WL_RETURN_IF_ERROR(check.SetRows(LayOutRows(plan, 5), 7));
      const bool is_first = &plan == &plans.front();
      for (Member& member : members) {
        WL_RETURN_IF_ERROR(RunCase(check, plan.name, is_first, member));
      }
    }
    for (const Member& member : members) Finish(member.tally);
    return absl::OkStatus();
  }

  // The comparison; and, with the first row counts, that bits depend on nothing else.
  absl::Status RunCase(ProductCheck& check, const std::string& plan, bool is_first,
                       Member& member) {
    WL_ASSIGN_OR_RETURN(const Comparison comparison, check.Run(*member.set, member.call, false));
    member.tally.Add(absl::StrCat(plan, ": "), comparison);
    digest_ = digest_ * 0x9E3779B97F4A7C15ull + comparison.hash;
    if (!is_first && !options_.full) return absl::OkStatus();
    WL_ASSIGN_OR_RETURN(const Comparison again, check.Run(*member.set, member.call, false));
    if (again.hash != comparison.hash) member.tally.Fail(plan, ": other bits when run again");
    if (member.set->policy != Policy::kOff) {  // which cannot be captured
      WL_ASSIGN_OR_RETURN(const Comparison replayed, check.Run(*member.set, member.call, true));
      if (replayed.hash != comparison.hash) member.tally.Fail(plan, ": other bits from a graph");
    }
    WL_ASSIGN_OR_RETURN(const bool is_alone, check.IsBatchInvariant(*member.set, member.call));
    if (!is_alone) member.tally.Fail(plan, ": a row's bits depend on the other rows");
    return absl::OkStatus();
  }

  void Finish(const LineTally& tally) {
    lines_.push_back(tally.line());
    Print(tally.line());
  }

  const ExpertKernels& kernels_;
  const ParityOptions& options_;
  const ParitySelection& selection_;
  std::vector<ParityLine> lines_;
  uint64_t digest_ = 0;
};

int CountFailures(const std::vector<ParityLine>& lines) {
  return static_cast<int>(std::count_if(
      lines.begin(), lines.end(), [](const ParityLine& line) { return !line.failure.empty(); }));
}

// Errors of one kernel on two cards must be the same numbers.
int CompareDevices(const std::vector<std::string>& digests) {
  int failures = 0;
  for (size_t i = 1; i < digests.size(); ++i) {
    if (digests[i] == digests[0]) continue;
    std::printf("FAIL: device %d gives other bits than the first\n", static_cast<int>(i));
    ++failures;
  }
  return failures;
}

absl::Status CompareOnDevice(int ordinal, const ParityOptions& options,
                             const ParitySelection& selection, std::vector<ParityLine>& lines,
                             ParityResult& result) {
  WL_ASSIGN_OR_RETURN(const Device device, Device::Open(ordinal));
  WL_ASSIGN_OR_RETURN(const ExpertKernels kernels, ExpertKernels::Create(device));
  std::printf("%s\n", CapabilityLine(kernels).c_str());
  DeviceParity parity(kernels, options, selection);
  WL_RETURN_IF_ERROR(parity.Run());
  lines.insert(lines.end(), parity.lines().begin(), parity.lines().end());
  result.digests.push_back(absl::StrFormat("%016x", parity.digest()));
  result.failures += CountFailures(parity.lines());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ParitySelection> SelectParity(const ParityOptions& options) {
  ParitySelection selection;
  for (const QuantTypeInfo& info : AllQuantTypes()) {
    const bool is_named =
        options.types.empty() ||
        std::find(options.types.begin(), options.types.end(), info.name) != options.types.end();
    if (info.is_weight && is_named) selection.types.push_back(info.type);
  }
  if (!options.types.empty() && selection.types.size() != options.types.size()) {
    return absl::InvalidArgumentError("--types names something that is no weight type");
  }
  for (const std::string& name : options.policies) {
    WL_ASSIGN_OR_RETURN(const Policy policy, ParsePolicy(name));
    selection.policies.push_back(policy);
  }
  for (int i = 0; options.policies.empty() && i < kPolicyCount; ++i) {
    selection.policies.push_back(static_cast<Policy>(i));
  }
  return selection;
}

absl::StatusOr<std::vector<int>> SelectDevices(const ParityOptions& options) {
  WL_ASSIGN_OR_RETURN(const int count, Device::Count());
  if (options.device >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no device ", options.device, ", only ", count));
  }
  if (options.device >= 0) return std::vector<int>{options.device};
  std::vector<int> devices;
  for (int i = 0; i < count; ++i) devices.push_back(i);
  return devices;
}

absl::StatusOr<ParityResult> RunParity(const ParityOptions& options) {
  WL_ASSIGN_OR_RETURN(const ParitySelection selection, SelectParity(options));
  WL_ASSIGN_OR_RETURN(const std::vector<int> devices, SelectDevices(options));
  ParityResult result{.devices = static_cast<int>(devices.size())};
  std::vector<ParityLine> lines;
  for (const int ordinal : devices) {
    if (options.skip_opt_in) {
      WL_ASSIGN_OR_RETURN(const bool is_expected, ShowSkippedOptIn(ordinal));
      result.failures += is_expected ? 0 : 1;
    } else if (options.bench) {
      WL_RETURN_IF_ERROR(RunBench(ordinal, options, selection));
    } else {
      WL_RETURN_IF_ERROR(CompareOnDevice(ordinal, options, selection, lines, result));
    }
  }
  result.failures += CompareDevices(result.digests);
  if (!options.json.empty()) WL_RETURN_IF_ERROR(WriteJson(options.json, lines));
  return result;
}

}  // namespace warpline::cuda
