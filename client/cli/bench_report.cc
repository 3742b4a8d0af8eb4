#include "client/cli/bench_report.h"

#include <sched.h>
#include <sys/utsname.h>

#include <algorithm>
#include <boost/json.hpp>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/bench_plot.h"

namespace warpline {
namespace {

namespace json = boost::json;

template <typename T>
json::array Array(const std::vector<T>& values) {
  json::array array;
  for (const T& value : values) array.emplace_back(value);
  return array;
}

const char* KindName(Measurement::Kind kind) {
  return kind == Measurement::Kind::kPrompt ? "prompt" : "decode";
}

json::object SummaryJson(const Summary& summary) {
  return {{"median", summary.median}, {"min", summary.least}, {"max", summary.most}};
}

json::object MeasurementJson(const Measurement& measurement) {
  return {{"kind", KindName(measurement.kind)},
          {"prompt_tokens", measurement.size},
          {"streams", measurement.stream_count},
          {"counted_tokens", measurement.token_count},
          {"received_tokens", measurement.received_count},
          {"seconds", measurement.seconds},
          {"tokens_per_second", measurement.tokens_per_second()}};
}

json::object RunJson(const BenchRun& run) {
  json::array measurements;
  for (const Measurement& measurement : run.measurements) {
    measurements.push_back(MeasurementJson(measurement));
  }
  return {{"arm", ArmName(run.arm)},
          {"repeat", run.repeat},
          {"ready_seconds",
           run.ready_seconds < 0 ? json::value(nullptr) : json::value(run.ready_seconds)},
          {"version", run.facts.version},
          {"model", json::object{{"name", run.facts.model},
                                 {"architecture", run.facts.architecture},
                                 {"fingerprint", run.facts.fingerprint},
                                 {"vocab_size", run.facts.vocab_size}}},
          {"context_length", run.facts.context_length},
          {"slots", run.facts.slot_count},
          {"devices", Array(run.facts.devices)},
          {"measurements", std::move(measurements)}};
}

// The ready times of an arm's runs; empty when the service was not started for them.
std::vector<double> ReadySeconds(const BenchReport& report, size_t arm) {
  std::vector<double> seconds;
  for (const BenchRun& run : report.runs) {
    if (static_cast<size_t>(run.arm) == arm && run.ready_seconds >= 0) {
      seconds.push_back(run.ready_seconds);
    }
  }
  return seconds;
}

// The speeds of one kind of measurement in all runs of an arm.
std::vector<double> Speeds(const BenchReport& report, size_t arm, const std::string& name) {
  std::vector<double> speeds;
  for (const BenchRun& run : report.runs) {
    if (static_cast<size_t>(run.arm) != arm) continue;
    for (const Measurement& measurement : run.measurements) {
      if (measurement.Name() == name) speeds.push_back(measurement.tokens_per_second());
    }
  }
  return speeds;
}

std::string TableLine(const std::string& name, const std::vector<Summary>& arms, bool with_ratio) {
  std::string line = absl::StrFormat("%-20s", name);
  for (const Summary& arm : arms) {
    const int digits = arm.median < 100 ? 2 : 0;
    const std::string spread =
        absl::StrFormat("(%.*f - %.*f)", digits, arm.least, digits, arm.most);
    absl::StrAppendFormat(&line, "  %9.*f %-20s", digits, arm.median, spread);
  }
  if (with_ratio && arms.size() > 1) {
    absl::StrAppendFormat(&line, "  %.3f", arms[1].median / arms[0].median);
  }
  while (absl::EndsWith(line, " ")) line.pop_back();
  return line + "\n";
}

// The curves of `kind`: one for each arm and, for prompts, number of prompts at a time.
std::vector<PlotCurve> Curves(const BenchReport& report, Measurement::Kind kind) {
  std::vector<PlotCurve> curves;
  const std::vector<BenchRow> rows = SummarizeRuns(report);
  const bool is_prompt = kind == Measurement::Kind::kPrompt;
  const std::vector<int> counts = is_prompt ? report.plan.concurrent_prompts : std::vector<int>{1};
  for (const int count : counts) {
    for (size_t arm = 0; arm < report.arms.size(); ++arm) {
      PlotCurve curve{.name = report.arms.size() > 1
                                  ? absl::StrCat(ArmName(arm), ": ", report.arms[arm].options)
                                  : "median, least and most of the runs"};
      if (is_prompt && counts.size() > 1) absl::StrAppend(&curve.name, " x", count);
      for (const BenchRow& row : rows) {
        if (row.kind != kind || (is_prompt && row.stream_count != count)) continue;
        curve.points.push_back({.x = static_cast<double>(is_prompt ? row.size : row.stream_count),
                                .y = row.arms[arm].median,
                                .least = row.arms[arm].least,
                                .most = row.arms[arm].most});
      }
      std::sort(curve.points.begin(), curve.points.end(),
                [](const PlotPoint& a, const PlotPoint& b) { return a.x < b.x; });
      if (!curve.points.empty()) curves.push_back(std::move(curve));
    }
  }
  return curves;
}

}  // namespace

MachineFacts ReadMachineFacts() {
  MachineFacts facts{.cpu = "unknown"};
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (!absl::StartsWith(line, "model name")) continue;
    facts.cpu = std::string(absl::StripAsciiWhitespace(line.substr(line.find(':') + 1)));
    break;
  }
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) facts.usable_cores = CPU_COUNT(&set);
  utsname name{};
  if (uname(&name) == 0) facts.kernel = absl::StrCat(name.sysname, " ", name.release);
  return facts;
}

std::string ArmName(size_t index) { return std::string(1, static_cast<char>('A' + index)); }

std::vector<BenchRow> SummarizeRuns(const BenchReport& report) {
  std::vector<BenchRow> rows;
  if (report.runs.empty()) return rows;
  for (const Measurement& measurement : report.runs.front().measurements) {
    BenchRow row{.kind = measurement.kind,
                 .size = measurement.size,
                 .stream_count = measurement.stream_count,
                 .name = measurement.Name()};
    for (size_t arm = 0; arm < report.arms.size(); ++arm) {
      std::vector<double> speeds = Speeds(report, arm, row.name);
      if (!speeds.empty()) row.arms.push_back(Summarize(std::move(speeds)));
    }
    if (row.arms.size() == report.arms.size()) rows.push_back(std::move(row));
  }
  return rows;
}

std::string ReportTable(const BenchReport& report) {
  std::string table;
  const bool with_ratio = report.arms.size() > 1;
  if (with_ratio) {
    for (size_t arm = 0; arm < report.arms.size(); ++arm) {
      absl::StrAppend(
          &table, ArmName(arm), ": ",
          report.arms[arm].options.empty() ? "no more options" : report.arms[arm].options, "\n");
    }
  }
  absl::StrAppendFormat(&table, "%-20s", "tokens/s");
  for (size_t arm = 0; arm < report.arms.size(); ++arm) {
    absl::StrAppendFormat(&table, "  %9s %-20s", with_ratio ? ArmName(arm) : "median",
                          "(least - most)");
  }
  absl::StrAppend(&table, with_ratio ? "  B/A" : "", "\n");
  for (const BenchRow& row : SummarizeRuns(report)) {
    table += TableLine(row.name, row.arms, with_ratio);
  }
  std::vector<Summary> ready;
  for (size_t arm = 0; arm < report.arms.size(); ++arm) {
    std::vector<double> seconds = ReadySeconds(report, arm);
    if (!seconds.empty()) ready.push_back(Summarize(std::move(seconds)));
  }
  if (ready.size() == report.arms.size()) table += TableLine("start to ready, s", ready, false);
  return table;
}

std::string ReportJson(const BenchReport& report) {
  json::array arms;
  for (size_t arm = 0; arm < report.arms.size(); ++arm) {
    arms.push_back(json::object{{"name", ArmName(arm)},
                                {"options", report.arms[arm].options},
                                {"serve_arguments", Array(report.arms[arm].serve_arguments)}});
  }
  json::array runs;
  for (const BenchRun& run : report.runs) runs.push_back(RunJson(run));
  json::array summary;
  for (const BenchRow& row : SummarizeRuns(report)) {
    json::object item{
        {"kind", KindName(row.kind)}, {"prompt_tokens", row.size}, {"streams", row.stream_count}};
    for (size_t arm = 0; arm < row.arms.size(); ++arm) {
      item[ArmName(arm)] = SummaryJson(row.arms[arm]);
    }
    if (row.arms.size() > 1) item["B/A"] = row.arms[1].median / row.arms[0].median;
    summary.push_back(std::move(item));
  }
  const BenchPlan& plan = report.plan;
  const json::object document = {
      {"version", WARPLINE_VERSION},
      {"command_line", Array(report.command_line)},
      {"machine", json::object{{"cpu", report.machine.cpu},
                               {"usable_cores", report.machine.usable_cores},
                               {"kernel", report.machine.kernel}}},
      {"seed", plan.seed},
      {"prompts", Array(plan.prompts)},
      {"concurrent_prompts", Array(plan.concurrent_prompts)},
      {"batches", Array(plan.batches)},
      {"decode_tokens", plan.decode_tokens},
      {"decode_prompt", plan.decode_prompt},
      {"arms", std::move(arms)},
      {"runs", std::move(runs)},
      {"summary", std::move(summary)},
      {"error", report.error.empty() ? json::value(nullptr) : json::value(report.error)}};
  return json::serialize(document) + "\n";
}

std::string ReportSvg(const BenchReport& report) {
  std::vector<PlotPanel> panels;
  std::vector<PlotCurve> prompts = Curves(report, Measurement::Kind::kPrompt);
  std::vector<PlotCurve> decode = Curves(report, Measurement::Kind::kDecode);
  const std::string model = report.runs.empty() ? "" : report.runs.front().facts.model;
  if (!prompts.empty()) {
    panels.push_back({.title = absl::StrCat("Prompt speed, ", model),
                      .x_label = "prompt length, tokens",
                      .y_label = "prompt tokens/s",
                      .curves = std::move(prompts)});
  }
  if (!decode.empty()) {
    panels.push_back({.title = absl::StrCat("Decode speed, ", model),
                      .x_label = "streams at one time",
                      .y_label = "generated tokens/s, all streams",
                      .curves = std::move(decode)});
  }
  return PlotSvg(panels);
}

}  // namespace warpline
