// What `warpline bench` found: a table for people, JSON for programs, a picture.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/cli/bench_run.h"

namespace warpline {

// The machine that the bench itself runs on.
struct MachineFacts {
  std::string cpu;
  int usable_cores = 0;
  std::string kernel;  // "Linux 6.1.0"
};

MachineFacts ReadMachineFacts();

// One way of starting the service.
struct BenchArm {
  std::string options;                       // as given with --ab
  std::vector<std::string> serve_arguments;  // all of `warpline serve`; empty with --url
};

struct BenchReport {
  std::vector<std::string> command_line;
  MachineFacts machine;
  BenchPlan plan;
  std::vector<BenchArm> arms;
  std::vector<BenchRun> runs;  // in the order they were made
  std::string error;           // empty: all went well
};

// A row of the table: one kind of measurement, with the figure of each arm.
struct BenchRow {
  Measurement::Kind kind;
  int size = 0;
  int stream_count = 1;
  std::string name;
  std::vector<Summary> arms;  // tokens per second; those of all arms
};

// Rows in the order of the measurements; those that not every arm has are left out.
std::vector<BenchRow> SummarizeRuns(const BenchReport& report);

// "A", "B", ..
std::string ArmName(size_t index);

std::string ReportTable(const BenchReport& report);
std::string ReportJson(const BenchReport& report);
std::string ReportSvg(const BenchReport& report);

}  // namespace warpline
