#include "client/cli/chat_command.h"

#include <poll.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "base/unique_fd.h"
#include "client/cli/connection.h"
#include "client/cli/generation.h"

namespace warpline {
namespace {

struct ChatOptions {
  ConnectionOptions connection;
  GenerationOptions generation;
  std::string system;
  std::string once;  // the only message: answer and end
};

// Lines of standard input; ends at end of file and at Ctrl-C.
class LineReader {
 public:
  std::optional<std::string> Next() {
    for (;;) {
      if (const size_t end = held_.find('\n'); end != std::string::npos) {
        std::string line = held_.substr(0, end);
        held_.erase(0, end + 1);
        return line;
      }
      pollfd fds[] = {{.fd = STDIN_FILENO, .events = POLLIN},
                      {.fd = signal_fd_.get(), .events = POLLIN}};
      if (poll(fds, 2, -1) < 0) continue;  // Interrupted.
      if (fds[1].revents != 0) return std::nullopt;
      char bytes[4096];
      const ssize_t count = read(STDIN_FILENO, bytes, sizeof(bytes));
      if (count <= 0) return TakeRest();
      held_.append(bytes, static_cast<size_t>(count));
    }
  }

 private:
  std::optional<std::string> TakeRest() {
    if (held_.empty()) return std::nullopt;
    return std::exchange(held_, std::string());
  }

  const UniqueFd signal_fd_ = OpenStopSignals();
  std::string held_;
};

void AddMessage(boost::json::array& messages, const std::string& role, const std::string& content) {
  messages.push_back(boost::json::object{{"role", role}, {"content", content}});
}

Answer Ask(InferenceClient& client, const ChatOptions& options,
           const boost::json::array& messages) {
  v1::GenerateRequest request;
  request.mutable_chat()->set_messages_json(boost::json::serialize(messages));
  SetSampling(options.generation, request);
  return StreamAnswer(client, request);
}

int Talk(InferenceClient& client, const ChatOptions& options, boost::json::array messages) {
  LineReader reader;
  const bool on_terminal = isatty(STDIN_FILENO) == 1;
  if (on_terminal) std::cerr << "Type a message; Ctrl-C stops an answer, Ctrl-D ends the chat.\n";
  for (;;) {
    if (on_terminal) std::cerr << "\n> " << std::flush;
    const std::optional<std::string> line = reader.Next();
    if (!line.has_value()) break;
    if (line->empty()) continue;
    AddMessage(messages, "user", *line);
    const Answer answer = Ask(client, options, messages);
    std::cout << "\n" << std::flush;
    if (!answer.status.ok() && !absl::IsCancelled(answer.status)) {
      ReportFailure(answer.status);
      if (!on_terminal) return kExitFailure;
      messages.pop_back();
      continue;
    }
    std::cerr << (answer.status.ok() ? absl::StrCat("[", SpeedText(answer), "]\n")
                                     : std::string("[stopped]\n"));
    AddMessage(messages, "assistant", answer.text);
  }
  if (on_terminal) std::cerr << "\n";
  return kExitOk;
}

int Chat(const ChatOptions& options, const std::string& log_level) {
  // Asked before a service is started, which takes time and would get the number of a closed one.
  if (options.once.empty() && read(STDIN_FILENO, nullptr, 0) < 0) {
    return ReportFailure(absl::FailedPreconditionError(
        absl::StrCat("standard input cannot be read (", std::strerror(errno),
                     "); --once takes a message without it")));
  }
  Connection connection(options.connection, log_level);
  if (connection.exit_code() >= 0) return connection.exit_code();
  boost::json::array messages;
  if (!options.system.empty()) AddMessage(messages, "system", options.system);
  if (options.once.empty()) return Talk(connection.client(), options, messages);
  AddMessage(messages, "user", options.once);
  const Answer answer = Ask(connection.client(), options, messages);
  std::cout << "\n" << std::flush;
  if (!answer.status.ok()) return ReportFailure(answer.status);
  std::cerr << "[" << SpeedText(answer) << "]\n";
  return kExitOk;
}

int Complete(const ConnectionOptions& connection_options, const GenerationOptions& generation,
             const std::string& prompt, const std::string& log_level) {
  Connection connection(connection_options, log_level);
  if (connection.exit_code() >= 0) return connection.exit_code();
  v1::GenerateRequest request;
  request.set_text(prompt);
  SetSampling(generation, request);
  const Answer answer = StreamAnswer(connection.client(), request);
  std::cout << "\n" << std::flush;
  if (!answer.status.ok()) return ReportFailure(answer.status);
  std::cerr << "[" << SpeedText(answer) << "]\n";
  return kExitOk;
}

// The service of an interactive command says only what matters, unless the user asks for more.
std::string ServiceLogLevel(const CLI::App& app) {
  const CLI::Option* const option = app.get_option("--log-level");
  return option->count() > 0 ? option->as<std::string>() : "error";
}

}  // namespace

Command MakeChatCommand(CLI::App& app, Flags& flags) {
  CLI::App* const command = app.add_subcommand("chat", "Talk with a model");
  auto options = std::make_shared<ChatOptions>();
  AddConnectionOptions(flags, *command, options->connection);
  AddFrontOptions(flags, *command, options->connection.service);
  AddGenerationOptions(flags, *command, options->generation);
  flags.Add(*command, "--system", options->system, "System message");
  flags.Add(*command, "--once", options->once, "Answer this one message and end");
  return {.app = command, .run = [options, &app] { return Chat(*options, ServiceLogLevel(app)); }};
}

Command MakeCompleteCommand(CLI::App& app, Flags& flags) {
  CLI::App* const command = app.add_subcommand("complete", "Continue a text");
  auto connection = std::make_shared<ConnectionOptions>();
  auto generation = std::make_shared<GenerationOptions>();
  auto prompt = std::make_shared<std::string>();
  AddConnectionOptions(flags, *command, *connection);
  AddGenerationOptions(flags, *command, *generation);
  command->add_option("prompt", *prompt, "The text")->required();
  connection->service.no_gateway = true;
  connection->service.grpc_port = -1;
  return {.app = command, .run = [=, &app] {
            return Complete(*connection, *generation, *prompt, ServiceLogLevel(app));
          }};
}

}  // namespace warpline
