// Measures how fast each way of reading the n-gram table is, now.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "worker/ple/ngram_reader.h"
#include "worker/ple/random_reader.h"

namespace warpline {

// Reads random rows in short turns, one way after the other, so that a moment in which the disk is
// busy with something else meets all of them. Used by one thread at a time.
class ModeProbe {
 public:
  // Both must outlive it. Each reader belongs to the probe alone.
  ModeProbe(const NgramTable& table, absl::Span<const std::unique_ptr<RandomReader>> readers);

  // Rows per second of each reader, the median of its turns; 0 when a turn failed. Takes at most
  // about kRounds * kTurnSeconds for each reader, while no single read lasts longer than that.
  std::vector<double> Measure();

  static constexpr int kRounds = 5;
  static constexpr double kTurnSeconds = 0.02;

 private:
  // Rows per second of one turn.
  double Turn(RandomReader& reader);

  static constexpr int kReadRows = 256;   // of one read
  static constexpr int kTurnRows = 1024;  // of one turn

  const NgramTable& table_;
  const absl::Span<const std::unique_ptr<RandomReader>> readers_;
  std::mt19937_64
      random_;  // Seeded anew by each process: old rows would still be in the page cache.
  std::vector<uint8_t> bytes_;
};

}  // namespace warpline
