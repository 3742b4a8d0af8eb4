// The program's command line: what it refuses and how it says so.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cstdio>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "coordinator/harness_client.h"

namespace warpline {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::SizeIs;

const std::string kModel = absl::StrCat(WARPLINE_TEST_DATA, "/families/qwen3-deep.gguf");

class ProgramTest : public testing::Test {
 protected:
  ProgramTest() {
    std::string pattern = "/tmp/warpline-test-XXXXXX";
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  ~ProgramTest() override { std::filesystem::remove_all(folder_); }

  struct Outcome {
    int code = 0;
    std::string output;
  };
  Outcome Run(const std::vector<std::string>& arguments) {
    const std::string log = absl::StrCat(folder_, "/log-", ++runs_);
    ProgramRun run("warpline-coordinator", arguments, log);
    const int code = run.Wait();
    std::ifstream file(log);
    std::stringstream text;
    text << file.rdbuf();
    return {code, text.str()};
  }

  std::string folder_;
  int runs_ = 0;
};

TEST_F(ProgramTest, BadOptionsExitWith2AndNameTheRange) {
  const struct {
    std::vector<std::string> options;
    const char* message;
  } cases[] = {
      {{"--no-such-flag"}, "no-such-flag"},
      {{"-c"}, "-c"},
      {{"-c", "-1"}, "0 to 16777216"},
      {{"-c", "1000000000"}, "0 to 16777216"},
      {{"-c", "4k"}, "0 to 16777216"},
      {{"-np", "0"}, "1 to 1024"},
      {{"--chunk", "-1"}, "0 to 1048576"},
      {{"--queue", "63"}, "64 to 65536"},
      {{"--kv-type", "f64"}, "q8_0"},
      {{"--edge", "pigeon"}, "grpc"},
      {{"--layer-split", "10,38"}, "2 workers have 1 later stages"},
      {{"--layer-split", "0"}, "valid range 1 to 5"},
      {{"--layer-split", "-2"}, "valid range 1 to 5"},
      {{"--layer-split", "6"}, "valid range 1 to 5"},
      {{"--layer-split", "two"}, "'two' is no layer number"},
      {{"--worker-count", "0"}, "1 to 512"},
      {{"--worker-threads", "-1"}, "0 to 1024"},
      {{"--ple-io", "disk"}, "mmap"},
      {{"--ple-cache-mib", "-1"}, "0 to 1048576"},
      {{"--secret-file", "/nowhere"}, "/nowhere"},
      {{"--chat-template", "/nowhere"}, "/nowhere"},
  };
  for (const auto& one : cases) {
    std::vector<std::string> arguments = {"-m",       kModel,
                                          "--worker", "unix:/tmp/none-0",
                                          "--worker", "unix:/tmp/none-1",
                                          "--listen", absl::StrCat("unix:", folder_, "/c.sock")};
    arguments.insert(arguments.end(), one.options.begin(), one.options.end());
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 2) << one.message << ": " << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(one.message));
  }
}

TEST_F(ProgramTest, MissingOptionsAndTooManyWorkersExitWith2) {
  EXPECT_EQ(Run({"-m", kModel}).code, 2);
  EXPECT_EQ(Run({"-m", kModel, "--worker", "unix:/tmp/none"}).code, 2);
  const Outcome outcome = Run({"-m", kModel, "--print-plan", "--worker-count", "7"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_THAT(outcome.output, HasSubstr("1 to 6 workers"));
}

TEST_F(ProgramTest, AFaultOfTheModelFileExitsWith3AndNamesIt) {
  const std::string bad = absl::StrCat(folder_, "/bad.gguf");
  std::ofstream(bad) << "no model at all, but long enough to hold a header";
  for (const std::string& path : {absl::StrCat(folder_, "/absent.gguf"), folder_, bad}) {
    const Outcome outcome = Run({"-m", path, "--print-plan", "--worker-count", "1"});
    EXPECT_EQ(outcome.code, 3) << outcome.output;
    EXPECT_THAT(outcome.output, HasSubstr(path));
  }
}

TEST_F(ProgramTest, ThePlanNamesEveryStage) {
  const Outcome outcome = Run({"-m", kModel, "--print-plan", "--worker-count", "2", "--layer-split",
                               "4", "-c", "640", "-np", "3"});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("[0, 4)"), HasSubstr("[4, 6)"),
                                    HasSubstr("longest sequence 640 tokens"),
                                    HasSubstr("3 sequences at once"), HasSubstr("30 cache pages")));
}

TEST_F(ProgramTest, ThePlanHasALineOfBytesForEachStageAndOneForAll) {
  const std::string model = absl::StrCat(WARPLINE_TEST_DATA, "/families/qwen4exp-ple.gguf");
  const auto plan = [&](const std::string& cache_mib, const std::string& io) {
    const Outcome outcome =
        Run({"-m", model, "--print-plan", "--worker-count", "2", "--layer-split", "2",
             "--worker-threads", "3", "--ple-cache-mib", cache_mib, "--ple-io", io});
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_THAT(outcome.output,
                AllOf(HasSubstr("3 compute threads"), HasSubstr(absl::StrCat("--ple-io ", io)),
                      HasSubstr(absl::StrCat("--ple-cache-mib ", cache_mib))));
    return outcome.output;
  };
  // Weights, caches, step, process, n-grams, and their sum: of two stages and of both together.
  const auto columns = [](const std::string& text) {
    std::vector<std::vector<int64_t>> lines;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);) {
      const size_t begin = line.find(") ");
      if (line.find('[') == std::string::npos || begin == std::string::npos) continue;
      std::istringstream numbers(line.substr(begin + 1));
      lines.emplace_back(std::istream_iterator<int64_t>(numbers), std::istream_iterator<int64_t>());
    }
    return lines;
  };
  const auto copied = columns(plan("1", "auto"));
  ASSERT_THAT(copied, SizeIs(3));
  for (const std::vector<int64_t>& line : copied) {
    ASSERT_THAT(line, SizeIs(6));
    EXPECT_EQ(line[5], line[0] + line[1] + line[2] + line[3] + line[4]);
  }
  for (size_t column = 0; column < 6; ++column) {
    EXPECT_EQ(copied[2][column], copied[0][column] + copied[1][column]);
  }
  // Two readers of 128 blocks each stand for the copy of the table; nothing else changes.
  const auto read = columns(plan("0", "direct"));
  ASSERT_THAT(read, SizeIs(3));
  EXPECT_GT(read[0][4], 2 * 128 * 8192);
  EXPECT_LT(copied[0][4], 2 * 128 * 8192);
  EXPECT_EQ(read[1], copied[1]) << "the second stage has no table";
}

TEST_F(ProgramTest, ThePlanOfCardsSumsWhatTheirStagesTake) {
  const auto plan = [&](const std::vector<std::string>& options) {
    std::vector<std::string> arguments = {"-m", kModel,      "--print-plan", "--worker-count",
                                          "3",  "--backend", "cuda"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    return Run(arguments);
  };
  // A process with next to nothing loaded takes 640 MiB of a card, two take 1280.
  const Outcome known = plan({"--device", "4,7", "--device-memory", "2000,1000"});
  EXPECT_EQ(known.code, 0) << known.output;
  EXPECT_THAT(known.output,
              AllOf(testing::ContainsRegex("device 4: 1[34][0-9]{8} bytes of 2097152000 free\n"),
                    testing::ContainsRegex("device 7: 6[789][0-9]{7} bytes of 1048576000 free\n"),
                    HasSubstr("longest sequence 512 tokens"), HasSubstr("the driver's context")));
  const Outcome unknown = plan({});
  EXPECT_EQ(unknown.code, 0) << unknown.output;
  EXPECT_THAT(unknown.output, HasSubstr("device 0: 2"));
  EXPECT_THAT(unknown.output, HasSubstr("not known (--device-memory says it)"));

  const Outcome small = plan({"--device", "4,7", "--device-memory", "1000"});
  EXPECT_EQ(small.code, 1) << small.output;
  EXPECT_THAT(small.output, AllOf(HasSubstr("CUDA device 4 has 1000 MiB free, its 2 stages need"),
                                  HasSubstr("driver 1280")));
  // Room for some cache pages, but not for all.
  const std::vector<std::string> many = {"--parallel", "64", "-c", "60000"};
  const std::string whole = plan(many).output;
  EXPECT_THAT(whole, HasSubstr("of the longest, 64 fit at once"));
  int64_t bytes = 0;
  ASSERT_EQ(std::sscanf(whole.c_str() + whole.find("device 0: "), "device 0: %ld", &bytes), 1);
  std::vector<std::string> less = many;
  less.insert(less.end(), {"--device-memory", absl::StrCat((bytes >> 20) - 4)});
  const Outcome lowered = plan(less);
  EXPECT_EQ(lowered.code, 0) << lowered.output;
  EXPECT_THAT(lowered.output, HasSubstr("of the longest, 63 fit at once"));

  EXPECT_EQ(plan({"--device-memory", "1,2"}).code, 2) << "one device";
  EXPECT_EQ(plan({"--device-memory", "much"}).code, 2);
  EXPECT_EQ(plan({"--device", "0,x"}).code, 2);
}

TEST_F(ProgramTest, AContextOfZeroIsTheModelsOwn) {
  const Outcome outcome = Run({"-m", kModel, "--print-plan", "--worker-count", "2", "-c", "0"});
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr("longest sequence 512 tokens"));
}

TEST_F(ProgramTest, APortInUseIsNamedAtOnce) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(listen(fd.get(), 1), 0);
  ASSERT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  const std::string listen_at = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
  const auto begin = std::chrono::steady_clock::now();
  const Outcome outcome = Run({"-m", kModel, "--worker", "unix:/tmp/none", "--listen", listen_at});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(1));
  EXPECT_EQ(outcome.code, 1) << outcome.output;
  EXPECT_THAT(outcome.output, HasSubstr(listen_at));
}

}  // namespace
}  // namespace warpline
