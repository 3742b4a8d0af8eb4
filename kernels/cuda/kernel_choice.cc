#include "kernels/cuda/kernel_choice.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace warpline::cuda {
namespace {

bool IsFew(Op op) { return op == Op::kFewGateUp || op == Op::kFewPlain; }

bool IsForAnotherCard(const KernelRow& row, const DeviceLimits& limits) {
  return limits.capability < row.min_capability || limits.capability > row.max_capability;
}

std::string AnotherCard(const KernelRow& row, const DeviceLimits& limits) {
  return absl::StrCat("is code for sm_", row.min_capability,
                      row.min_capability == row.max_capability ? "" : " and newer", ", device ",
                      limits.ordinal, " is sm_", limits.capability);
}

// Makes a row ready to be launched; gives how many blocks a multiprocessor holds, or why not.
absl::StatusOr<int> PrepareRow(KernelDriver& driver, const KernelRow& row,
                               const DeviceLimits& limits) {
  const auto refused = [](const auto&... words) {
    return absl::FailedPreconditionError(absl::StrCat(words...));
  };
  const std::string device = absl::StrCat("device ", limits.ordinal);
  if (row.shared_bytes > limits.shared_bytes_optin) {
    return refused("needs ", row.shared_bytes, " B of shared memory, ", device, " allows ",
                   limits.shared_bytes_optin, " B");
  }
  absl::StatusOr<FunctionFacts> facts = driver.Facts(row.function);
  if (facts.ok() && facts->max_dynamic_shared_bytes < row.shared_bytes) {
    if (absl::Status status = driver.SetSharedLimit(row.function, row.shared_bytes); !status.ok()) {
      return refused("cannot have ", row.shared_bytes, " B of shared memory on ", device, " (",
                     status.message(), ")");
    }
    facts = driver.Facts(row.function);  // What was granted, not what was asked for.
  }
  if (!facts.ok()) {
    return refused("is not known to the driver of ", device, " (", facts.status().message(), ")");
  }
  if (facts->max_dynamic_shared_bytes < row.shared_bytes) {
    return refused("asked for ", row.shared_bytes, " B of shared memory, ", device, " granted ",
                   facts->max_dynamic_shared_bytes, " B");
  }
  if (facts->max_threads < row.threads) {
    return refused("needs ", row.threads, " threads a block, ", device, " allows ",
                   facts->max_threads);
  }
  const absl::StatusOr<int> blocks =
      driver.ResidentBlocks(row.function, row.threads, row.shared_bytes);
  if (!blocks.ok()) {
    return refused("cannot be placed on ", device, " (", blocks.status().message(), ")");
  }
  if (*blocks < 1) return refused("does not fit a multiprocessor of ", device);
  return *blocks;
}

absl::Status Unusable(Op op, QuantType type, const DeviceLimits& limits,
                      const std::string& reasons) {
  return absl::FailedPreconditionError(
      absl::StrCat("device ", limits.ordinal, " has no kernel for ", OpName(op), " of ",
                   InfoOf(type).name, reasons.empty() ? "" : ": ", reasons));
}

}  // namespace

absl::string_view PolicyName(Policy policy) {
  constexpr absl::string_view kNames[kPolicyCount] = {"wgmma", "mma_sync", "wmma", "off"};
  return kNames[static_cast<int>(policy)];
}

absl::StatusOr<Policy> ParsePolicy(absl::string_view name) {
  for (int i = 0; i < kPolicyCount; ++i) {
    if (PolicyName(static_cast<Policy>(i)) == name) return static_cast<Policy>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no policy is called \"", name, "\" (wgmma, mma_sync, wmma, off)"));
}

absl::StatusOr<absl::optional<Policy>> ParseTiles(absl::string_view name) {
  if (name == "auto") return absl::optional<Policy>();
  if (name == "mma") return absl::optional<Policy>(Policy::kMmaSync);
  WL_ASSIGN_OR_RETURN(const Policy policy, ParsePolicy(name));
  return absl::optional<Policy>(policy);
}

absl::string_view OpName(Op op) {
  constexpr absl::string_view kNames[kOpCount] = {"gate_up", "plain", "few_gate_up", "few_plain"};
  return kNames[static_cast<int>(op)];
}

KernelChoices KernelChoices::Prepare(KernelDriver& driver, const DeviceLimits& limits,
                                     absl::Span<const KernelRow> rows) {
  KernelChoices choices(limits);
  for (const KernelRow& row : rows) {
    if (IsForAnotherCard(row, limits)) continue;
    if (row.function == nullptr) {
      choices.Add(row, 1);
      continue;
    }
    const absl::StatusOr<int> resident_blocks = PrepareRow(driver, row, limits);
    if (resident_blocks.ok()) {
      choices.Add(row, *resident_blocks);
    } else {
      choices.LeaveOut(row, std::string(resident_blocks.status().message()));
    }
  }
  for (const KernelRow& row : rows) {  // Policies that have nothing for this card at all.
    if (!choices.For(row.op, row.type, row.policy).ok()) {
      choices.LeaveOut(row, AnotherCard(row, limits));
    }
  }
  return choices;
}

void KernelChoices::Add(const KernelRow& row, int resident_blocks) {
  Entry& entry = entries_[{row.op, row.type}];
  for (const Left& left : entry.left_out) {
    if (left.policy == row.policy) return;  // Never a part of a policy.
  }
  auto set = std::find_if(entry.sets.begin(), entry.sets.end(),
                          [&row](const KernelSet& s) { return s.policy >= row.policy; });
  if (set == entry.sets.end() || set->policy != row.policy) {
    set = entry.sets.insert(set, KernelSet{.policy = row.policy});
  }
  const auto position =
      std::find_if(set->kernels.begin(), set->kernels.end(),
                   [&row](const PreparedKernel& kernel) { return kernel.row.n < row.n; });
  set->kernels.insert(position, {.row = row, .resident_blocks = resident_blocks});
}

void KernelChoices::LeaveOut(const KernelRow& row, const std::string& reason) {
  Entry& entry = entries_[{row.op, row.type}];
  for (const Left& left : entry.left_out) {
    if (left.policy == row.policy) return;  // The first reason is the one to tell.
  }
  const auto end = std::remove_if(entry.sets.begin(), entry.sets.end(),
                                  [&row](const KernelSet& s) { return s.policy == row.policy; });
  entry.sets.erase(end, entry.sets.end());
  entry.left_out.push_back({row.policy, reason});
}

const KernelChoices::Entry* KernelChoices::Find(Op op, QuantType type) const {
  const auto entry = entries_.find({op, type});
  return entry == entries_.end() ? nullptr : &entry->second;
}

std::string KernelChoices::Reasons(const Entry& entry) const {
  return absl::StrJoin(entry.left_out, "; ", [](std::string* out, const Left& left) {
    absl::StrAppend(out, PolicyName(left.policy), " ", left.reason);
  });
}

absl::StatusOr<const KernelSet*> KernelChoices::For(Op op, QuantType type) const {
  const Entry* const entry = Find(op, type);
  if (entry == nullptr) return Unusable(op, type, limits_, "");
  if (entry->sets.empty()) {
    std::string reasons = Reasons(*entry);
    if (only_.has_value()) {
      absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", "only ", PolicyName(*only_),
                      " is allowed");
    }
    return Unusable(op, type, limits_, reasons);
  }
  return &entry->sets.front();
}

absl::StatusOr<const KernelSet*> KernelChoices::For(Op op, QuantType type, Policy policy) const {
  const Entry* const entry = Find(op, type);
  if (entry == nullptr) return Unusable(op, type, limits_, "");
  for (const KernelSet& set : entry->sets) {
    if (set.policy == policy) return &set;
  }
  for (const Left& left : entry->left_out) {
    if (left.policy == policy) {
      return Unusable(op, type, limits_, absl::StrCat(PolicyName(policy), " ", left.reason));
    }
  }
  return Unusable(
      op, type, limits_,
      absl::StrCat(PolicyName(policy), Allows(op, policy) ? " is not built" : " is not allowed"));
}

bool KernelChoices::Allows(Op op, Policy policy) const {
  if (!only_.has_value() || policy == *only_) return true;
  return IsFew(op) && *only_ != Policy::kOff;
}

absl::Status KernelChoices::Restrict(Policy policy) {
  only_ = policy;
  bool has_any = false;
  std::set<std::string> reasons;
  for (auto& [key, entry] : entries_) {
    const auto end = std::remove_if(
        entry.sets.begin(), entry.sets.end(),
        [this, &key = key](const KernelSet& s) { return !Allows(key.first, s.policy); });
    entry.sets.erase(end, entry.sets.end());
    if (IsFew(key.first)) continue;
    for (const KernelSet& set : entry.sets) has_any = has_any || set.policy == policy;
    for (const Left& left : entry.left_out) {
      if (left.policy == policy) reasons.insert(left.reason);
    }
  }
  if (has_any) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("device ", limits_.ordinal, " cannot run tiles of policy ", PolicyName(policy),
                   ": ", reasons.empty() ? "it is not built" : absl::StrJoin(reasons, "; ")));
}

void KernelChoices::Refuse(Op op, QuantType type, Policy policy, const std::string& reason) {
  if (For(op, type, policy).ok()) LeaveOut({.policy = policy, .op = op, .type = type}, reason);
}

std::vector<QuantType> KernelChoices::Types() const {
  std::set<QuantType> types;
  for (const auto& [key, entry] : entries_) types.insert(key.second);
  return std::vector<QuantType>(types.begin(), types.end());
}

std::vector<std::string> KernelChoices::Fallbacks() const {
  std::map<std::string, std::vector<std::string>> kernels_of_reason;
  for (const auto& [key, entry] : entries_) {
    for (const Left& left : entry.left_out) {
      if (!Allows(key.first, left.policy)) continue;  // Nobody misses it.
      std::string sentence = absl::StrCat(PolicyName(left.policy), " ", left.reason);
      if (entry.sets.empty()) {
        absl::StrAppend(&sentence, "; nothing is left");
      } else if (entry.sets.front().policy > left.policy) {
        absl::StrAppend(&sentence, "; ", PolicyName(entry.sets.front().policy), " instead");
      }
      kernels_of_reason[sentence].push_back(
          absl::StrCat(OpName(key.first), " ", InfoOf(key.second).name));
    }
  }
  std::vector<std::string> sentences;
  for (const auto& [sentence, kernels] : kernels_of_reason) {
    sentences.push_back(absl::StrCat(absl::StrJoin(kernels, ", "), ": ", sentence));
  }
  return sentences;
}

std::string KernelChoices::Summary() const {
  std::map<QuantType, std::vector<std::pair<Op, std::string>>> types;
  for (const auto& [key, entry] : entries_) {
    types[key.second].emplace_back(
        key.first,
        entry.sets.empty() ? "none" : std::string(PolicyName(entry.sets.front().policy)));
  }
  // Types whose operations are all done alike stand together.
  std::map<std::string, std::vector<std::string>> alike;
  for (const auto& [type, ops] : types) {
    const bool is_uniform = std::all_of(ops.begin(), ops.end(), [&ops = ops](const auto& op) {
      return op.second == ops.front().second;
    });
    const std::string words = is_uniform
                                  ? ops.front().second
                                  : absl::StrJoin(ops, ", ", [](std::string* out, const auto& op) {
                                      absl::StrAppend(out, OpName(op.first), " ", op.second);
                                    });
    alike[words].emplace_back(InfoOf(type).name);
  }
  return absl::StrJoin(alike, "; ", [](std::string* out, const auto& group) {
    absl::StrAppend(out, absl::StrJoin(group.second, " "), ": ", group.first);
  });
}

}  // namespace warpline::cuda
