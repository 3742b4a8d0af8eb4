#include "kernels/cuda/attention_bench.h"

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "kernels/cuda/attention_rig.h"
#include "kernels/cuda/bench_rig.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/random_blocks.h"

namespace warpline::cuda {
namespace {

constexpr int kChunk = 2048;       // rows of a prompt step
constexpr int kMostPages = 20480;  // of the cache
constexpr int kMostLayers = 48;    // of a graph of decode steps; each reads other pages

// Random blocks in the format of the cache, one after another.
std::vector<uint8_t> RandomCacheBlocks(const KvLayout& layout, int count) {
  RandomBits random(11);
  std::vector<uint8_t> bytes(static_cast<size_t>(count) * static_cast<size_t>(layout.block_bytes));
  const auto put_half = [&bytes](size_t at, float value) {
    const uint32_t half = HalfFromFloat(value);
    bytes[at] = static_cast<uint8_t>(half);
    bytes[at + 1] = static_cast<uint8_t>(half >> 8);
  };
  for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(layout.block_bytes)) {
    const size_t scales = static_cast<size_t>(layout.scale_offset);
    const size_t end = static_cast<size_t>(layout.block_bytes);
    for (size_t i = 0; i < scales; i += static_cast<size_t>(layout.value_bytes)) {
      if (layout.type == KvType::kF16) {
        put_half(block + i, random.Normal());
      } else {
        bytes[block + i] = static_cast<uint8_t>(static_cast<int8_t>(36 * random.Normal()));
      }
    }
    for (size_t i = scales; i + 1 < end; i += 2) put_half(block + i, 1.0f / 36);
  }
  return bytes;
}

class Bench {
 public:
  Bench(PagedAttention& attention, const AttentionShape& shape)
      : attention_(attention), shape_(shape) {}

  absl::Status Run() {
    WL_ASSIGN_OR_RETURN(stream_, Stream::Create());
    WL_ASSIGN_OR_RETURN(CudaKvCache cache, CudaKvCache::Create({.type = shape_.kv_type,
                                                                .n_head_kv = shape_.n_head_kv,
                                                                .head_dim = shape_.head_dim,
                                                                .page_count = kMostPages}));
    view_ = cache.view();
    WL_RETURN_IF_ERROR(FillCache());
    RandomBits random(7);
    std::vector<float> q(size_t{kChunk} * Width());
    for (float& value : q) value = 1.5f * random.Normal();
    WL_ASSIGN_OR_RETURN(q_, CopyToDevice(q));
    WL_ASSIGN_OR_RETURN(out_, DeviceBuffer::Create(q_.bytes()));
    std::vector<int32_t> pages(kMostPages);
    std::iota(pages.begin(), pages.end(), 0);
    for (size_t i = pages.size() - 1; i > 0; --i) {
      std::swap(pages[i], pages[random.Below(static_cast<uint32_t>(i + 1))]);
    }
    WL_ASSIGN_OR_RETURN(pages_, CopyToDevice(pages));
    WL_RETURN_IF_ERROR(attention_.Reserve({.kv_type = shape_.kv_type,
                                           .n_head = shape_.n_head,
                                           .n_head_kv = shape_.n_head_kv,
                                           .head_dim = shape_.head_dim,
                                           .max_decode_rows = 32,
                                           .max_context = 131072}));
    for (const int context : {4096, 26700}) WL_RETURN_IF_ERROR(RunPrompt(context));
    for (const int context : {512, 4096, 32768}) {
      for (const int batch : {1, 8, 32}) WL_RETURN_IF_ERROR(RunDecode(context, batch));
    }
    return absl::OkStatus();
  }

 private:
  size_t Width() const { return static_cast<size_t>(shape_.n_head * shape_.head_dim); }
  const char* Type() const { return shape_.kv_type == KvType::kF16 ? "f16" : "int8"; }

  absl::Status FillCache() const {
    const std::vector<uint8_t> blocks = RandomCacheBlocks(view_.layout, 128);
    WL_ASSIGN_OR_RETURN(const int64_t bytes, CudaKvCache::Bytes({.type = shape_.kv_type,
                                                                 .n_head_kv = shape_.n_head_kv,
                                                                 .head_dim = shape_.head_dim,
                                                                 .page_count = kMostPages}));
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(blocks.size())) {
      const size_t count = std::min(blocks.size(), static_cast<size_t>(bytes - at));
      WL_RETURN_IF_ERROR(CudaStatus(
          cudaMemcpy(view_.data + at, blocks.data(), count, cudaMemcpyHostToDevice), "filling"));
    }
    return absl::OkStatus();
  }

  AttentionJob JobOf(const StepView& step) const {
    AttentionJob job;
    job.step = step;
    job.q = q_.as<float>();
    job.out = out_.as<float>();
    job.q_stride = job.out_stride = static_cast<int64_t>(Width());
    job.n_head = shape_.n_head;
    job.scale = 0.1f;
    job.cache = view_;
    return job;
  }

  // The last rows of a prompt.
  absl::Status RunPrompt(int context) {
    const std::vector<StepSequenceView> sequences = {
        {.row_count = kChunk, .first_position = context - kChunk, .first_page = 0}};
    std::vector<int32_t> positions(kChunk);
    std::iota(positions.begin(), positions.end(), context - kChunk);
    WL_ASSIGN_OR_RETURN(const DeviceBuffer sequences_on_device, CopyToDevice(sequences));
    WL_ASSIGN_OR_RETURN(const DeviceBuffer positions_on_device, CopyToDevice(positions));
    WL_ASSIGN_OR_RETURN(const DeviceBuffer sequence_of_row,
                        CopyToDevice(std::vector<int32_t>(kChunk, 0)));
    StepView step;
    step.row_count = kChunk;
    step.sequence_count = 1;
    step.max_context = context;
    step.positions = positions_on_device.as<int32_t>();
    step.sequence_of_row = sequence_of_row.as<int32_t>();
    step.sequences = sequences_on_device.as<StepSequenceView>();
    step.pages = pages_.as<int32_t>();
    step.on_host = sequences;
    step.positions_on_host = positions;
    const AttentionJob job = JobOf(step);
    WL_RETURN_IF_ERROR(RunStore(step));
    WL_ASSIGN_OR_RETURN(const double us, TimeUs(stream_.get(), 7, [&] {
                          return attention_.Run(job, stream_.get());
                        }));
    const double seen = double{kChunk} * (context - kChunk) + 0.5 * kChunk * (kChunk + 1.0);
    const double flops = 4.0 * static_cast<double>(Width()) * seen;
    std::printf("%s %d/%d x %d prompt, context %6d, chunk %d: %9.1f us %6.1f TFLOP/s\n", Type(),
                shape_.n_head, shape_.n_head_kv, shape_.head_dim, context, kChunk, us,
                flops / us * 1e-6);
    std::fflush(stdout);
    return absl::OkStatus();
  }

  // Norm and rotation of q and k, and keys and values into their pages. `step` is one sequence.
  absl::Status RunStore(const StepView& step) {
    std::vector<double> inverse_frequency(static_cast<size_t>(shape_.head_dim) / 2, 0.1);
    RopeArgs rope;
    rope.inverse_frequency = inverse_frequency;
    RopeTables tables(step.row_count);
    WL_ASSIGN_OR_RETURN(const DeviceBuffer gamma,
                        CopyToDevice(std::vector<float>(inverse_frequency.size() * 2, 1.0f)));
    const int64_t kv_width = int64_t{shape_.n_head_kv} * shape_.head_dim;
    WL_ASSIGN_OR_RETURN(const DeviceBuffer kv, DeviceBuffer::Create(step.row_count * kv_width * 4));
    QkvRopeArgs args;
    args.step = step;
    args.q = out_.as<float>();
    args.q_stride = static_cast<int64_t>(Width());
    args.k = args.v = kv.as<float>();
    args.k_stride = args.v_stride = kv_width;
    args.n_head = shape_.n_head;
    args.q_gamma = args.k_gamma = gamma.as<float>();
    args.eps = 1e-6f;
    args.pairs = shape_.head_dim / 2;
    args.cache = view_;
    WL_ASSIGN_OR_RETURN(args.rotation, tables.Get(rope, step, stream_.get()));
    WL_ASSIGN_OR_RETURN(const double us, TimeUs(stream_.get(), 7,
                                                [&] { return QkvRopeStore(args, stream_.get()); }));
    const double bytes = step.row_count * (8.0 * static_cast<double>(Width()) +
                                           kv_width * (8.0 + 2.0 * view_.layout.value_bytes));
    std::printf("%s %d/%d x %d store,  context %6d, chunk %d: %9.1f us %6.2f TB/s\n", Type(),
                shape_.n_head, shape_.n_head_kv, shape_.head_dim, step.max_context, kChunk, us,
                bytes / us * 1e-6);
    return absl::OkStatus();
  }

  // Rows of as many sequences; several layers in one graph, so that nothing stays in the L2 cache.
  absl::Status RunDecode(int context, int batch) {
    const int pages = context / kPageTokens;
    const int layers = std::clamp(kMostPages / (batch * pages), 1, kMostLayers);
    std::vector<StepSequenceView> sequences;
    for (int i = 0; i < layers * batch; ++i) {
      sequences.push_back({.first_row = i % batch,
                           .row_count = 1,
                           .first_position = context - 1,
                           .first_page = i * pages,
                           .page_count = pages});
    }
    const std::vector<int32_t> positions(static_cast<size_t>(batch), context - 1);
    std::vector<int32_t> sequence_of_row(static_cast<size_t>(batch));
    std::iota(sequence_of_row.begin(), sequence_of_row.end(), 0);
    WL_ASSIGN_OR_RETURN(const DeviceBuffer sequences_on_device, CopyToDevice(sequences));
    WL_ASSIGN_OR_RETURN(const DeviceBuffer positions_on_device, CopyToDevice(positions));
    WL_ASSIGN_OR_RETURN(const DeviceBuffer rows_on_device, CopyToDevice(sequence_of_row));
    StepView step;
    step.is_decode = true;
    step.row_count = batch;
    step.sequence_count = batch;
    step.max_context = context;
    step.positions = positions_on_device.as<int32_t>();
    step.sequence_of_row = rows_on_device.as<int32_t>();
    step.pages = pages_.as<int32_t>();
    WL_ASSIGN_OR_RETURN(const Graph graph, Graph::Capture(stream_.get(), [&]() -> absl::Status {
                          for (int layer = 0; layer < layers; ++layer) {
                            step.sequences =
                                sequences_on_device.as<StepSequenceView>() + layer * batch;
                            WL_RETURN_IF_ERROR(attention_.Run(JobOf(step), stream_.get()));
                          }
                          return absl::OkStatus();
                        }));
    WL_ASSIGN_OR_RETURN(const double total_us,
                        TimeUs(stream_.get(), 9, [&] { return graph.Launch(stream_.get()); }));
    const double us = total_us / layers;
    const double bytes = 2.0 * batch * pages * shape_.n_head_kv * view_.layout.block_bytes;
    std::printf("%s %d/%d x %d decode, context %6d, batch %2d: %8.2f us %5.2f TB/s (%d layers)\n",
                Type(), shape_.n_head, shape_.n_head_kv, shape_.head_dim, context, batch, us,
                bytes / us * 1e-6, layers);
    std::fflush(stdout);
    return absl::OkStatus();
  }

  PagedAttention& attention_;
  AttentionShape shape_;
  Stream stream_;
  KvView view_;
  DeviceBuffer q_, out_, pages_;
};

}  // namespace

absl::Status BenchAttention(PagedAttention& attention) {
  constexpr AttentionShape kShapes[] = {
      {.n_head = 32, .n_head_kv = 4, .head_dim = 128},
      {.kv_type = KvType::kQ8_0, .n_head = 32, .n_head_kv = 4, .head_dim = 128},
      {.n_head = 24, .n_head_kv = 2, .head_dim = 256},
      {.n_head = 32, .n_head_kv = 8, .head_dim = 64},
  };
  for (const AttentionShape& shape : kShapes) {
    if (attention.PathOf(true, MakeKvLayout(shape.kv_type, shape.head_dim), shape.n_head,
                         shape.n_head_kv) == AttentionPath::kGeneric) {
      continue;  // slow by design
    }
    WL_RETURN_IF_ERROR(Bench(attention, shape).Run());
  }
  return absl::OkStatus();
}

}  // namespace warpline::cuda
