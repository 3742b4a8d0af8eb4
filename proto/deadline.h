// Deadlines of gRPC by the steady clock: a step of the wall clock neither ends a call nor keeps
// one.
#pragma once

#include <grpc/support/time.h>

#include <chrono>

#include "base/clock.h"

namespace warpline {

// For ClientContext::set_deadline, Alarm::Set and Server::Shutdown.
inline gpr_timespec DeadlineIn(std::chrono::nanoseconds wait) {
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC),
                      gpr_time_from_nanos(wait.count(), GPR_TIMESPAN));
}

inline bool IsNoDeadline(gpr_timespec deadline) {
  return gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0;
}

// A call's raw_deadline() as our clock shows it; SteadyTime::max() when it has none.
inline SteadyTime SteadyDeadline(gpr_timespec deadline) {
  if (IsNoDeadline(deadline)) return SteadyTime::max();
  const gpr_timespec left = gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC),
                                         gpr_now(GPR_CLOCK_MONOTONIC));
  return Now() + std::chrono::seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec);
}

}  // namespace warpline
