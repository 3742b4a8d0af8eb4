#include "base/flags.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/log.h"

namespace warpline {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;

// What is wrong with a config file before its keys are looked at; empty when nothing is.
std::string ConfigFileProblem(const std::string& path, const std::vector<std::string>& secrets) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return "cannot be read";
  if (!S_ISREG(info.st_mode)) return "is no regular file";
  if (info.st_size > kMaxConfigBytes)
    return absl::StrCat("has ", info.st_size, " bytes, at most ", kMaxConfigBytes);
  if ((info.st_mode & S_IWOTH) != 0)
    LogWarning("config file ", path, " may be written by everybody");
  std::ifstream file(path, std::ios::binary);
  if (!file) return "cannot be read";
  std::stringstream text;
  text << file.rdbuf();
  std::vector<std::string> seen;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text.str(), '\n')) {
    ++line_number;
    if (line_number == 1 && absl::StartsWith(line, "\xEF\xBB\xBF"))
      return "line 1: begins with a byte order mark";
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#' || line[0] == ';' || line[0] == '[') continue;
    const size_t equals = line.find('=');
    if (equals == absl::string_view::npos)
      return absl::StrCat("line ", line_number, ": expected key = value");
    const std::string key(absl::StripAsciiWhitespace(line.substr(0, equals)));
    for (const std::string& earlier : seen) {
      if (earlier == key)
        return absl::StrCat("line ", line_number, ": key ", key, " stands there twice");
    }
    seen.push_back(key);
    const bool is_secret = std::find(secrets.begin(), secrets.end(), key) != secrets.end();
    if (is_secret && (info.st_mode & S_IROTH) != 0) {
      LogWarning("config file ", path, " holds ", key, " and can be read by everybody");
    }
  }
  return "";
}

std::string EnvironmentName(absl::string_view long_name) {
  std::string name = absl::StrCat("WARPLINE_", absl::AsciiStrToUpper(long_name));
  for (char& letter : name) {
    if (letter == '-') letter = '_';
  }
  return name;
}

// The number of the line where the key of `item` stands, or where its section begins.
int LineOf(const CLI::ConfigItem& item, std::string text) {
  for (const char quote : {'"', '\''}) std::replace(text.begin(), text.end(), quote, ' ');
  const bool is_section = item.name == "++";
  const std::string& name = is_section ? item.parents.back() : item.name;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (absl::StrContains(line, "=") == is_section) continue;
    line = line.substr(0, line.find_first_of("]="));
    line.remove_prefix(line.find_last_of("[.") + 1);  // Its last part; all of it after npos.
    if (absl::StripAsciiWhitespace(line) == name) break;
  }
  return number;
}

// CLI11 lets the file win over the environment; here a key whose environment name is set is not
// read from the file. Keys belong to the subcommand on the command line, where there is one.
// Unknown ones are refused here, since CLI11 would not say where they stand.
class ConfigReader : public CLI::ConfigTOML {
 public:
  explicit ConfigReader(const CLI::App& app) : app_(app) {}

  std::vector<CLI::ConfigItem> from_config(std::istream& input) const override {
    const std::string text(std::istreambuf_iterator<char>(input), {});
    std::istringstream again(text);
    std::vector<CLI::ConfigItem> items = CLI::ConfigTOML::from_config(again);
    items.erase(std::remove_if(items.begin(), items.end(),
                               [](const CLI::ConfigItem& item) {
                                 return std::getenv(EnvironmentName(item.name).c_str()) != nullptr;
                               }),
                items.end());
    for (CLI::ConfigItem& item : items) {
      for (const CLI::App* command : app_.get_subcommands()) {
        if (item.parents.empty() && command->get_option_no_throw("--" + item.name) != nullptr) {
          item.parents.push_back(command->get_name());
        }
      }
      if (IsKnown(item)) continue;
      throw CLI::ConfigError(absl::StrCat(
          "config file ", EscapeForLog(app_.get_config_ptr()->as<std::string>()), " line ",
          LineOf(item, text), ": ",
          item.name == "++" ? absl::StrCat("no such section: ", EscapeForLog(item.parents.back()))
                            : absl::StrCat("no such key: ", EscapeForLog(item.fullname()))));
    }
    return items;
  }

 private:
  bool IsKnown(const CLI::ConfigItem& item) const {
    const CLI::App* app = &app_;
    for (const std::string& section : item.parents) {
      const auto found = app->get_subcommands(
          [&section](const CLI::App* command) { return command->get_name() == section; });
      if (found.empty()) return false;
      app = found.front();
    }
    if (item.name == "++" || item.name == "--") return true;  // A section's begin and end.
    const CLI::Option* option = app->get_option_no_throw("--" + item.name);
    if (option == nullptr) option = app->get_option_no_throw("-" + item.name);
    return option != nullptr && option->get_configurable();
  }

  const CLI::App& app_;
};

}  // namespace

std::string LongSpelling(const std::string& argument) {
  static constexpr std::pair<const char*, const char*> kAliases[] = {
      {"-np", "--parallel"}, {"-ctk", "--kv-type"}, {"-ctv", "--kv-type"}};
  for (const auto& [alias, spelling] : kAliases) {
    if (argument == alias) return spelling;
    if (absl::StartsWith(argument, absl::StrCat(alias, "="))) {
      return absl::StrCat(spelling, argument.substr(std::string(alias).size()));
    }
  }
  return argument;
}

Flags::Flags(CLI::App& app, std::string program) : app_(app), program_(std::move(program)) {
  app_.name(program_);
  app_.fallthrough();  // Inherited by subcommands: --config may stand behind them.
  app_.set_version_flag("--version", absl::StrCat(program_, " ", WARPLINE_VERSION));
  app_.set_config("--config", "", "Config file: lines key = value, key being an option's long name")
      ->envname("WARPLINE_CONFIG")
      ->check([this](const std::string& path) {
        const std::string problem = ConfigFileProblem(path, secrets_);
        return problem.empty() ? ""
                               : absl::StrCat("config file ", EscapeForLog(path), " ", problem);
      });
  app_.config_formatter(std::make_shared<ConfigReader>(app_));
  app_.allow_config_extras(CLI::config_extras_mode::error);
  app_.add_flag("--print-config", print_config_, "Print the effective configuration and exit")
      ->configurable(false);
  Add(app_, "--log-level", log_level_, "Least level that is logged")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}));
}

CLI::Option* Flags::Finish(CLI::App& command, CLI::Option* option) {
  if (option->get_lnames().empty()) return option;  // A positional argument.
  const std::string& long_name = option->get_lnames().front();
  entries_.push_back({.command = &command, .option = option, .long_name = long_name});
  return option->envname(EnvironmentName(long_name));
}

std::optional<int> Flags::Parse(int argc, const char* const* argv) {
  std::vector<std::string> arguments;
  for (int index = argc - 1; index > 0; --index)
    arguments.push_back(LongSpelling(argv[index]));  // Reversed, for CLI11.
  // CLI11 reads the config file before it looks at the environment.
  const char* const config = std::getenv("WARPLINE_CONFIG");
  const bool is_given =
      std::any_of(arguments.begin(), arguments.end(), [](const std::string& argument) {
        return argument == "--config" || absl::StartsWith(argument, "--config=");
      });
  if (config != nullptr && *config != '\0' && !is_given) {
    arguments.push_back(absl::StrCat("--config=", config));
  }
  try {
    app_.parse(std::move(arguments));
    LogLevel level = LogLevel::kInfo;
    ParseLogLevel(log_level_, level);
    SetUpLog(program_, level);
    if (print_config_) {
      std::cout << EffectiveConfig() << std::flush;
      return kExitOk;
    }
  } catch (const CLI::Success& success) {  // --help, --version
    return app_.exit(success);
  } catch (const CLI::RequiredError& error) {
    // What is missing may stand there misspelt.
    const std::vector<std::string> unknown = app_.remaining(/*recurse=*/true);
    return UsageError(program_, unknown.empty() ? error.what() : CLI::ExtrasError(unknown).what());
  } catch (const CLI::Error& error) {
    return UsageError(program_, error.what());
  }
  return std::nullopt;
}

std::string Flags::EffectiveConfig() const {
  std::string text;
  for (const Entry& entry : entries_) {
    if (entry.command != &app_ && !entry.command->parsed()) continue;
    const std::string value = entry.option->count() > 0
                                  ? absl::StrJoin(entry.option->results(), ",")
                                  : entry.option->get_default_str();
    const bool masked =
        !value.empty() && std::count(secrets_.begin(), secrets_.end(), entry.long_name) > 0;
    absl::StrAppend(&text, entry.long_name, "=\"", masked ? "***" : value, "\"\n");
  }
  return text;
}

CLI::Validator IntegerRange(int64_t least, int64_t most) {
  return CLI::Validator(
      [least, most](std::string& text) {
        int64_t value = 0;
        if (absl::SimpleAtoi(text, &value) && value >= least && value <= most) return std::string();
        return absl::StrCat("'", EscapeForLog(text), "' is no whole number from ", least, " to ",
                            most);
      },
      absl::StrCat(least, " to ", most));
}

CLI::Validator OpenDescriptor() {
  return CLI::Validator(
      [](std::string& text) {
        int number = -1;
        if (absl::SimpleAtoi(text, &number) && (number == -1 || fcntl(number, F_GETFD) >= 0)) {
          return std::string();
        }
        return absl::StrCat("'", EscapeForLog(text), "' is no open descriptor (nor -1 for none)");
      },
      "-1 or an open descriptor");
}

int UsageError(const std::string& program, const std::string& message) {
  std::cerr << program << ": " << message << "\nSee " << program << " --help" << std::endl;
  return kExitUsage;
}

int FinishOutput(const std::string& program, int exit_code) {
  if (std::cout.flush() || exit_code != kExitOk) return exit_code;
  std::cerr << program << ": standard output cannot be written" << std::endl;
  return kExitFailure;
}

}  // namespace warpline
