#include "client/gateway/config.h"

#include <sys/stat.h>

#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/log.h"

namespace warpline {
namespace {

constexpr char kProgram[] = "warpline-gateway";
constexpr size_t kMaxKeyBytes = 4096;
constexpr size_t kMaxKeys = 1024;

// What the command line says before units are applied.
struct Options {
  std::string api_key;
  std::string api_key_file;
  int header_timeout_seconds = 10;
  int body_timeout_seconds = 60;
  int idle_timeout_seconds = 75;
  int write_timeout_seconds = 30;
  int comment_seconds = 15;
  int request_timeout_seconds = 3600;
};

void AddOptions(Flags& flags, CLI::App& app, GatewayConfig& config, Options& options) {
  flags.Add(app, "--coordinator", config.coordinator, "Coordinator: unix:/path or host:port")
      ->required();
  flags.Add(app, "--host", config.host, "Address to listen on");
  flags.Add(app, "--port", config.port, "Port to listen on (0: any free one)")
      ->check(IntegerRange(0, 65535));
  flags.Add(app, "--api-key", options.api_key, "Key that clients must send");
  flags.MarkSecret("api-key");
  flags.Add(app, "--api-key-file", options.api_key_file, "File with one accepted key a line");
  flags.Add(app, "--alias", config.alias, "Model name shown to clients (default: the file's)");
  flags.AddFlag(app, "--strict-model", config.strict_model,
                "Refuse requests that name another model");
  flags.Add(app, "--cors-origin", config.cors_origin,
            "Origin that browsers may call from, or * (default: none)");
  flags.Add(app, "--max-body-bytes", config.max_body_bytes, "Longest request body, bytes")
      ->check(IntegerRange(1024, 64 << 20));
  flags.Add(app, "--max-connections", config.max_connections, "Most connections at a time")
      ->check(IntegerRange(1, 100000));
  flags
      .Add(app, "--stream-buffer-bytes", config.stream_buffer_bytes,
           "Unsent bytes of a stream before its slow client is dropped")
      ->check(IntegerRange(16 << 10, 64 << 20));
  flags
      .Add(app, "--drain-seconds", config.drain_seconds,
           "Time for running requests after a stop signal, s")
      ->check(IntegerRange(0, 86400));
  flags.Add(app, "--watch-fd", config.watch_fd, "Exit when this inherited pipe closes")
      ->check(OpenDescriptor());
}

void AddTimeouts(Flags& flags, CLI::App& app, Options& options) {
  const CLI::Validator seconds = IntegerRange(1, 86400);
  flags.Add(app, "--header-timeout", options.header_timeout_seconds, "For a request's header, s")
      ->check(seconds);
  flags.Add(app, "--body-timeout", options.body_timeout_seconds, "For a request's body, s")
      ->check(seconds);
  flags.Add(app, "--idle-timeout", options.idle_timeout_seconds, "Between two requests, s")
      ->check(seconds);
  flags
      .Add(app, "--write-timeout", options.write_timeout_seconds,
           "For a client that reads nothing, s")
      ->check(seconds);
  flags
      .Add(app, "--sse-comment-seconds", options.comment_seconds,
           "Comment in a stream without a token, s")
      ->check(seconds);
  flags.Add(app, "--request-timeout", options.request_timeout_seconds, "For one generation, s")
      ->check(seconds);
}

// Fills config.api_keys; what is wrong with them otherwise.
std::string ReadKeys(const Options& options, GatewayConfig& config) {
  if (!options.api_key.empty()) config.api_keys.push_back(options.api_key);
  if (!options.api_key_file.empty()) {
    std::ifstream file(options.api_key_file);
    if (!file) return absl::StrCat("--api-key-file ", options.api_key_file, " cannot be read");
    std::string line;
    while (std::getline(file, line)) {
      const absl::string_view key = absl::StripAsciiWhitespace(line);
      if (!key.empty()) config.api_keys.emplace_back(key);
      if (config.api_keys.size() > kMaxKeys) return "--api-key-file has too many keys";
    }
    struct stat info {};
    if (stat(options.api_key_file.c_str(), &info) == 0 && (info.st_mode & S_IROTH) != 0) {
      LogWarning("key file ", EscapeForLog(options.api_key_file), " can be read by everybody");
    }
    // A file without keys must not mean that anybody may enter.
    if (config.api_keys.empty()) {
      return absl::StrCat("--api-key-file ", options.api_key_file, " has no key");
    }
  }
  for (const std::string& key : config.api_keys) {
    if (key.size() > kMaxKeyBytes) return "an API key is longer than 4096 bytes";
    for (const char c : key) {
      if (c <= ' ' || c == '\x7f') return "an API key may only have printable ASCII characters";
    }
  }
  return "";
}

}  // namespace

std::optional<GatewayConfig> ParseGatewayConfig(int argc, const char* const* argv, int& exit_code) {
  CLI::App app("Serves the REST interface of a Warpline coordinator.");
  Flags flags(app, kProgram);
  GatewayConfig config;
  Options options;
  AddOptions(flags, app, config, options);
  AddTimeouts(flags, app, options);
  if (const std::optional<int> code = flags.Parse(argc, argv)) {
    exit_code = *code;
    return std::nullopt;
  }
  std::string problem = ReadKeys(options, config);
  // The resolver would take it for every address of the machine.
  if (config.host.empty()) problem = "--host must name an address";
  if (problem.empty() && config.cors_origin.find_first_of("\r\n") != std::string::npos) {
    problem = "--cors-origin may not have line ends";
  }
  if (!problem.empty()) {
    exit_code = UsageError(kProgram, problem);
    return std::nullopt;
  }
  if (absl::StartsWith(config.host, "[") && absl::EndsWith(config.host, "]")) {
    config.host = config.host.substr(1, config.host.size() - 2);
  }
  config.header_timeout = std::chrono::seconds(options.header_timeout_seconds);
  config.body_timeout = std::chrono::seconds(options.body_timeout_seconds);
  config.idle_timeout = std::chrono::seconds(options.idle_timeout_seconds);
  config.write_timeout = std::chrono::seconds(options.write_timeout_seconds);
  config.comment_interval = std::chrono::seconds(options.comment_seconds);
  config.request_timeout = std::chrono::seconds(options.request_timeout_seconds);
  return config;
}

}  // namespace warpline
