#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/kv_layout.h"
#include "kernels/cuda/rope_table.h"

namespace warpline::cuda {
namespace {

constexpr int kMaxPairs = kMaxHeadDim / 2;

// The frequencies travel as a parameter, so a recorded launch needs no memory that outlives it.
struct FillArgs {
  const int32_t* positions = nullptr;  // [rows]
  float2* table = nullptr;             // [rows, pairs]
  int32_t pairs = 0;
  double magnitude = 1;
  double half_turns[kMaxPairs] = {};  // inverse frequencies / pi
};

// One block a row, one thread a pair.
__global__ void FillRopeRow(const __grid_constant__ FillArgs args) {
  const int row = blockIdx.x;
  const int pair = threadIdx.x;
  if (pair >= args.pairs) return;
  double sine, cosine;
  // In half turns, since reducing large angles in radians needs a table in local memory.
  sincospi(args.positions[row] * args.half_turns[pair], &sine, &cosine);
  args.table[static_cast<int64_t>(row) * args.pairs + pair] = make_float2(
      static_cast<float>(cosine * args.magnitude), static_cast<float>(sine * args.magnitude));
}

}  // namespace

void RopeTables::BeginStep() {
  for (Table& table : tables_) table.valid = false;
}

absl::StatusOr<const float2*> RopeTables::Get(const RopeArgs& rope, const StepView& step,
                                              cudaStream_t stream) {
  const size_t pairs = rope.inverse_frequency.size();
  if (pairs > kMaxPairs || step.row_count > max_rows_) {
    return absl::InvalidArgumentError(absl::StrCat("rotating ", step.row_count, " rows (at most ",
                                                   max_rows_, ") of ", pairs, " pairs (at most ",
                                                   kMaxPairs, ")"));
  }
  const auto same = [&rope](const Table& table) {
    return table.magnitude == rope.magnitude &&
           std::equal(table.inverse_frequency.begin(), table.inverse_frequency.end(),
                      rope.inverse_frequency.begin(), rope.inverse_frequency.end());
  };
  auto found = std::find_if(tables_.begin(), tables_.end(), same);
  if (found == tables_.end()) {
    Table table;
    table.magnitude = rope.magnitude;
    table.inverse_frequency.assign(rope.inverse_frequency.begin(), rope.inverse_frequency.end());
    WL_ASSIGN_OR_RETURN(table.values, DeviceBuffer::Create(max_rows_ * static_cast<int64_t>(pairs) *
                                                           static_cast<int64_t>(sizeof(float2))));
    tables_.push_back(std::move(table));
    found = tables_.end() - 1;
  }
  float2* const values = found->values.as<float2>();
  if (found->valid || step.row_count == 0 || pairs == 0) return values;
  FillArgs args;
  args.positions = step.positions;
  args.table = values;
  args.pairs = static_cast<int32_t>(pairs);
  args.magnitude = rope.magnitude;
  std::transform(rope.inverse_frequency.begin(), rope.inverse_frequency.end(), args.half_turns,
                 [](double frequency) { return frequency / M_PI; });
  FillRopeRow<<<step.row_count, kMaxPairs, 0, stream>>>(args);
  WL_RETURN_IF_ERROR(LaunchStatus("computing rotations"));
  found->valid = true;
  return values;
}

}  // namespace warpline::cuda
