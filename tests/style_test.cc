// Reads the tree and fails on what the house style forbids: an include across a border, an
// oversized file, a banned call.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace warpline {
namespace {

namespace fs = std::filesystem;

struct Line {
  std::string file;  // relative to the root, such as "worker/main.cc"
  int number = 0;
  std::string text;
};

constexpr int kMaxFileLines = 800;
constexpr int kMaxColumns = 100;

// Files of numbers may be as long as the numbers are many.
bool IsTable(const std::string& file) { return absl::StartsWith(file, "kernels/quant_grids"); }

std::vector<std::string> SourceFiles() {
  const fs::path root(WARPLINE_SOURCE_DIR);
  std::vector<std::string> files;
  for (const char* folder :
       {"base", "proto", "model", "kernels", "worker", "coordinator", "client", "tests"}) {
    if (!fs::exists(root / folder)) continue;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(root / folder)) {
      static const std::set<std::string> kEndings = {".h", ".cc", ".cu", ".cuh"};
      if (kEndings.count(entry.path().extension().string()) > 0)
        files.push_back(fs::relative(entry.path(), root).string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<Line> ReadLines(const std::string& file) {
  std::ifstream input(fs::path(WARPLINE_SOURCE_DIR) / file);
  std::vector<Line> lines;
  for (std::string text; std::getline(input, text);) {
    lines.push_back({.file = file, .number = static_cast<int>(lines.size()) + 1, .text = text});
  }
  return lines;
}

std::string Where(const Line& line) {
  return absl::StrCat(line.file, ":", line.number, ": ", line.text);
}

std::string TopFolder(const std::string& path) { return path.substr(0, path.find('/')); }

// The included path of `#include "..."` or `#include <...>`, or "".
std::string IncludedPath(const std::string& text) {
  if (!absl::StartsWith(text, "#include ")) return "";
  const size_t begin = text.find_first_of("\"<");
  const size_t end = text.find_last_of("\">");
  return begin == std::string::npos || end <= begin ? "" : text.substr(begin + 1, end - begin - 1);
}

bool IsTest(const std::string& file) {
  return absl::StartsWith(file, "tests/") || absl::EndsWith(file, "_test.cc") ||
         absl::EndsWith(file, "fakes.h");
}

// May `file` include `included` (a path in this repository)?
bool MayInclude(const std::string& file, const std::string& included) {
  static const std::map<std::string, std::set<std::string>> kAllowed = {
      {"base", {}},
      {"proto", {"base"}},
      {"model", {"base"}},
      {"kernels", {"base"}},  // and model/quant.h
      {"worker", {"base", "proto", "model", "kernels"}},
      {"coordinator", {"base", "proto", "model"}},
      {"client", {"base", "proto"}},  // the command line also model
  };
  const std::string from = TopFolder(file);
  const std::string to = TopFolder(included);
  if (from == to || IsTest(file) || kAllowed.count(from) == 0) return to != "deploy";
  if (from == "kernels" && included == "model/quant.h") return true;
  if (absl::StartsWith(file, "client/cli/") && to == "model") return true;
  return kAllowed.at(from).count(to) > 0;
}

std::vector<std::string> Offences(bool (*is_offence)(const Line&)) {
  std::vector<std::string> found;
  for (const std::string& file : SourceFiles()) {
    for (const Line& line : ReadLines(file)) {
      if (is_offence(line)) found.push_back(Where(line));
    }
  }
  return found;
}

#define EXPECT_NONE(offences) EXPECT_TRUE((offences).empty()) << absl::StrJoin(offences, "\n")

TEST(StyleTest, FindsTheSources) { EXPECT_GT(SourceFiles().size(), 50U); }

TEST(StyleTest, FoldersIncludeOnlyWhatTheyMay) {
  EXPECT_NONE(Offences([](const Line& line) {
    const std::string included = IncludedPath(line.text);
    static const std::set<std::string> kFolders = {
        "base", "proto", "model", "kernels", "worker", "coordinator", "client", "tests", "deploy"};
    return kFolders.count(TopFolder(included)) > 0 && !MayInclude(line.file, included);
  }));
}

TEST(StyleTest, CudaStaysInItsFolder) {
  EXPECT_NONE(Offences([](const Line& line) {
    const std::string included = IncludedPath(line.text);
    return (absl::StartsWith(included, "cuda") || absl::StartsWith(included, "cublas")) &&
           !absl::StartsWith(line.file, "kernels/cuda/");
  }));
}

// State that depends on a device is a member of an object of that device: a static would be one for
// all of them.
TEST(StyleTest, CudaCodeHasNoStaticVariables) {
  EXPECT_NONE(Offences([](const Line& line) {
    const absl::string_view text = absl::StripAsciiWhitespace(line.text);
    return absl::StartsWith(line.file, "kernels/cuda/") && !IsTest(line.file) &&
           absl::StartsWith(text, "static ") && absl::EndsWith(text, ";") &&
           !absl::StrContains(text, "constexpr") && !absl::StrContains(text, "const ") &&
           !absl::StrContains(text, ")");
  }));
}

TEST(StyleTest, GrpcStaysInServicesAndClients) {
  EXPECT_NONE(Offences([](const Line& line) {
    if (!absl::StartsWith(IncludedPath(line.text), "grpcpp") &&
        !absl::StrContains(IncludedPath(line.text), ".grpc.pb.h")) {
      return false;
    }
    const std::string stem = fs::path(line.file).stem().string();
    return !IsTest(line.file) && TopFolder(line.file) != "proto" && stem != "main" &&
           !absl::EndsWith(stem, "_service") && !absl::EndsWith(stem, "_client") &&
           !absl::EndsWith(stem, "_reactor");
  }));
}

TEST(StyleTest, AsioAndJsonStayBehindTheirFences) {
  EXPECT_NONE(Offences([](const Line& line) {
    const std::string included = IncludedPath(line.text);
    if (IsTest(line.file) || !absl::StartsWith(included, "boost/")) return false;
    if (absl::StartsWith(line.file, "client/gateway/")) return false;
    return !(absl::StartsWith(line.file, "client/cli/") &&
             absl::StartsWith(included, "boost/json"));
  }));
}

TEST(StyleTest, FilesAndLinesAreShort) {
  std::vector<std::string> offences;
  for (const std::string& file : SourceFiles()) {
    if (IsTable(file)) continue;
    const std::vector<Line> lines = ReadLines(file);
    if (lines.size() > kMaxFileLines)
      offences.push_back(absl::StrCat(file, " has ", lines.size(), " lines"));
    for (const Line& line : lines) {
      if (line.text.size() > kMaxColumns && !absl::StrContains(line.text, "R\""))
        offences.push_back(Where(line));
    }
  }
  EXPECT_NONE(offences);
}

TEST(StyleTest, HeadersBeginWithASentenceAndAGuard) {
  std::vector<std::string> offences;
  for (const std::string& file : SourceFiles()) {
    if (!absl::EndsWith(file, ".h") && !absl::EndsWith(file, ".cuh")) continue;
    const std::vector<Line> lines = ReadLines(file);
    const bool has_guard = std::any_of(lines.begin(), lines.end(), [](const Line& line) {
      return line.text == "#pragma once" || absl::StrContains(line.text, "foreach_target") ||
             absl::StrContains(line.text, "HWY_TARGET_TOGGLE");
    });
    if (lines.empty() || !absl::StartsWith(lines[0].text, "// ") || !has_guard)
      offences.push_back(file);
  }
  EXPECT_NONE(offences);
}

TEST(StyleTest, BannedCallsAreNotUsed) {
  EXPECT_NONE(Offences([](const Line& line) {
    if (line.file == "tests/style_test.cc" || absl::StartsWith(line.file, "base/mutex.h"))
      return false;
    static const char* const kBanned[] = {"std::regex",
                                          "std::mutex ",
                                          "absl::Mutex",
                                          "strcpy(",
                                          "sprintf(",
                                          "std::rand(",
                                          "gets(",
                                          "TODO",
                                          "FIXME",
                                          "std::thread::detach",
                                          "using namespace std",
                                          "#include <ranges>",
                                          "#include <format>",
                                          "#include <source_location>",
                                          "#include <iostream.h>"};
    return std::any_of(std::begin(kBanned), std::end(kBanned), [&line](const char* banned) {
      return absl::StrContains(line.text, banned);
    });
  }));
}

TEST(StyleTest, EnvironmentIsReadByFlagsOnly) {
  EXPECT_NONE(Offences([](const Line& line) {
    return absl::StrContains(line.text, "getenv(") && !absl::StartsWith(line.file, "base/") &&
           !IsTest(line.file);
  }));
}

// A step of the wall clock must not end anything: waits and deadlines take the steady clock. What
// shows a time to people is all in base/clock.h and base/log.cc.
TEST(StyleTest, WallClockIsReadForShowOnly) {
  EXPECT_NONE(Offences([](const Line& line) {
    static const char* const kWallClocks[] = {
        "system_clock",         "high_resolution_clock", "absl::Now",
        "absl::GetCurrentTime", "CLOCK_REALTIME",        "gettimeofday(",
        "time(nullptr)",        "sem_timedwait",         "pthread_cond_timedwait"};
    static const std::set<std::string> kTestHelpers = {"coordinator/fake_worker_service.cc",
                                                       "coordinator/harness_client.cc",
                                                       "worker/worker_test_client.cc"};
    if (kTestHelpers.count(line.file) > 0) return false;
    if (IsTest(line.file) || line.file == "base/clock.h" || line.file == "base/log.cc")
      return false;
    return std::any_of(std::begin(kWallClocks), std::end(kWallClocks),
                       [&line](const char* clock) { return absl::StrContains(line.text, clock); });
  }));
}

// Numbers are read and written alike in every country.
TEST(StyleTest, LocaleIsNeverSet) {
  EXPECT_NONE(Offences([](const Line& line) {
    return !IsTest(line.file) && (absl::StrContains(line.text, "setlocale(") ||
                                  absl::StrContains(line.text, "std::locale"));
  }));
}

TEST(StyleTest, HeadersHaveNoUsingDirectives) {
  EXPECT_NONE(Offences([](const Line& line) {
    return absl::EndsWith(line.file, ".h") && absl::StartsWith(line.text, "using namespace");
  }));
}

}  // namespace
}  // namespace warpline
