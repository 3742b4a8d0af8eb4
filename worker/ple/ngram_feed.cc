#include "worker/ple/ngram_feed.h"

#include "proto/stage_protocol.h"

namespace warpline {

NgramFeed::NgramFeed(const PleSpec& spec, NgramReader& reader, int slot_count)
    : spec_(spec),
      reader_(reader),
      slots_(slot_count, Slot{.context = NgramContext(spec), .ahead_context = NgramContext(spec)}) {
}

void NgramFeed::ResetSlot(int kv_slot) {
  Slot& slot = slots_[kv_slot];
  slot.context.Clear();
  slot.position = 0;
  if (!slot.is_told_of_next) {
    slot.ahead_context.Clear();
    slot.ahead_position = 0;
  }
  slot.is_told_of_next = false;
}

void NgramFeed::ResetAll() {
  for (size_t slot = 0; slot < slots_.size(); ++slot) ResetSlot(static_cast<int>(slot));
}

void NgramFeed::AddRows(const NgramContext& context, const StepEntry& entry) {
  const size_t begin = rows_.size();
  rows_.resize(begin + entry.token_ids.size() * spec_.head_count());
  NgramRows(spec_, context, entry.token_ids, absl::MakeSpan(rows_).subspan(begin));
}

void NgramFeed::Prefetch(const Step& step) {
  rows_.clear();
  for (const StepEntry& entry : step.entries) {
    // Not checked yet, so the slot may be wrong.
    if (entry.kv_slot < 0 || entry.kv_slot >= static_cast<int>(slots_.size())) continue;
    Slot& slot = slots_[entry.kv_slot];
    if (entry.position == 0) {
      slot.ahead_context.Clear();
      slot.ahead_position = 0;
      slot.is_told_of_next = true;
    }
    if (entry.position != slot.ahead_position) continue;
    if (entry.token_ids.front() == kTokenDrawnBefore) continue;
    AddRows(slot.ahead_context, entry);
    slot.ahead_context.Append(entry.token_ids);
    slot.ahead_position += static_cast<int64_t>(entry.token_ids.size());
  }
  if (!rows_.empty()) reader_.Prefetch(rows_);
}

absl::Status NgramFeed::Fetch(const Step& step, absl::Span<float> out) {
  rows_.clear();
  for (const StepEntry& entry : step.entries) AddRows(slots_[entry.kv_slot].context, entry);
  if (absl::Status status = reader_.Fetch(rows_, out); !status.ok()) return status;
  for (const StepEntry& entry : step.entries) {
    Slot& slot = slots_[entry.kv_slot];
    slot.context.Append(entry.token_ids);
    slot.position = entry.position + static_cast<int64_t>(entry.token_ids.size());
    if (entry.position == 0) slot.is_told_of_next = false;
    if (slot.is_told_of_next || slot.ahead_position >= slot.position) continue;
    slot.ahead_context = slot.context;
    slot.ahead_position = slot.position;
  }
  return absl::OkStatus();
}

}  // namespace warpline
