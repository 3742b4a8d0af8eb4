#include "client/cli/supervisor.h"

#include <poll.h>

#include <algorithm>
#include <csignal>
#include <set>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr int kMaxBackOffMs = 5000;
constexpr int kStopPollMs = 50;

}  // namespace

absl::StatusOr<Supervisor> Supervisor::Create(const std::string& folder,
                                              std::vector<ChildSpec> specs) {
  WL_ASSIGN_OR_RETURN(NotifySocket notify, NotifySocket::Create(folder));
  WL_ASSIGN_OR_RETURN(WatchPipe watch, WatchPipe::Create());
  std::vector<Child> children;
  for (ChildSpec& spec : specs) {
    children.emplace_back();
    children.back().spec = std::move(spec);
  }
  return Supervisor(std::move(notify), std::move(watch), std::move(children));
}

int Supervisor::StartWhatIsDue() {
  for (Child& child : children_) {
    if (child.process.running() || Now() < child.restart_at) continue;
    absl::StatusOr<ChildProcess> started =
        ChildProcess::Start(child.spec.arguments, child.spec.environment, watch_, notify_.path());
    if (!started.ok()) {
      LogError("cannot start process=\"", child.spec.name, "\": ", started.status().message());
      if (!child.was_ready) return kExitFailure;
      child.restart_at = Now() + std::chrono::milliseconds(kMaxBackOffMs);
      continue;
    }
    child.process = *std::move(started);
    child.status = "starting";
    LogInfo("started process=\"", child.spec.name, "\" pid=", child.process.pid());
  }
  return -1;
}

int Supervisor::MillisecondsUntilNextStart() const {
  int wait_ms = -1;
  for (const Child& child : children_) {
    if (child.process.running()) continue;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(child.restart_at - Now()).count();
    const int left_ms = static_cast<int>(std::clamp<int64_t>(left, 0, kMaxBackOffMs));
    wait_ms = wait_ms < 0 ? left_ms : std::min(wait_ms, left_ms);
  }
  return wait_ms;
}

void Supervisor::ReadNotifications() {
  notify_.Read([this](pid_t sender, absl::string_view line) {
    for (Child& child : children_) {
      if (!child.process.running() || child.process.pid() != sender) continue;
      if (absl::ConsumePrefix(&line, "STATUS=")) child.status = std::string(line);
      // A worker notifies READY when it listens, but is of use when it serves layers.
      const bool is_worker = absl::StartsWith(child.spec.name, "worker");
      if (is_worker ? absl::StartsWith(child.status, "serving") : line == "READY=1") {
        child.ready = child.was_ready = true;
        child.failures = 0;
      }
    }
  });
}

void Supervisor::ReportStatus() {
  std::vector<std::string> parts;
  for (const Child& child : children_) {
    if (!child.ready) parts.push_back(absl::StrCat(child.spec.name, ": ", child.status));
  }
  const std::string status = parts.empty() ? "serving" : absl::StrJoin(parts, "; ");
  if (status == last_status_) return;
  last_status_ = status;
  NotifySupervisor(absl::StrCat("STATUS=", status));
  if (parts.empty() && !announced_ready_) {
    announced_ready_ = true;
    NotifySupervisor("READY=1");
    LogInfo("ready");
  }
}

int Supervisor::HandleEnd(Child& child) {
  if (!child.process.WaitForEnd(Now())) return -1;
  LogWarning("ended process=\"", child.spec.name, "\" ", child.process.EndText());
  child.status = "down";
  const int code = child.process.exit_code();
  const bool refused = code == kExitUsage || code == kExitModelFile;
  if (!child.was_ready && (refused || (child.spec.needed_at_start && code > 0))) return code;
  // One that was ready comes back at once, however often; only ends before ready count towards the
  // back-off.
  const int back_off_ms =
      child.ready ? 0 : std::min(kMaxBackOffMs, 50 << std::min(child.failures, 7));
  child.failures = child.ready ? 0 : child.failures + 1;
  child.ready = false;
  child.restart_at = Now() + std::chrono::milliseconds(back_off_ms);
  return -1;
}

int Supervisor::Run(int watch_fd, int grace_seconds) {
  const UniqueFd signal_fd = OpenStopSignals();
  int exit_code = -1;
  while (exit_code < 0) {
    exit_code = StartWhatIsDue();
    if (exit_code >= 0) break;
    std::vector<pollfd> fds = {{.fd = signal_fd.get(), .events = POLLIN},
                               {.fd = watch_fd, .events = POLLIN},
                               {.fd = notify_.fd(), .events = POLLIN}};
    for (const Child& child : children_)
      fds.push_back({.fd = child.process.pidfd(), .events = POLLIN});
    if (poll(fds.data(), fds.size(), MillisecondsUntilNextStart()) < 0)
      continue;  // Interrupted: look again.
    ReadNotifications();
    for (size_t index = 0; index < children_.size() && exit_code < 0; ++index) {
      if (fds[index + 3].revents != 0) exit_code = HandleEnd(children_[index]);
    }
    ReportStatus();
    if (TakeStopSignal(signal_fd.get()) || fds[1].revents != 0) exit_code = kExitOk;
  }
  NotifySupervisor("STOPPING=1");
  StopAll(signal_fd.get(), grace_seconds);
  return exit_code;
}

void Supervisor::StopAll(int signal_fd, int grace_seconds) {
  std::set<int> ranks;
  for (const Child& child : children_) ranks.insert(child.spec.stop_rank);
  bool at_once = false;
  for (const int rank : ranks) StopRank(rank, signal_fd, grace_seconds, at_once);
}

void Supervisor::StopRank(int rank, int signal_fd, int grace_seconds, bool& at_once) {
  const SteadyTime begin = Now();
  for (const Child& child : children_) {
    if (child.spec.stop_rank == rank) child.process.Signal(SIGTERM);
  }
  for (Child& child : children_) {
    if (child.spec.stop_rank != rank) continue;
    const SteadyTime deadline =
        begin + std::chrono::seconds(std::min(child.spec.most_stop_seconds, grace_seconds));
    bool killed = false;
    while (!child.process.WaitForEnd(Now() + std::chrono::milliseconds(kStopPollMs))) {
      at_once = at_once || TakeStopSignal(signal_fd);
      if (killed || (Now() < deadline && !at_once)) continue;
      LogWarning("killing process=\"", child.spec.name, "\" pid=", child.process.pid());
      child.process.Signal(SIGKILL);
      killed = true;
    }
  }
}

}  // namespace warpline
