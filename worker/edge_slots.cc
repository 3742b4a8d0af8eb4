#include "worker/edge_slots.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace warpline {

absl::StatusOr<int> EdgeCredits::Acquire() {
  MutexLock lock(mutex_);
  while (broken_.ok() && static_cast<int>(in_flight_.size()) >= slot_count_) changed_.Wait(mutex_);
  if (!broken_.ok()) return broken_;
  return next_slot_;
}

void EdgeCredits::Commit(uint64_t step_id) {
  MutexLock lock(mutex_);
  WL_CHECK(static_cast<int>(in_flight_.size()) < slot_count_);
  in_flight_.push_back(step_id);
  next_slot_ = (next_slot_ + 1) % slot_count_;
}

absl::Status EdgeCredits::Acknowledge(int slot, uint64_t step_id) {
  MutexLock lock(mutex_);
  if (in_flight_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("step ", step_id, " acknowledged while none is under way"));
  }
  if (slot != oldest_slot_ || step_id != in_flight_.front()) {
    return absl::InvalidArgumentError(absl::StrCat("acknowledged step ", step_id, " in slot ", slot,
                                                   " where step ", in_flight_.front(), " in slot ",
                                                   oldest_slot_, " was due"));
  }
  in_flight_.pop_front();
  oldest_slot_ = (oldest_slot_ + 1) % slot_count_;
  changed_.NotifyOne();
  return absl::OkStatus();
}

void EdgeCredits::Break(const absl::Status& status) {
  MutexLock lock(mutex_);
  if (broken_.ok()) broken_ = status;
  changed_.NotifyAll();
}

}  // namespace warpline
