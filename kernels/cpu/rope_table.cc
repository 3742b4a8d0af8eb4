#include "kernels/cpu/rope_table.h"

#include <algorithm>
#include <cmath>

#include "base/status.h"

namespace warpline {

void FillRopeRow(const RopeArgs& rope, int64_t position, float* row) {
  const int64_t pairs = static_cast<int64_t>(rope.inverse_frequency.size());
  const int64_t first_step = rope.interleaved ? 2 : 1;
  const int64_t partner = rope.interleaved ? 1 : pairs;
  float* const sines = row + 2 * pairs;
  for (int64_t i = 0; i < pairs; ++i) {
    const double angle = static_cast<double>(position) * rope.inverse_frequency[i];
    const float c = static_cast<float>(std::cos(angle) * rope.magnitude);
    const float s = static_cast<float>(std::sin(angle) * rope.magnitude);
    const int64_t a = i * first_step;
    const int64_t b = a + partner;
    row[a] = row[b] = c;
    sines[a] = -s;
    sines[b] = s;
  }
}

void RopeTables::BeginStep() {
  for (Table& table : tables_) table.valid = false;
}

absl::StatusOr<const float*> RopeTables::Get(const RopeArgs& rope,
                                             absl::Span<const int64_t> positions,
                                             ThreadPool& pool) {
  const auto same = [&rope](const Table& table) {
    return table.interleaved == rope.interleaved && table.magnitude == rope.magnitude &&
           std::equal(table.inverse_frequency.begin(), table.inverse_frequency.end(),
                      rope.inverse_frequency.begin(), rope.inverse_frequency.end());
  };
  auto found = std::find_if(tables_.begin(), tables_.end(), same);
  if (found == tables_.end()) {
    tables_.push_back(
        {.interleaved = rope.interleaved,
         .magnitude = rope.magnitude,
         .inverse_frequency = {rope.inverse_frequency.begin(), rope.inverse_frequency.end()}});
    found = tables_.end() - 1;
  }
  const int64_t pairs = static_cast<int64_t>(rope.inverse_frequency.size());
  const int64_t width = 4 * pairs;
  WL_ASSIGN_OR_RETURN(float* values,
                      found->values.Floats(static_cast<int64_t>(positions.size()) * width));
  if (found->valid) return values;
  pool.Run(static_cast<int64_t>(positions.size()),
           [&](int64_t row, int) { FillRopeRow(rope, positions[row], values + row * width); });
  found->valid = true;
  return values;
}

}  // namespace warpline
