#include "kernels/cuda/attention_rig.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "kernels/cuda/cuda_status.h"
#include "kernels/cuda/half_math.h"
#include "kernels/cuda/random_blocks.h"

namespace warpline::cuda {
namespace {

constexpr int kGuard = 4;  // columns behind the outputs of a row
constexpr float kGuardValue = 12345;
constexpr float kEps = 1e-6f;

std::vector<float> RandomGamma(int width, uint64_t seed) {
  RandomBits random(seed);
  std::vector<float> gamma(static_cast<size_t>(width));
  for (float& value : gamma) value = 1 + 0.2f * random.Normal();
  return gamma;
}

}  // namespace

absl::StatusOr<AttentionRig> AttentionRig::Create(const AttentionShape& shape,
                                                  const std::vector<int>& contexts) {
  int page_count = 1;  // one that nobody uses
  int most_rows = 0;
  for (const int context : contexts) {
    page_count += context / kPageTokens + 1;
    most_rows += context;
  }
  WL_ASSIGN_OR_RETURN(CudaKvCache cache, CudaKvCache::Create({.type = shape.kv_type,
                                                              .n_head_kv = shape.n_head_kv,
                                                              .head_dim = shape.head_dim,
                                                              .page_count = page_count}));
  WL_ASSIGN_OR_RETURN(const int64_t bytes, CudaKvCache::Bytes(cache.args()));
  WL_RETURN_IF_ERROR(
      CudaStatus(cudaMemset(cache.view().data, 0xFF, static_cast<size_t>(bytes)), "spoiling"));
  AttentionRig rig(shape, std::move(cache), RopeTables(most_rows));
  WL_ASSIGN_OR_RETURN(rig.stream_, Stream::Create());

  std::vector<int32_t> ids(static_cast<size_t>(page_count));
  std::iota(ids.begin(), ids.end(), 0);
  RandomBits random(5);
  for (size_t i = ids.size() - 1; i > 0; --i) {
    std::swap(ids[i], ids[random.Below(static_cast<uint32_t>(i + 1))]);
  }
  for (const int context : contexts) {
    const auto end = ids.end() - (context / kPageTokens + 1);
    rig.pages_.emplace_back(end, ids.end());
    ids.erase(end, ids.end());
  }
  if (shape.has_norm) {
    rig.q_gamma_ = RandomGamma(shape.head_dim, 1);
    rig.k_gamma_ = RandomGamma(shape.head_dim, 2);
    WL_ASSIGN_OR_RETURN(rig.q_gamma_on_device_, CopyToDevice(rig.q_gamma_));
    WL_ASSIGN_OR_RETURN(rig.k_gamma_on_device_, CopyToDevice(rig.k_gamma_));
  }
  for (int i = 0; i < shape.pairs; ++i) {
    rig.inverse_frequency_.push_back(std::pow(1e4, -static_cast<double>(i) / shape.pairs));
  }
  return rig;
}

std::vector<float> AttentionRig::RandomRow(int kind, int sequence, int position, int width) const {
  RandomBits random((static_cast<uint64_t>(kind) << 48) + (static_cast<uint64_t>(sequence) << 32) +
                    static_cast<uint64_t>(position));
  random.Next();
  std::vector<float> row(static_cast<size_t>(width));
  for (float& value : row) value = 1.5f * random.Normal();
  return row;
}

std::vector<float> AttentionRig::Queries(int sequence, int position) const {
  return RandomRow(1, sequence, position, shape_.n_head * shape_.head_dim);
}
std::vector<float> AttentionRig::Keys(int sequence, int position) const {
  return RandomRow(2, sequence, position, shape_.n_head_kv * shape_.head_dim);
}
std::vector<float> AttentionRig::Values(int sequence, int position) const {
  return RandomRow(3, sequence, position, shape_.n_head_kv * shape_.head_dim);
}
std::vector<float> AttentionRig::Gates(int sequence, int position) const {
  return RandomRow(4, sequence, position, shape_.n_head * shape_.head_dim);
}

std::vector<double> AttentionRig::Turned(std::vector<float> row, const std::vector<float>& gamma,
                                         int position) const {
  std::vector<double> turned(row.begin(), row.end());
  const size_t dim = static_cast<size_t>(shape_.head_dim);
  for (size_t head = 0; head < turned.size(); head += dim) {
    double* const values = &turned[head];
    if (shape_.has_norm) {
      double squares = 0;
      for (size_t d = 0; d < dim; ++d) squares += values[d] * values[d];
      const double factor = 1 / std::sqrt(squares / static_cast<double>(dim) + kEps);
      for (size_t d = 0; d < dim; ++d) values[d] *= factor * gamma[d];
    }
    for (int pair = 0; pair < shape_.pairs; ++pair) {
      double& a = values[shape_.is_interleaved ? 2 * pair : pair];
      double& b = values[shape_.is_interleaved ? 2 * pair + 1 : pair + shape_.pairs];
      const double angle = position * inverse_frequency_[static_cast<size_t>(pair)];
      const double old_a = a;
      a = old_a * std::cos(angle) - b * std::sin(angle);
      b = b * std::cos(angle) + old_a * std::sin(angle);
    }
  }
  return turned;
}

float AttentionRig::scale() const { return 1 / std::sqrt(static_cast<float>(shape_.head_dim)); }

absl::Status AttentionRig::PlaceStep(const std::vector<SequenceRows>& rows, bool is_decode) {
  sequences_.clear();
  positions_.clear();
  std::vector<int32_t> sequence_of_row, pages;
  step_ = StepView{};
  step_.is_decode = is_decode;
  for (const SequenceRows& part : rows) {
    const std::vector<int32_t>& ids = pages_[static_cast<size_t>(part.sequence)];
    sequences_.push_back({.first_row = step_.row_count,
                          .row_count = part.row_count,
                          .first_position = part.first_position,
                          .first_page = static_cast<int32_t>(pages.size()),
                          .page_count = static_cast<int32_t>(ids.size())});
    pages.insert(pages.end(), ids.begin(), ids.end());
    for (int i = 0; i < part.row_count; ++i) {
      positions_.push_back(part.first_position + i);
      sequence_of_row.push_back(step_.sequence_count);
    }
    step_.row_count += part.row_count;
    step_.sequence_count += 1;
    step_.max_context = std::max(step_.max_context, part.first_position + part.row_count);
  }
  WL_ASSIGN_OR_RETURN(sequences_on_device_, CopyToDevice(sequences_));
  WL_ASSIGN_OR_RETURN(positions_on_device_, CopyToDevice(positions_));
  WL_ASSIGN_OR_RETURN(sequence_of_row_, CopyToDevice(sequence_of_row));
  WL_ASSIGN_OR_RETURN(pages_on_device_, CopyToDevice(pages));
  step_.positions = positions_on_device_.as<int32_t>();
  step_.sequence_of_row = sequence_of_row_.as<int32_t>();
  step_.sequences = sequences_on_device_.as<StepSequenceView>();
  step_.pages = pages_on_device_.as<int32_t>();
  step_.on_host = sequences_;
  step_.positions_on_host = positions_;
  return absl::OkStatus();
}

absl::Status AttentionRig::Run(const PagedAttention& attention,
                               const std::vector<SequenceRows>& rows, bool is_decode,
                               std::vector<float>* out) {
  WL_RETURN_IF_ERROR(PlaceStep(rows, is_decode));
  std::vector<float> q, k, v, gate;
  const auto append = [](const std::vector<float>& from, std::vector<float>& to) {
    to.insert(to.end(), from.begin(), from.end());
  };
  for (const SequenceRows& part : rows) {
    for (int i = 0; i < part.row_count; ++i) {
      const int position = part.first_position + i;
      append(Queries(part.sequence, position), q);
      append(Keys(part.sequence, position), k);
      append(Values(part.sequence, position), v);
      if (shape_.has_gate) append(Gates(part.sequence, position), gate);
    }
  }
  WL_ASSIGN_OR_RETURN(const DeviceBuffer q_on_device, CopyToDevice(q));
  WL_ASSIGN_OR_RETURN(const DeviceBuffer k_on_device, CopyToDevice(k));
  WL_ASSIGN_OR_RETURN(const DeviceBuffer v_on_device, CopyToDevice(v));
  WL_ASSIGN_OR_RETURN(const DeviceBuffer gate_on_device, CopyToDevice(gate));
  const int64_t width = int64_t{shape_.n_head} * shape_.head_dim;
  const int64_t kv_width = int64_t{shape_.n_head_kv} * shape_.head_dim;
  QkvRopeArgs args;
  args.step = step_;
  args.q = q_on_device.as<float>();
  args.q_stride = width;
  args.k = k_on_device.as<float>();
  args.v = v_on_device.as<float>();
  args.k_stride = args.v_stride = kv_width;
  args.n_head = shape_.n_head;
  args.q_gamma = q_gamma_on_device_.as<float>();
  args.k_gamma = k_gamma_on_device_.as<float>();
  args.eps = kEps;
  RopeArgs rope;
  rope.interleaved = shape_.is_interleaved;
  rope.inverse_frequency = inverse_frequency_;
  tables_.BeginStep();
  WL_ASSIGN_OR_RETURN(args.rotation, tables_.Get(rope, step_, stream_.get()));
  args.pairs = shape_.pairs;
  args.interleaved = shape_.is_interleaved;
  args.cache = cache_.view();
  WL_RETURN_IF_ERROR(QkvRopeStore(args, stream_.get()));
  if (out == nullptr) return stream_.Synchronize();

  std::vector<float> guarded(static_cast<size_t>(step_.row_count * (width + kGuard)), kGuardValue);
  WL_ASSIGN_OR_RETURN(const DeviceBuffer out_on_device, CopyToDevice(guarded));
  AttentionJob job;
  job.step = step_;
  job.q = args.q;
  job.q_stride = width;
  job.out = out_on_device.as<float>();
  job.out_stride = width + kGuard;
  job.gate = gate_on_device.as<float>();
  job.gate_stride = width;
  job.n_head = shape_.n_head;
  job.scale = scale();
  job.window = shape_.window;
  job.cache = cache_.view();
  WL_RETURN_IF_ERROR(attention.Run(job, stream_.get()));
  WL_RETURN_IF_ERROR(stream_.Synchronize());
  WL_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpy(guarded.data(), job.out, guarded.size() * sizeof(float), cudaMemcpyDeviceToHost),
      "reading attention"));
  out->clear();
  for (auto row = guarded.begin(); row != guarded.end(); row += width + kGuard) {
    out->insert(out->end(), row, row + width);
    if (std::count(row + width, row + width + kGuard, kGuardValue) != kGuard) {
      return absl::InternalError("attention wrote behind its outputs");
    }
  }
  return absl::OkStatus();
}

absl::Status AttentionRig::ReadCache() {
  WL_ASSIGN_OR_RETURN(const int64_t bytes, CudaKvCache::Bytes(cache_.args()));
  cache_bytes_.resize(static_cast<size_t>(bytes));
  return CudaStatus(cudaMemcpy(cache_bytes_.data(), cache_.view().data, cache_bytes_.size(),
                               cudaMemcpyDeviceToHost),
                    "reading a cache");
}

double AttentionRig::Stored(int sequence, int position, int kv_head, bool is_value, int dim) const {
  const KvView view = cache_.view();
  const int page =
      pages_[static_cast<size_t>(sequence)][static_cast<size_t>(position / kPageTokens)];
  const int token = position % kPageTokens;
  const uint8_t* const block = cache_bytes_.data() + BlockOffset(view, page, kv_head, is_value);
  const uint8_t* const at = block + ValueOffset(view.layout, token, dim);
  if (shape_.kv_type == KvType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t half;
  if (shape_.kv_type == KvType::kF16) {
    std::memcpy(&half, at, sizeof(half));
    return FloatFromHalf(half);
  }
  std::memcpy(&half, block + ScaleOffset(view.layout, token, dim / view.layout.group),
              sizeof(half));
  return static_cast<int8_t>(*at) * static_cast<double>(FloatFromHalf(half));
}

}  // namespace warpline::cuda
