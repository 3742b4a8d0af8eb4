// Progress bars, figures of `eval`, options that travel from one command to `serve`, and what the
// programs do when their output finds no room.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/device_memory.h"
#include "client/cli/eval_metrics.h"
#include "client/cli/progress_bar.h"
#include "client/cli/service_options.h"

namespace warpline {
namespace {

TEST(ProgressBarTest, DrawsAndReadsFractions) {
  EXPECT_EQ(BarText(0, 4), "[----]");
  EXPECT_EQ(BarText(0.5, 4), "[##--]");
  EXPECT_EQ(BarText(7, 4), "[####]");
  EXPECT_DOUBLE_EQ(LoadedFraction("worker 0: loading 40 %; worker 1: loading 60 %; gateway: x"),
                   0.5);
  EXPECT_DOUBLE_EQ(LoadedFraction("coordinator: starting"), -1);
  EXPECT_DOUBLE_EQ(LoadedFraction("worker 0: loading much"), -1);
}

TEST(PerplexityTest, IsTheInverseOfTheMeanProbability) {
  Perplexity perplexity;
  const float even[] = {1, 1, 1, 1};  // Each token has probability 1/4.
  perplexity.Add(even, 2);
  const float half[] = {0, 0, -INFINITY, -INFINITY};
  perplexity.Add(half, 1);
  EXPECT_EQ(perplexity.count(), 2);
  EXPECT_NEAR(perplexity.value(), std::sqrt(8.0), 1e-12);
}

TEST(LogitComparisonTest, ComparesWithClosedForms) {
  LogitComparison comparison;
  const float expected[] = {std::log(0.5F), std::log(0.25F), std::log(0.25F)};
  const float other[] = {std::log(0.25F), std::log(0.5F), std::log(0.25F)};
  comparison.Add(expected, expected);
  EXPECT_DOUBLE_EQ(comparison.nmse(), 0);
  EXPECT_NEAR(comparison.kl_divergence(), 0, 1e-7);
  EXPECT_DOUBLE_EQ(comparison.argmax_agreement(), 1);
  comparison.Add(other, expected);
  // KL = 0.5 ln 2 + 0.25 ln 0.5 = 0.25 ln 2 for the second row.
  EXPECT_NEAR(comparison.kl_divergence(), 0.125 * std::log(2.0), 1e-7);
  const double difference = 2 * std::pow(std::log(2.0), 2);
  const double squares = 2 * (std::pow(std::log(0.5), 2) + 2 * std::pow(std::log(0.25), 2));
  EXPECT_NEAR(comparison.nmse(), difference / squares, 1e-7);
  EXPECT_DOUBLE_EQ(comparison.argmax_agreement(), 0.5);
}

TEST(ServiceOptionsTest, ServeArgumentsSayTheSame) {
  ServiceOptions options;
  options.model = "m.gguf";
  options.workers = 3;
  options.ctx_size = 512;
  options.layer_split = "4,9";
  options.grpc_port = -1;
  options.kv_type = "q8_0";
  options.load_timeout_s = 33;
  options.backend = "cuda";
  options.tiles = "wmma";
  const std::vector<std::string> arguments = ServeArguments(options);
  ServiceOptions parsed;
  CLI::App app;
  Flags flags(app, "test");
  CLI::App* const serve = app.add_subcommand("serve", "");
  AddEngineOptions(flags, *serve, parsed);
  AddFrontOptions(flags, *serve, parsed);
  std::vector<const char*> pointers = {"test"};
  for (const std::string& argument : arguments) pointers.push_back(argument.c_str());
  ASSERT_EQ(flags.Parse(static_cast<int>(pointers.size()), pointers.data()), std::nullopt);
  EXPECT_EQ(ServeArguments(parsed), arguments);
  EXPECT_EQ(parsed.grpc_port, -1);
  EXPECT_EQ(parsed.layer_split, "4,9");
  EXPECT_EQ(parsed.load_timeout_s, 33);
  EXPECT_EQ(parsed.tiles, "wmma");
  EXPECT_EQ(ConflictOf(parsed), "");
  parsed.backend = "cpu";
  EXPECT_EQ(ConflictOf(parsed), "--tiles wmma needs --backend cuda");
}

TEST(ServiceOptionsTest, WorkersTakeTheDevicesInTurn) {
  ServiceOptions options;
  EXPECT_EQ(WorkerDevice(options, 3), 0);
  options.device = "2,0,5";
  EXPECT_EQ(WorkerDevice(options, 0), 2);
  EXPECT_EQ(WorkerDevice(options, 1), 0);
  EXPECT_EQ(WorkerDevice(options, 5), 5);
  for (const char* wrong : {"", "x", "0,", "-1", "1024"}) {
    ServiceOptions parsed;
    CLI::App app;
    Flags flags(app, "test");
    AddEngineOptions(flags, app, parsed);
    const char* const arguments[] = {"test", "-m", "m.gguf", "--device", wrong};
    testing::internal::CaptureStderr();
    EXPECT_EQ(flags.Parse(5, arguments), kExitUsage) << wrong;
    testing::internal::GetCapturedStderr();
  }
}

TEST(ServiceOptionsTest, MemoryOfDevicesIsGivenOrAsked) {
  ServiceOptions options;
  EXPECT_EQ(DeviceMemoryList(options), "") << "the CPU has none of its own";
  options.backend = "cuda";
  options.device = "1023";
  EXPECT_EQ(DeviceMemoryList(options), "") << "no machine has so many";
  options.device_memory = "80000,70000";
  EXPECT_EQ(DeviceMemoryList(options), "80000,70000");
  EXPECT_THAT(ServeArguments(options),
              testing::IsSupersetOf({std::string("--device-memory"), options.device_memory}));
  for (const char* wrong : {"x", "1,", "-1"}) {
    ServiceOptions parsed;
    CLI::App app;
    Flags flags(app, "test");
    AddEngineOptions(flags, app, parsed);
    const char* const arguments[] = {"test", "-m", "m.gguf", "--device-memory", wrong};
    testing::internal::CaptureStderr();
    EXPECT_EQ(flags.Parse(5, arguments), kExitUsage) << wrong;
    testing::internal::GetCapturedStderr();
  }
}

TEST(ServiceOptionsTest, AnIpv6HostStandsInBrackets) {
  ServiceOptions options;
  options.grpc_port = 5;
  for (const auto& [host, address] : {std::pair("127.0.0.1", "127.0.0.1:5"),
                                      {"::1", "[::1]:5"},
                                      {"[::1]", "[::1]:5"},
                                      {"localhost", "localhost:5"}}) {
    options.grpc_host = host;
    EXPECT_EQ(GrpcAddress(options), address);
  }
}

TEST(ServiceOptionsTest, AnEmptyHostIsAUsageError) {
  for (const char* name : {"--host", "--grpc-host"}) {
    ServiceOptions parsed;
    CLI::App app;
    Flags flags(app, "test");
    AddFrontOptions(flags, app, parsed);
    const char* const arguments[] = {"test", name, ""};
    testing::internal::CaptureStderr();
    EXPECT_EQ(flags.Parse(3, arguments), kExitUsage);
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                testing::HasSubstr(absl::StrCat(name, ": must name an address")));
  }
}

TEST(ServiceOptionsTest, AKeyIsNoArgument) {
  ServiceOptions options;
  options.api_key = "sesame";
  EXPECT_THAT(ServeArguments(options),
              testing::Not(testing::Contains(testing::HasSubstr("sesame"))));
  EXPECT_THAT(SecretVariables(options), testing::ElementsAre("WARPLINE_API_KEY=sesame"));
}

// The programs themselves, each on a disk without room.
TEST(OutputTest, WhatCannotBeWrittenIsAFailure) {
  const std::string model = WARPLINE_TEST_DATA "/tokenizers/qwen2.gguf";
  const std::string deep = WARPLINE_TEST_DATA "/families/qwen3-deep.gguf";
  const std::string errors = testing::TempDir() + "/output_test_errors";
  for (const std::string& command :
       {std::string("warpline --help"), std::string("warpline --version"),
        "warpline tokenize -m " + model + " Hello", "warpline plan -m " + deep,
        "warpline plan --print-config -m " + deep, std::string("warpline-coordinator --version"),
        std::string("warpline-worker --help"), std::string("warpline-gateway --version")}) {
    const int status =
        std::system(absl::StrCat(WARPLINE_BIN_DIR "/", command, " >/dev/full 2>", errors).c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kExitFailure) << command << status;
    std::ifstream file(errors);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    const std::string program = command.substr(0, command.find(' '));
    EXPECT_EQ(text, program == "warpline" && absl::StrContains(command, " plan -m")
                        ? "warpline-coordinator: standard output cannot be written\n"
                        : program + ": standard output cannot be written\n");
  }
}

TEST(ChatTest, SaysThatStandardInputCannotBeRead) {
  const std::string errors = testing::TempDir() + "/chat_test_errors";
  for (const std::string& input : {std::string("<&-"), std::string("</tmp")}) {
    const int status = std::system(
        absl::StrCat(WARPLINE_BIN_DIR "/warpline chat -m /no/model.gguf ", input, " 2>", errors)
            .c_str());
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == kExitFailure) << input << status;
    std::ifstream file(errors);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    EXPECT_THAT(text, testing::StartsWith("warpline: standard input cannot be read (")) << input;
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  }
}

}  // namespace
}  // namespace warpline
