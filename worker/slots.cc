#include "worker/slots.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace warpline {
namespace {

int64_t PagesFor(int64_t positions) { return (positions + kPageTokens - 1) / kPageTokens; }

}  // namespace

SlotTable::SlotTable(const SlotLimits& limits) : limits_(limits), slots_(limits.slot_count) {
  for (Slot& slot : slots_) slot.pages.reserve(PagesFor(limits.max_context));
}

absl::Status SlotTable::Reset(int kv_slot) {
  if (kv_slot < 0 || kv_slot >= limits_.slot_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_slot ", kv_slot, " is not below slot_count ", limits_.slot_count));
  }
  slots_[kv_slot].pages.clear();
  slots_[kv_slot].position = 0;
  return absl::OkStatus();
}

void SlotTable::ResetAll() {
  for (int kv_slot = 0; kv_slot < limits_.slot_count; ++kv_slot) {
    slots_[kv_slot].pages.clear();
    slots_[kv_slot].position = 0;
  }
}

absl::Status SlotTable::Check(const Step& step) const {
  if (step.entries.empty()) return absl::InvalidArgumentError("the step has no entry");
  absl::flat_hash_set<int> used_slots;
  int64_t row_count = 0;
  for (size_t i = 0; i < step.entries.size(); ++i) {
    const StepEntry& entry = step.entries[i];
    WL_RETURN_IF_ERROR(
        Annotate(CheckEntry(entry), absl::StrCat("step ", step.step_id, " entry ", i)));
    if (!used_slots.insert(entry.kv_slot).second) {
      return absl::InvalidArgumentError(absl::StrCat("step ", step.step_id, " entry ", i,
                                                     ": kv_slot ", entry.kv_slot, " occurs twice"));
    }
    row_count += static_cast<int64_t>(entry.token_ids.size());
  }
  if (row_count > limits_.max_rows) {
    return absl::InvalidArgumentError(absl::StrCat("step ", step.step_id, " has ", row_count,
                                                   " rows, more than max_rows ", limits_.max_rows));
  }
  return absl::OkStatus();
}

absl::Status SlotTable::CheckEntry(const StepEntry& entry) const {
  if (entry.kv_slot < 0 || entry.kv_slot >= limits_.slot_count) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_slot ", entry.kv_slot, " is not below slot_count ", limits_.slot_count));
  }
  const Slot& slot = slots_[entry.kv_slot];
  if (entry.position != slot.position) {
    return absl::InvalidArgumentError(absl::StrCat("position ", entry.position, ", but kv_slot ",
                                                   entry.kv_slot, " holds ", slot.position,
                                                   " positions"));
  }
  if (entry.token_ids.empty()) return absl::InvalidArgumentError("the entry has no row");
  const int64_t end = entry.position + static_cast<int64_t>(entry.token_ids.size());
  if (end > limits_.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("the rows end at position ", end,
                                                   ", beyond max_context ", limits_.max_context));
  }
  for (const int32_t token_id : entry.token_ids) {
    if (token_id < 0 || token_id >= limits_.n_vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("token id ", token_id, " is not below n_vocab ", limits_.n_vocab));
    }
  }
  return CheckPages(entry, slot);
}

absl::Status SlotTable::CheckPages(const StepEntry& entry, const Slot& slot) const {
  const int64_t pages = static_cast<int64_t>(slot.pages.size() + entry.new_pages.size());
  const int64_t needed = PagesFor(entry.position + static_cast<int64_t>(entry.token_ids.size()));
  if (pages < needed || pages > PagesFor(limits_.max_context)) {
    return absl::InvalidArgumentError(absl::StrCat("kv_slot ", entry.kv_slot, " would have ", pages,
                                                   " pages, needs ", needed, " and may have ",
                                                   PagesFor(limits_.max_context)));
  }
  if (entry.new_pages.empty()) return absl::OkStatus();
  // A page twice in one sequence would overwrite its own past.
  absl::flat_hash_set<int32_t> owned(slot.pages.begin(), slot.pages.end());
  for (const int32_t page : entry.new_pages) {
    if (page < 0 || page >= limits_.page_count) {
      return absl::InvalidArgumentError(
          absl::StrCat("page ", page, " is not below page_count ", limits_.page_count));
    }
    if (!owned.insert(page).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("page ", page, " occurs twice in kv_slot ", entry.kv_slot));
    }
  }
  return absl::OkStatus();
}

void SlotTable::Advance(const Step& step, std::vector<StepSequence>& sequences) {
  sequences.clear();
  for (const StepEntry& entry : step.entries) {
    Slot& slot = slots_[entry.kv_slot];
    slot.pages.insert(slot.pages.end(), entry.new_pages.begin(), entry.new_pages.end());
    const int row_count = static_cast<int>(entry.token_ids.size());
    sequences.push_back({.kv_slot = entry.kv_slot,
                         .first_position = entry.position,
                         .row_count = row_count,
                         .pages = slot.pages});
    slot.position += row_count;
  }
}

}  // namespace warpline
