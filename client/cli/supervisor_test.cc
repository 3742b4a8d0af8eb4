#include "client/cli/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/process.h"
#include "client/cli/socket_folder.h"

namespace warpline {
namespace {

// Children are shell scripts: they leave marks in files of the folder and end as they are told.
class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest() : folder_(*SocketFolder::Create("")) { BlockSignals(); }

  std::string Path(const std::string& name) const {
    return absl::StrCat(folder_.path(), "/", name);
  }

  ChildSpec Script(const std::string& name, const std::string& text) const {
    return {.name = name, .arguments = {"/bin/sh", "-c", text, "sh"}};
  }

  int Lines(const std::string& name) const {
    std::ifstream file(Path(name));
    int count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }

  // Waits for a file of at least `count` lines; false after ten seconds.
  bool WaitForLines(const std::string& name, int count) const {
    const SteadyTime deadline = Now() + std::chrono::seconds(10);
    while (Lines(name) < count) {
      if (Now() > deadline) return false;
      std::this_thread::yield();
    }
    return true;
  }

  SocketFolder folder_;
};

TEST_F(SupervisorTest, RestartsWhatEndsAndStopsOnASignal) {
  auto supervisor = Supervisor::Create(
      folder_.path(), {Script("worker 0", absl::StrCat("echo run >> ", Path("runs"), "; exit 1"))});
  ASSERT_TRUE(supervisor.ok()) << supervisor.status();
  int code = -1;
  std::thread thread([&] { code = supervisor->Run(-1, 5); });
  EXPECT_TRUE(WaitForLines("runs", 3));
  kill(getpid(), SIGTERM);
  thread.join();
  EXPECT_EQ(code, 0);
}

TEST_F(SupervisorTest, GivesUpWhenOptionsOrModelAreRefused) {
  for (const int exit_code : {2, 3}) {
    SocketFolder folder = *SocketFolder::Create("");
    auto supervisor =
        Supervisor::Create(folder.path(), {Script("worker 0", "exec sleep 60"),
                                           Script("worker 1", absl::StrCat("exit ", exit_code))});
    ASSERT_TRUE(supervisor.ok());
    EXPECT_EQ(supervisor->Run(-1, 5), exit_code);
  }
}

TEST_F(SupervisorTest, GivesUpWhenANeededChildFailsBeforeItWasReady) {
  ChildSpec spec = Script("gateway", "exit 1");
  spec.needed_at_start = true;
  auto supervisor = Supervisor::Create(folder_.path(), {spec});
  ASSERT_TRUE(supervisor.ok());
  EXPECT_EQ(supervisor->Run(-1, 5), 1);
}

TEST_F(SupervisorTest, GivesUpWhenAProgramIsMissing) {
  auto supervisor =
      Supervisor::Create(folder_.path(), {Script("worker 0", "exec sleep 60"),
                                          {.name = "worker 1", .arguments = {"/no/such/program"}}});
  ASSERT_TRUE(supervisor.ok());
  EXPECT_EQ(supervisor->Run(-1, 5), 1);
}

TEST_F(SupervisorTest, EndsWhenTheWatchedPipeCloses) {
  auto supervisor = Supervisor::Create(
      folder_.path(),
      {Script("worker 0", absl::StrCat("echo up >> ", Path("up"), "; exec sleep 60"))});
  ASSERT_TRUE(supervisor.ok());
  absl::StatusOr<WatchPipe> watch = WatchPipe::Create();
  ASSERT_TRUE(watch.ok());
  int code = -1;
  std::thread thread([&] { code = supervisor->Run(watch->read.get(), 5); });
  EXPECT_TRUE(WaitForLines("up", 1));
  watch->write.Reset();
  thread.join();
  EXPECT_EQ(code, 0);
}

TEST_F(SupervisorTest, StopsInOrderOfRank) {
  const auto waiting = [this](const std::string& name, int rank) {
    ChildSpec spec =
        Script(name, absl::StrCat("trap 'echo ", name, " >> ", Path("order"), "; exit 0' TERM; ",
                                  "echo up >> ", Path("up"), "; while :; do sleep 0.01; done"));
    spec.stop_rank = rank;
    return spec;
  };
  auto supervisor = Supervisor::Create(
      folder_.path(), {waiting("last", 2), waiting("first", 0), waiting("middle", 1)});
  ASSERT_TRUE(supervisor.ok());
  std::thread thread([&] { supervisor->Run(-1, 10); });
  EXPECT_TRUE(WaitForLines("up", 3));
  kill(getpid(), SIGTERM);
  thread.join();
  std::ifstream file(Path("order"));
  std::stringstream order;
  order << file.rdbuf();
  EXPECT_EQ(order.str(), "first\nmiddle\nlast\n");
}

TEST_F(SupervisorTest, ASecondSignalEndsAllRanksAtOnce) {
  const auto stubborn = [this](const std::string& name, int rank) {
    ChildSpec spec =
        Script(name, absl::StrCat("trap 'echo asked >> ", Path("asked"), "' TERM; ", "echo up >> ",
                                  Path("up"), "; while :; do sleep 0.01; done"));
    spec.stop_rank = rank;
    return spec;
  };
  auto supervisor = Supervisor::Create(
      folder_.path(), {stubborn("a", 0), stubborn("b", 0), stubborn("c", 1), stubborn("d", 2)});
  ASSERT_TRUE(supervisor.ok());
  std::thread thread([&] { supervisor->Run(-1, 60); });
  EXPECT_TRUE(WaitForLines("up", 4));
  kill(getpid(), SIGTERM);
  EXPECT_TRUE(WaitForLines("asked", 2));  // So the first signal has been taken.
  const SteadyTime second = Now();
  kill(getpid(), SIGTERM);
  thread.join();
  EXPECT_LT(SecondsSince(second), 10);
}

TEST_F(SupervisorTest, AStoppedChildIsKilledAfterItsOwnLimit) {
  ChildSpec spec =
      Script("worker 0", absl::StrCat("echo up >> ", Path("up"), "; kill -STOP $$; exec sleep 60"));
  spec.most_stop_seconds = 1;
  auto supervisor = Supervisor::Create(folder_.path(), {spec});
  ASSERT_TRUE(supervisor.ok());
  std::thread thread([&] { supervisor->Run(-1, 60); });
  EXPECT_TRUE(WaitForLines("up", 1));
  const SteadyTime begin = Now();
  kill(getpid(), SIGTERM);
  thread.join();
  EXPECT_LT(SecondsSince(begin), 20);
}

TEST_F(SupervisorTest, ChildrenInheritNoOptionsOfOurs) {
  setenv("WARPLINE_PORT", "1", 1);
  auto supervisor = Supervisor::Create(
      folder_.path(),
      {Script("worker 0", absl::StrCat("env > ", Path("env.new"), "; mv ", Path("env.new"), " ",
                                       Path("env"), "; exec sleep 60"))});
  unsetenv("WARPLINE_PORT");
  ASSERT_TRUE(supervisor.ok());
  std::thread thread([&] { supervisor->Run(-1, 5); });
  EXPECT_TRUE(WaitForLines("env", 1));
  kill(getpid(), SIGTERM);
  thread.join();
  std::ifstream file(Path("env"));
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), testing::Not(testing::HasSubstr("WARPLINE_PORT")));
  EXPECT_THAT(text.str(), testing::HasSubstr(absl::StrCat("NOTIFY_SOCKET=", folder_.path())));
}

TEST(SocketFolderTest, IsPrivateAndGoesAway) {
  std::string path;
  {
    const absl::StatusOr<SocketFolder> folder = SocketFolder::Create("");
    ASSERT_TRUE(folder.ok());
    path = folder->path();
    struct stat info {};
    ASSERT_EQ(stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0700U);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(SocketFolderTest, RemovesWhatAKilledProcessLeftAndNothingElse) {
  const SocketFolder outer = *SocketFolder::Create("");
  setenv("TMPDIR", outer.path().c_str(), 1);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const absl::StatusOr<SocketFolder> folder = SocketFolder::Create("");
    std::ofstream(folder->path() + "/letter") << "nobody reads me";
    raise(SIGKILL);
  }
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  const auto in_use = [&outer] {
    return std::distance(std::filesystem::directory_iterator(outer.path()), {});
  };
  EXPECT_EQ(in_use(), 1);
  const std::string others = outer.path() + "/another-program";
  ASSERT_EQ(mkdir(others.c_str(), 0700), 0);
  {
    const absl::StatusOr<SocketFolder> first = SocketFolder::Create("");
    ASSERT_TRUE(first.ok()) << first.status();
    const absl::StatusOr<SocketFolder> second = SocketFolder::Create("");
    ASSERT_TRUE(second.ok()) << second.status();
    EXPECT_TRUE(std::filesystem::exists(first->path()));
    EXPECT_TRUE(std::filesystem::exists(others));
    EXPECT_EQ(in_use(), 3);
  }
  unsetenv("TMPDIR");
}

TEST(SocketFolderTest, LeavesAFolderThatWasThere) {
  const SocketFolder outer = *SocketFolder::Create("");
  const std::string path = outer.path() + "/mine";
  ASSERT_EQ(mkdir(path.c_str(), 0700), 0);
  std::ofstream(path + "/letter") << "keep me";
  {
    const absl::StatusOr<SocketFolder> folder = SocketFolder::Create(path);
    ASSERT_TRUE(folder.ok()) << folder.status();
  }
  EXPECT_TRUE(std::filesystem::exists(path + "/letter"));
  ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  EXPECT_EQ(SocketFolder::Create(path).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(SocketFolder::Create(path + "/letter").ok());
  const std::string made = outer.path() + "/made";
  EXPECT_TRUE(SocketFolder::Create(made).ok());
  EXPECT_FALSE(std::filesystem::exists(made));
}

TEST(NotifySocketTest, ReplacesOneThatAKilledProcessLeft) {
  const SocketFolder folder = *SocketFolder::Create("");
  const std::string path = folder.path() + "/notify.sock";
  {
    const UniqueFd dead(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_un address{.sun_family = AF_UNIX};
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  const absl::StatusOr<NotifySocket> socket = NotifySocket::Create(folder.path());
  ASSERT_TRUE(socket.ok()) << socket.status();
  // One that is read stays whose it is.
  EXPECT_FALSE(NotifySocket::Create(folder.path()).ok());
}

}  // namespace
}  // namespace warpline
