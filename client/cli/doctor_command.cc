#include "client/cli/doctor_command.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/connection.h"
#include "client/cli/program_path.h"

namespace warpline {
namespace {

// Becomes `warpline-worker --doctor`: only workers know devices.
int ExecDoctor() {
  std::string program = ProgramPath("warpline-worker");
  std::string option = "--doctor";
  char* const arguments[] = {program.data(), option.data(), nullptr};
  execv(program.c_str(), arguments);
  return ReportFailure(
      absl::InternalError(absl::StrCat("cannot start ", program, ": ", std::strerror(errno))));
}

}  // namespace

Command MakeDoctorCommand(CLI::App& app, Flags&) {
  CLI::App* const command = app.add_subcommand(
      "doctor", "Check every CUDA device and show what it can do (exit 77 where there is none)");
  return {.app = command, .run = [] { return ExecDoctor(); }};
}

}  // namespace warpline
