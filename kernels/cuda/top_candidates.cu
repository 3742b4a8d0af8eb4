#include "kernels/cuda/top_candidates.h"

#include <cuda_runtime.h>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace warpline::cuda {
namespace {

constexpr int kScanThreads = 32 * kScanWarps;
constexpr int kChooseThreads = 1024;
constexpr int kCapacity = 4096;    // keys that are sorted together
constexpr int kMostGroups = 1024;  // unless the groups are as large as they get
constexpr uint64_t kAboveForbidden = uint64_t{0x00800000} << 32;  // the least key of a finite logit

// Larger for what comes first: by logit, then by the lower id. 0 is below all. No NaN gets here
// that matters: such a row has no result.
__device__ __forceinline__ uint64_t KeyOf(float logit, int64_t token) {
  const uint32_t bits = __float_as_uint(logit == 0 ? 0.0f : logit);  // -0 ties with 0
  const uint32_t size = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(size) << 32 | (0xFFFFFFFFu - static_cast<uint32_t>(token));
}
__device__ __forceinline__ float LogitOf(uint64_t key) {
  const uint32_t size = static_cast<uint32_t>(key >> 32);
  return __uint_as_float((size & 0x80000000u) != 0 ? size & 0x7FFFFFFFu : ~size);
}
__device__ __forceinline__ int32_t TokenOf(uint64_t key) {
  return static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(key));
}

__device__ __forceinline__ uint64_t LargerOf(uint64_t a, uint64_t b) { return a > b ? a : b; }

__device__ __forceinline__ double WarpTotal(double value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(~0u, value, distance);
  }
  return value;
}

__device__ __forceinline__ double WeightOf(float logit, float largest, double temperature) {
  return exp((static_cast<double>(logit) - largest) / temperature);
}

// Edits those of a chunk's logits that have edits, here and in the row. One thread does all edits
// of a token, in their order.
__device__ void EditChunk(const LogitEdit* edits, const CandidateRow& row, int64_t begin, int width,
                          float* logits, float* chunk) {
  for (int i = static_cast<int>(threadIdx.x); i < row.edit_count; i += kScanThreads) {
    const int32_t token = edits[i].token_id;
    const bool is_first = i == 0 || edits[i - 1].token_id != token;
    if (!is_first || token < begin || token >= begin + width) continue;
    float logit = chunk[token - begin];
    for (int j = i; j < row.edit_count && edits[j].token_id == token; ++j) {
      logit = EditedLogit(logit, edits[j], row.penalties);
    }
    chunk[token - begin] = logit;
    logits[token] = logit;
  }
}

// A block for a chunk (x) of a row (y). Lane l of a warp holds values l, l + 32, ... of the warp's.
__global__ void __launch_bounds__(kScanThreads) Scan(const __grid_constant__ TopCandidatesJob job) {
  __shared__ float chunk[kChunk];
  __shared__ uint64_t warp_largest[kScanWarps];
  __shared__ double warp_sums[kScanWarps];
  const CandidateRow& row = job.rows[blockIdx.y];
  float* const logits = job.logits.data + blockIdx.y * job.logits.stride;
  const int64_t begin = int64_t{blockIdx.x} * kChunk;
  const int64_t left = job.logits.width - begin;
  const int width = left < kChunk ? static_cast<int>(left) : kChunk;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = warp * kScanValues + lane;

  // Values, before and after the edits.
  float values[kScanPerLane];
  bool finite = true;
#pragma unroll
  for (int i = 0; i < kScanPerLane; ++i) {
    const int at = first + 32 * i;
    values[i] = at < width ? logits[begin + at] : 0;
    finite = finite && (__float_as_uint(values[i]) & 0x7F800000u) != 0x7F800000u;
  }
  if (row.edit_count > 0) {
#pragma unroll
    for (int i = 0; i < kScanPerLane; ++i) chunk[first + 32 * i] = values[i];
    __syncthreads();
    EditChunk(job.edits + row.first_edit, row, begin, width, logits, chunk);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kScanPerLane; ++i) values[i] = chunk[first + 32 * i];
  }

  // The largest of each group, of the warp, of the block.
  uint64_t largest = 0;
#pragma unroll
  for (int i = 0; i < kScanPerLane; ++i) {
    const int at = first + 32 * i;
    if (at < width) largest = LargerOf(largest, KeyOf(values[i], begin + at));
  }
  const ScanShape& shape = job.shape;
  for (int distance = 1; distance <= 32; distance *= 2) {
    if (distance == shape.group_lanes && row.most > 1 && lane % distance == 0) {
      const int64_t span = int64_t{blockIdx.x} * kScanWarps + warp;
      const int64_t group = span * (32 / distance) + lane / distance;
      job.groups[int64_t{blockIdx.y} * shape.group_count + group] = largest;
    }
    if (distance < 32) largest = LargerOf(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  if (lane == 0) warp_largest[warp] = largest;
  const int all_finite = __syncthreads_and(finite ? 1 : 0);
#pragma unroll
  for (int i = 0; i < kScanWarps; ++i) largest = LargerOf(largest, warp_largest[i]);

  // The weights.
  double sum = 0;
  if (row.temperature > 0 && largest >= kAboveForbidden) {
    const float peak = LogitOf(largest);
#pragma unroll
    for (int i = 0; i < kScanPerLane; ++i) {
      if (first + 32 * i < width) sum += WeightOf(values[i], peak, row.temperature);
    }
  }
  sum = WarpTotal(sum);
  if (lane == 0) warp_sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  sum = 0;
  for (int i = 0; i < kScanWarps; ++i) sum += warp_sums[i];
  job.chunks[int64_t{blockIdx.y} * shape.chunk_count + blockIdx.x] = {
      .largest = largest, .weight_sum = sum, .all_finite = all_finite};
}

// One warp puts the chunks of a row together. Returns how many candidates are to be found still.
__device__ int Summarise(const TopCandidatesJob& job, int row_index, int lane) {
  const CandidateRow& row = job.rows[row_index];
  const int count = job.shape.chunk_count;
  const ChunkSummary* const chunks = job.chunks + int64_t{row_index} * count;
  uint64_t largest = 0;
  bool finite = true;
  for (int i = lane; i < count; i += 32) {
    largest = LargerOf(largest, chunks[i].largest);
    finite = finite && chunks[i].all_finite != 0;
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    largest = LargerOf(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  finite = __all_sync(~0u, finite) != 0;
  const bool is_allowed = largest >= kAboveForbidden;
  const float peak = LogitOf(largest);
  double sum = 0;
  if (row.temperature > 0 && is_allowed) {
    for (int i = lane; i < count; i += 32) {
      if (chunks[i].largest < kAboveForbidden) continue;
      sum += chunks[i].weight_sum * WeightOf(LogitOf(chunks[i].largest), peak, row.temperature);
    }
  }
  sum = WarpTotal(sum);
  if (lane == 0) {
    job.answers[row_index] = {
        .weight_sum = sum, .largest = peak, .all_finite = finite, .count = is_allowed ? 1 : 0};
    job.candidates[int64_t{row_index} * job.candidate_stride] = {.logit = peak,
                                                                 .token_id = TokenOf(largest)};
  }
  return finite && is_allowed && row.most > 1 ? row.most : 0;
}

// All threads of the block; `size` is a power of two. Bitonic.
__device__ void SortDescending(uint64_t* keys, int size) {
  __syncthreads();
  for (int width = 2; width <= size; width *= 2) {
    for (int distance = width / 2; distance > 0; distance /= 2) {
      for (int pair = static_cast<int>(threadIdx.x); pair < size / 2; pair += kChooseThreads) {
        const int low = 2 * pair - (pair & (distance - 1));
        const uint64_t a = keys[low];
        const uint64_t b = keys[low + distance];
        if ((a < b) == ((low & width) == 0)) {
          keys[low] = b;
          keys[low + distance] = a;
        }
      }
      __syncthreads();
    }
  }
}

// Sorts the first `count` keys; those behind them, up to a power of two, become 0.
__device__ void SortFirst(uint64_t* keys, int count) {
  int size = 1;
  while (size < count) size *= 2;
  for (int i = count + static_cast<int>(threadIdx.x); i < size; i += kChooseThreads) keys[i] = 0;
  SortDescending(keys, size);
}

// A key that at least `wanted` of the row's keys reach, unless forbidden tokens are among them.
__device__ uint64_t FloorOf(const uint64_t* groups, int group_count, int wanted, uint64_t* keys) {
  if (group_count > kCapacity || group_count < wanted) return kAboveForbidden;
  for (int i = static_cast<int>(threadIdx.x); i < group_count; i += kChooseThreads) {
    keys[i] = groups[i];
  }
  SortFirst(keys, group_count);
  const uint64_t floor = LargerOf(keys[wanted - 1], kAboveForbidden);
  __syncthreads();  // The keys are overwritten now.
  return floor;
}

// Collects the keys that reach `floor`; the result may be more than kCapacity, which then are not
// all there.
__device__ int Collect(const TopCandidatesJob& job, int row, uint64_t floor, uint64_t* keys,
                       int* count) {
  const float* const logits = job.logits.data + row * job.logits.stride;
  const uint64_t* const groups = job.groups + int64_t{row} * job.shape.group_count;
  const int lanes = job.shape.group_lanes;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (threadIdx.x == 0) *count = 0;
  __syncthreads();
  for (int span = static_cast<int>(threadIdx.x) / 32; span < job.shape.chunk_count * kScanWarps;
       span += kChooseThreads / 32) {
    if (groups[span * (32 / lanes) + lane / lanes] < floor) continue;
    const int64_t first = int64_t{span} * kScanValues + lane;
    float values[kScanPerLane];
#pragma unroll
    for (int i = 0; i < kScanPerLane; ++i) {
      const int64_t at = first + 32 * i;
      values[i] = at < job.logits.width ? logits[at] : -INFINITY;
    }
#pragma unroll
    for (int i = 0; i < kScanPerLane; ++i) {
      const uint64_t key = KeyOf(values[i], first + 32 * i);
      if (key < floor) continue;
      const int slot = atomicAdd(count, 1);
      if (slot < kCapacity) keys[slot] = key;
    }
  }
  __syncthreads();
  return *count;
}

// The same for any number of keys: where they become many, the floor rises to the last one that is
// wanted.
__device__ int CollectThinning(const TopCandidatesJob& job, int row, int wanted, uint64_t floor,
                               uint64_t* keys, int* count) {
  constexpr int kBatch = kCapacity / 2;
  const float* const logits = job.logits.data + row * job.logits.stride;
  __syncthreads();  // The count of the first attempt has been read.
  if (threadIdx.x == 0) *count = 0;
  for (int64_t begin = 0; begin < job.logits.width; begin += kBatch) {
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kBatch; i += kChooseThreads) {
      const int64_t at = begin + i;
      if (at >= job.logits.width) continue;
      const uint64_t key = KeyOf(logits[at], at);
      if (key >= floor) keys[atomicAdd(count, 1)] = key;
    }
    __syncthreads();
    const int collected = *count;
    if (collected <= kCapacity - kBatch) continue;
    SortFirst(keys, collected);
    floor = keys[wanted - 1];
    if (threadIdx.x == 0) *count = wanted;
  }
  __syncthreads();
  return *count;
}

// A block for each row. One on a multiprocessor has the registers that two would have to spill.
__global__ void __launch_bounds__(kChooseThreads, 1)
    Choose(const __grid_constant__ TopCandidatesJob job) {
  __shared__ uint64_t keys[kCapacity];
  __shared__ int shared_count;
  __shared__ int shared_wanted;
  const int row = static_cast<int>(blockIdx.x);
  if (threadIdx.x < 32) {
    const int wanted = Summarise(job, row, static_cast<int>(threadIdx.x));
    if (threadIdx.x == 0) shared_wanted = wanted;
  }
  __syncthreads();
  const int wanted = shared_wanted;
  if (wanted == 0) return;
  const uint64_t* const groups = job.groups + int64_t{row} * job.shape.group_count;
  const uint64_t floor = FloorOf(groups, job.shape.group_count, wanted, keys);
  int count = Collect(job, row, floor, keys, &shared_count);
  if (count > kCapacity) count = CollectThinning(job, row, wanted, floor, keys, &shared_count);
  SortFirst(keys, count);
  const int found = count < wanted ? count : wanted;
  for (int i = static_cast<int>(threadIdx.x); i < found; i += kChooseThreads) {
    job.candidates[int64_t{row} * job.candidate_stride + i] = {.logit = LogitOf(keys[i]),
                                                               .token_id = TokenOf(keys[i])};
  }
  if (threadIdx.x == 0) job.answers[row].count = found;
}

}  // namespace

ScanShape ShapeOfScan(int64_t n_vocab) {
  ScanShape shape{.chunk_count = static_cast<int32_t>((n_vocab + kChunk - 1) / kChunk)};
  const auto groups = [&] { return shape.chunk_count * kScanWarps * (32 / shape.group_lanes); };
  while (shape.group_lanes < 32 && groups() > kMostGroups) shape.group_lanes *= 2;
  shape.group_count = groups();
  return shape;
}

absl::Status TopCandidates(const TopCandidatesJob& job, cudaStream_t stream) {
  const auto rows = static_cast<unsigned>(job.logits.row_count);
  if (rows == 0) return absl::OkStatus();
  if (rows > kMostCandidateRows) {
    return absl::InvalidArgumentError(absl::StrCat("candidates of ", rows, " rows at once"));
  }
  const dim3 grid(static_cast<unsigned>(job.shape.chunk_count), rows);
  Scan<<<grid, kScanThreads, 0, stream>>>(job);
  WL_RETURN_IF_ERROR(LaunchStatus("scanning logits"));
  Choose<<<rows, kChooseThreads, 0, stream>>>(job);
  return LaunchStatus("choosing candidates");
}

}  // namespace warpline::cuda
