// Command line of a program: each option is defined once and has a flag, a WARPLINE_* environment
// name and a key in the config file; flag > environment > file > default. An unknown flag or key is
// an error (exit code 2).
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace warpline {

constexpr int kExitOk = 0;
constexpr int kExitFailure = 1;
constexpr int kExitUsage = 2;      // options and config
constexpr int kExitModelFile = 3;  // the model file is refused

// Gives `app` the options every program has: --config FILE, --print-config, --version, and
// --log-level. They may stand behind a subcommand too, and the keys of a config file are those of
// the subcommand that is run.
class Flags {
 public:
  Flags(CLI::App& app, std::string program);

  // Adds an option to `command` (the app or a subcommand): names as in CLI11 ("-c,--ctx-size"). Its
  // environment name is WARPLINE_ and the long name in capitals.
  template <typename T>
  CLI::Option* Add(CLI::App& command, const std::string& names, T& value,
                   const std::string& description) {
    return Finish(command, command.add_option(names, value, description)->capture_default_str());
  }
  CLI::Option* AddFlag(CLI::App& command, const std::string& names, bool& value,
                       const std::string& description) {
    return Finish(command, command.add_flag(names, value, description)->default_str("false"));
  }
  // Its value is masked by --print-config.
  void MarkSecret(const std::string& long_name) { secrets_.push_back(long_name); }

  // Parses (after rewriting -np and -ctk/-ctv, which CLI11 cannot take). A value: the program shall
  // exit with it, its message has been printed. Sets up the log.
  std::optional<int> Parse(int argc, const char* const* argv);

 private:
  struct Entry {
    CLI::App* command;
    CLI::Option* option;
    std::string long_name;
  };

  CLI::Option* Finish(CLI::App& command, CLI::Option* option);
  std::string EffectiveConfig() const;

  CLI::App& app_;
  std::string program_;
  std::vector<Entry> entries_;
  std::vector<std::string> secrets_;
  bool print_config_ = false;
  std::string log_level_ = "info";
};

// A validator for integer options: the message names the valid range, text such as "4k" is refused.
CLI::Validator IntegerRange(int64_t least, int64_t most);
// For the number of an inherited descriptor, or -1 for none; one that is not open is refused.
CLI::Validator OpenDescriptor();

// Options that llama.cpp's users write and CLI11 cannot take (-np, -ctk, -ctv) in their long
// spelling; any other argument as it is.
std::string LongSpelling(const std::string& argument);

// Complains on stderr as option errors do and gives the exit code for it.
int UsageError(const std::string& program, const std::string& message);

// The last call of main: `exit_code`, unless it stands for success and what was printed cannot be
// written; then says so on stderr and gives kExitFailure.
int FinishOutput(const std::string& program, int exit_code);

}  // namespace warpline
