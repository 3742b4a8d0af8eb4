// A process among its supervisors: signals as a descriptor, the pipe that tells of the parent's
// death, sd_notify.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "base/unique_fd.h"

namespace warpline {

// Blocks SIGTERM and SIGINT for all threads and ignores SIGPIPE. Call first in main, before any
// thread starts.
void BlockSignals();
// For a command that has nothing to stop: both end the process again, as they do by default.
void UnblockSignals();
// Ends the process with one readable line and code 1 instead of a core dump when an exception has
// nobody to catch it: a thread that could not be started, memory that ran out. Call first in main.
void InstallTerminateHandler();
// A descriptor that can be read while SIGTERM or SIGINT is pending. Both must be blocked.
UniqueFd OpenStopSignals();
// Takes one of them away; false when none is pending. Never waits.
bool TakeStopSignal(int stop_signals);

enum class StopReason { kSignal, kParentGone };

// Waits until SIGTERM or SIGINT arrives, or until the other end of `watch_fd` (an inherited pipe;
// -1: none) is closed.
StopReason WaitForStop(int watch_fd);
// From now on a second SIGTERM or SIGINT ends the process at once with code 1; so does
// `grace_seconds` running out.
void ExitOnSecondSignal(int grace_seconds);

// Tells the supervisor, systemd or `warpline serve`, over NOTIFY_SOCKET; without one does nothing.
// `state` is as for sd_notify: "READY=1", "STATUS=loading 40 %", "EXTEND_TIMEOUT_USEC=...".
// Never waits. What the supervisor acts on ("READY=1..", "STATUS=serving..") is sent up to 5 s
// later when it does not read; anything else is dropped then.
void NotifySupervisor(absl::string_view state);

}  // namespace warpline
