// The program itself: its options, its exit codes, its end.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cstddef>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/gateway/test_service.h"

namespace warpline {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// A running gateway whose standard error is read here.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), WARPLINE_BIN_DIR "/warpline-gateway");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    int fds[2];
    if (pipe2(fds, O_CLOEXEC) != 0) std::abort();
    errors_.Reset(fds[0]);
    const UniqueFd write_end(fds[1]);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, write_end.get(), STDERR_FILENO);
    if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) std::abort();
    posix_spawn_file_actions_destroy(&actions);
  }
  ~Program() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  // What it writes up to `sign`, or until it ends.
  std::string ErrorsUntil(absl::string_view sign) {
    std::string text;
    char byte = 0;
    while (!absl::StrContains(text, sign) && read(errors_.get(), &byte, 1) == 1) {
      text.push_back(byte);
    }
    return text;
  }
  int Port() {
    std::string text = ErrorsUntil("listening address=");
    text += ErrorsUntil("\n");
    const size_t at = text.rfind("port=");
    int port = 0;
    EXPECT_TRUE(at != std::string::npos &&
                absl::SimpleAtoi(text.substr(at + 5, text.size() - at - 6), &port))
        << text;
    return port;
  }
  void Signal(int number) { kill(pid_, number); }
  // Its exit code, -1 when a signal ended it.
  int Wait() {
    int status = 0;
    waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_ = 0;
  UniqueFd errors_;
};

// What programs that are started meanwhile tell their supervisor.
class Notifications {
 public:
  Notifications() : socket_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)) {
    const std::string name = absl::StrCat("warpline-gateway-test-", getpid());
    sockaddr_un address{.sun_family = AF_UNIX};
    name.copy(address.sun_path + 1, sizeof(address.sun_path) - 1);  // Abstract: nothing is left.
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), length), 0);
    setenv("NOTIFY_SOCKET", absl::StrCat("@", name).c_str(), 1);
  }
  ~Notifications() { unsetenv("NOTIFY_SOCKET"); }

  // The next message; empty after 10 s.
  std::string Next() {
    pollfd readable{.fd = socket_.get(), .events = POLLIN};
    if (poll(&readable, 1, 10000) != 1) return "";
    char text[512];
    const ssize_t size = recv(socket_.get(), text, sizeof(text), 0);
    return std::string(text, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  }

 private:
  UniqueFd socket_;
};

const std::vector<std::string> kBase = {"--coordinator", "unix:/nonexistent/socket"};

std::vector<std::string> With(std::vector<std::string> more) {
  more.insert(more.begin(), kBase.begin(), kBase.end());
  return more;
}

TEST(GatewayProgramTest, PrintsTheRealPortAndEndsWithZero) {
  Program program(With({"--port", "0"}));
  const int port = program.Port();
  RawClient client(port);
  client.Send(Get("/health"));
  EXPECT_EQ(client.Read().status, 200);
  program.Signal(SIGTERM);
  EXPECT_EQ(program.Wait(), 0);
}

// Whether its coordinator comes later, or is there and not ready.
TEST(GatewayProgramTest, IsReadyWhenARequestSucceeds) {
  for (const bool absent : {true, false}) {
    SCOPED_TRACE(absent);
    FakeCoordinator coordinator;
    v1::StatusResponse status;
    coordinator.SetStatus(status);
    if (absent) coordinator.Stop();
    Notifications notifications;
    Program program({"--coordinator", coordinator.address(), "--port", "0"});
    const int port = program.Port();
    EXPECT_THAT(notifications.Next(),
                AllOf(HasSubstr("STATUS=waiting"), HasSubstr("EXTEND_TIMEOUT_USEC="),
                      Not(HasSubstr("READY=1"))));
    status.set_ready(true);
    coordinator.SetStatus(status);
    if (absent) coordinator.Start();
    EXPECT_THAT(notifications.Next(), HasSubstr("READY=1"));
    for (const std::string& request :
         {Get("/ready"), Post("/v1/completions", R"({"prompt":"x","max_tokens":1})")}) {
      RawClient client(port);
      client.Send(request);
      EXPECT_EQ(client.Read().status, 200);
    }
  }
}

TEST(GatewayProgramTest, BindsAgainAtOnceAfterAKill) {
  auto first = std::make_unique<Program>(With({"--port", "0"}));
  const int port = first->Port();
  RawClient client(port);
  client.Send(Get("/health"));
  ASSERT_EQ(client.Read().status, 200);
  first.reset();  // with the connection still open
  Program second(With({"--port", absl::StrCat(port)}));
  EXPECT_EQ(second.Port(), port);
}

TEST(GatewayProgramTest, SaysWhichPortIsInUse) {
  Program first(With({"--port", "0"}));
  const std::string port = absl::StrCat(first.Port());
  const SteadyTime begin = Now();
  Program second(With({"--port", port}));
  EXPECT_THAT(second.ErrorsUntil("\n"),
              AllOf(HasSubstr("127.0.0.1"), HasSubstr(port), HasSubstr("in use")));
  EXPECT_EQ(second.Wait(), 1);
  EXPECT_LT(SecondsSince(begin), 1);
}

TEST(GatewayProgramTest, RefusesBadOptionsWithTheirRange) {
  Program port(With({"--port", "70000"}));
  EXPECT_THAT(port.ErrorsUntil("\n"), HasSubstr("0 to 65535"));
  EXPECT_EQ(port.Wait(), 2);
  Program nowhere(With({"--port", "0", "--host", ""}));
  EXPECT_THAT(nowhere.ErrorsUntil("\n"), HasSubstr("--host must name an address"));
  EXPECT_EQ(nowhere.Wait(), 2);
  Program unknown(With({"--bogus"}));
  EXPECT_EQ(unknown.Wait(), 2);
  Program nothing({});
  EXPECT_EQ(nothing.Wait(), 2);
  Program keys(With({"--api-key-file", "/dev/null"}));
  EXPECT_THAT(keys.ErrorsUntil("has no key"), HasSubstr("has no key"));
  EXPECT_EQ(keys.Wait(), 2);
}

TEST(GatewayProgramTest, WarnsOfAnOpenDoor) {
  Program open(With({"--port", "0", "--host", "0.0.0.0"}));
  EXPECT_THAT(open.ErrorsUntil("\n"), HasSubstr("no --api-key is set"));
  Program locked(With({"--port", "0", "--host", "0.0.0.0", "--api-key", "x"}));
  EXPECT_THAT(locked.ErrorsUntil("\n"), HasSubstr("listening"));
}

TEST(GatewayProgramTest, EndsWhenItsParentIsGone) {
  int fds[2];
  ASSERT_EQ(pipe(fds), 0);
  UniqueFd watched(fds[0]);
  UniqueFd held(fds[1]);
  ASSERT_EQ(fcntl(held.get(), F_SETFD, FD_CLOEXEC), 0);
  Program program(With({"--port", "0", "--watch-fd", absl::StrCat(watched.get())}));
  program.Port();
  const SteadyTime begin = Now();
  held.Reset();
  EXPECT_EQ(program.Wait(), 1);
  EXPECT_LT(SecondsSince(begin), 5);
}

}  // namespace
}  // namespace warpline
