#include "worker/ple/mode_probe.h"

#include <algorithm>

#include "base/clock.h"
#include "worker/ple/mode_policy.h"

namespace warpline {

ModeProbe::ModeProbe(const NgramTable& table,
                     absl::Span<const std::unique_ptr<RandomReader>> readers)
    : table_(table),
      readers_(readers),
      random_(std::random_device()()),
      bytes_(kReadRows * table.row_bytes()) {}

std::vector<double> ModeProbe::Measure() {
  std::vector<std::vector<double>> turns(readers_.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < readers_.size(); ++i) turns[i].push_back(Turn(*readers_[i]));
  }
  std::vector<double> rates;
  for (const std::vector<double>& rates_of_turns : turns) rates.push_back(Median(rates_of_turns));
  return rates;
}

double ModeProbe::Turn(RandomReader& reader) {
  std::uniform_int_distribution<int64_t> any_row(0, table_.row_count - 1);
  const SteadyTime begin = Now();
  int64_t done = 0;
  while (done < kTurnRows && SecondsSince(begin) < kTurnSeconds) {
    std::vector<ReadPiece> pieces(kReadRows);
    for (ReadPiece& piece : pieces) {
      piece.offset = table_.offset + any_row(random_) * table_.row_bytes();
    }
    std::sort(pieces.begin(), pieces.end(),
              [](const ReadPiece& a, const ReadPiece& b) { return a.offset < b.offset; });
    for (int i = 0; i < kReadRows; ++i) pieces[i].to = bytes_.data() + i * table_.row_bytes();
    if (!reader.Read(pieces).ok()) return 0;
    done += kReadRows;
  }
  return static_cast<double>(done) / std::max(SecondsSince(begin), 1e-9);
}

}  // namespace warpline
