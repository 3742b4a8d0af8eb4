#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "base/error_detail.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/process.h"
#include "base/status.h"
#include "base/unique_fd.h"

namespace warpline {
namespace {

using ::testing::HasSubstr;

TEST(BoundedQueueTest, KeepsOrderAndCapacityAndDrainsAfterClose) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  queue.Close();
  EXPECT_FALSE(queue.Push(4));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.Pop(), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
}

TEST(BoundedQueueTest, PushWaitsForRoomAndPopUntilGivesUp) {
  BoundedQueue<int> queue(1);
  EXPECT_EQ(queue.PopUntil(Now() + std::chrono::milliseconds(5)), std::nullopt);
  EXPECT_TRUE(queue.Push(1));
  std::thread consumer([&queue] { EXPECT_EQ(queue.Pop(), 1); });
  EXPECT_TRUE(queue.Push(2));
  consumer.join();
  EXPECT_EQ(queue.Pop(), 2);
}

TEST(LogTest, EscapesControlAndInvalidBytes) {
  EXPECT_EQ(EscapeForLog("a\nb\x7F\xFFz"), "a\\x0Ab\\x7F\\xFFz");
  EXPECT_EQ(EscapeForLog("gr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(EscapeForLog("\xC3"), "\\xC3");
  EXPECT_EQ(EscapeForLog("\xED\xA0\x80"), "\\xED\\xA0\\x80");  // a surrogate
  EXPECT_EQ(EscapeForLog("\xF4\x90\x80\x80"), "\\xF4\\x90\\x80\\x80");
}

TEST(ErrorDetailTest, TravelsWithTheStatusThroughAnnotate) {
  const absl::Status status = Annotate(InvalidField("top_p", "must be at most 1"), "request 7");
  EXPECT_EQ(status.message(), "request 7: top_p: must be at most 1");
  EXPECT_EQ(DetailOf(status).param, "top_p");
  EXPECT_EQ(DetailOf(status).code, "invalid_value");
}

struct Parsed {
  std::optional<int> exit;
  int64_t ctx = 0;
  int parallel = 8;
  std::string key;
  std::string error;
};

Parsed ParseLine(std::vector<const char*> arguments) {
  Parsed parsed;
  CLI::App app;
  Flags flags(app, "warpline-test");
  flags.Add(app, "-c,--ctx-size", parsed.ctx, "context")->check(IntegerRange(1, 1 << 20));
  flags.Add(app, "--parallel", parsed.parallel, "sequences");
  flags.Add(app, "--api-key", parsed.key, "key");
  flags.MarkSecret("api-key");
  arguments.insert(arguments.begin(), "warpline-test");
  testing::internal::CaptureStderr();
  testing::internal::CaptureStdout();
  parsed.exit = flags.Parse(static_cast<int>(arguments.size()), arguments.data());
  parsed.error = testing::internal::GetCapturedStderr() + testing::internal::GetCapturedStdout();
  return parsed;
}

TEST(FlagsTest, TakesLlamaSpellings) {
  const Parsed parsed = ParseLine({"-np", "3", "-c", "512"});
  EXPECT_EQ(parsed.exit, std::nullopt);
  EXPECT_EQ(parsed.parallel, 3);
  EXPECT_EQ(parsed.ctx, 512);
}

TEST(FlagsTest, RefusesWithTheValidRange) {
  for (const char* value : {"4k", "0", "-1", "1e9", ""}) {
    const Parsed parsed = ParseLine({"-c", value});
    EXPECT_EQ(parsed.exit, kExitUsage) << value;
    EXPECT_THAT(parsed.error, HasSubstr("1048576")) << value;
  }
  EXPECT_EQ(ParseLine({"--no-such"}).exit, kExitUsage);
  EXPECT_EQ(ParseLine({"-c"}).exit, kExitUsage);
}

TEST(FlagsTest, RefusesADescriptorThatIsNotOpen) {
  const CLI::Validator check = OpenDescriptor();
  for (const char* text : {"-1", "2"}) EXPECT_EQ(check(text), "") << text;
  const int closed = dup(STDERR_FILENO);
  ASSERT_GE(closed, 0);
  close(closed);
  for (const std::string& text : {std::to_string(closed), std::string("-2"), std::string("x")}) {
    EXPECT_THAT(check(text), HasSubstr(text));
  }
}

// Rather than what is missing because of them.
TEST(FlagsTest, NamesUnknownWords) {
  const std::pair<std::vector<const char*>, const char*> cases[] = {
      {{"warpline-test"}, "subcommand is required"},
      {{"warpline-test", "bogus"}, "not expected: bogus"},
      {{"warpline-test", "--bogus", "eval"}, "not expected: --bogus"},
      {{"warpline-test", "eval"}, "--tokens is required"},
      {{"warpline-test", "eval", "--tokenz"}, "not expected: --tokenz"}};
  for (const auto& [arguments, expected] : cases) {
    CLI::App app;
    app.require_subcommand(1);
    Flags flags(app, "warpline-test");
    std::string tokens;
    flags.Add(*app.add_subcommand("eval", ""), "--tokens", tokens, "tokens")->required();
    testing::internal::CaptureStderr();
    EXPECT_EQ(flags.Parse(static_cast<int>(arguments.size()), arguments.data()), kExitUsage);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr(expected));
  }
}

TEST(FlagsTest, FlagBeatsEnvironmentBeatsFile) {
  const std::string path = testing::TempDir() + "/flags_test.conf";
  std::ofstream(path) << "ctx-size = 100\nparallel = 5\n";
  setenv("WARPLINE_PARALLEL", "6", 1);
  const Parsed parsed = ParseLine({"--config", path.c_str(), "-c", "200"});
  unsetenv("WARPLINE_PARALLEL");
  EXPECT_EQ(parsed.exit, std::nullopt) << parsed.error;
  EXPECT_EQ(parsed.ctx, 200);
  EXPECT_EQ(parsed.parallel, 6);
}

TEST(FlagsTest, EnvironmentNamesTheConfigFileUnlessAFlagDoes) {
  const std::string path = testing::TempDir() + "/flags_named.conf";
  std::ofstream(path) << "parallel = 5\n";
  setenv("WARPLINE_CONFIG", path.c_str(), 1);
  EXPECT_EQ(ParseLine({}).parallel, 5);
  EXPECT_EQ(ParseLine({"--config=/dev/null"}).exit, kExitUsage);
  const std::string other = testing::TempDir() + "/flags_other.conf";
  std::ofstream(other) << "parallel = 7\n";
  EXPECT_EQ(ParseLine({"--config", other.c_str()}).parallel, 7);
  setenv("WARPLINE_CONFIG", "/no/such/file", 1);
  EXPECT_EQ(ParseLine({}).exit, kExitUsage);
  unsetenv("WARPLINE_CONFIG");
}

TEST(FlagsTest, RefusesBadConfigFilesWithTheLine) {
  const std::string path = testing::TempDir() + "/flags_bad.conf";
  const std::pair<const char*, const char*> cases[] = {
      {"parallel = 5\n# more\nno-such = 1\n", "line 3: no such key: no-such"},
      {"print-config = true\n", "line 1: no such key: print-config"},
      {"parallel = 5\n[nowhere]\nctx-size = 7\n", "line 2: no such section: nowhere"},
      {"parallel = 5\n\"no-such\" = 1\n", "line 2: no such key: no-such"},
      {"no.such = 1\n", "line 1: no such key: no.such"},
      {"parallel = 5\nparallel = 6\n", "line 2"},
      {"\xEF\xBB\xBFparallel = 5\n", "line 1"},
      {"parallel = five\n", "parallel"},
      {"parallel 5\n", "line 1"}};
  for (const auto& [text, expected] : cases) {
    std::ofstream(path) << text;
    const Parsed parsed = ParseLine({"--config", path.c_str()});
    EXPECT_EQ(parsed.exit, kExitUsage) << text;
    EXPECT_THAT(parsed.error, HasSubstr(expected));
  }
  EXPECT_THAT(ParseLine({"--config", path.c_str()}).error, HasSubstr("config file " + path));
  EXPECT_EQ(ParseLine({"--config", "/"}).exit, kExitUsage);
  EXPECT_EQ(ParseLine({"--config", "/no/such/file"}).exit, kExitUsage);
}

TEST(FlagsTest, SubcommandTakesCommonOptionsAndConfigKeys) {
  const std::string path = testing::TempDir() + "/flags_sub.conf";
  std::ofstream(path) << "workers = 3\n";
  CLI::App app;
  Flags flags(app, "warpline-test");
  CLI::App* const command = app.add_subcommand("serve", "");
  int workers = 1;
  flags.Add(*command, "--workers", workers, "workers");
  const char* const arguments[] = {"warpline-test", "serve",       "--config",
                                   path.c_str(),    "--log-level", "error"};
  EXPECT_EQ(flags.Parse(6, arguments), std::nullopt);
  EXPECT_EQ(workers, 3);
  std::ofstream(path) << "no-such = 3\n";
  EXPECT_EQ(flags.Parse(6, arguments), kExitUsage);
  SetUpLog("warpline-test", LogLevel::kInfo);
}

TEST(FlagsTest, PrintConfigMasksSecrets) {
  const Parsed parsed = ParseLine({"--api-key", "hunter2", "-np", "4", "--print-config"});
  EXPECT_EQ(parsed.exit, kExitOk);
  EXPECT_THAT(parsed.error, HasSubstr("api-key=\"***\""));
  EXPECT_THAT(parsed.error, HasSubstr("parallel=\"4\""));
  EXPECT_THAT(parsed.error, testing::Not(HasSubstr("hunter2")));
}

TEST(TerminateHandlerTest, SaysInOneLineWhyTheProcessEnds) {
  const auto end_by = [](void (*fail)()) {
    InstallTerminateHandler();
    std::thread(fail).join();
  };
  EXPECT_EXIT(end_by([] { throw std::bad_alloc(); }), testing::ExitedWithCode(1),
              "^base_test: out of memory\n$");
  EXPECT_EXIT(
      end_by([] {
        throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
      }),
      testing::ExitedWithCode(1), "^base_test: cannot start a thread: a limit on threads");
  EXPECT_EXIT(end_by([] { throw std::out_of_range("no such place"); }), testing::ExitedWithCode(1),
              "^base_test: no such place\n$");
}

TEST(NotifyTest, WhatTheSupervisorActsOnPassesThroughAFullQueue) {
  const std::string path = testing::TempDir() + "/notify_test.sock";
  unlink(path.c_str());
  sockaddr_un address{.sun_family = AF_UNIX};
  ASSERT_LT(path.size(), sizeof(address.sun_path));
  std::memcpy(address.sun_path, path.data(), path.size());
  const UniqueFd receiver(socket(AF_UNIX, SOCK_DGRAM, 0));
  ASSERT_EQ(bind(receiver.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  setenv("NOTIFY_SOCKET", path.c_str(), 1);
  for (int i = 0; i < 1000; ++i) NotifySupervisor("STATUS=loading");
  NotifySupervisor("READY=1");
  std::string last;
  char bytes[64];
  while (last != "READY=1") {
    const ssize_t size = recv(receiver.get(), bytes, sizeof(bytes), 0);
    ASSERT_GT(size, 0);
    last.assign(bytes, static_cast<size_t>(size));
  }
  unsetenv("NOTIFY_SOCKET");
  unlink(path.c_str());
}

}  // namespace
}  // namespace warpline
