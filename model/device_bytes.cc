#include "model/device_bytes.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "model/allocated_bytes.h"
#include "model/row_widths.h"

namespace warpline {
namespace {

constexpr int64_t kFloat = 4;  // bytes
constexpr int64_t kHalf = 2;
constexpr int64_t kPackedRows = 16;
constexpr int64_t kPackedWidth = 128;
constexpr int64_t kSlackRows = 256;    // behind the rows of an operand, read but never used
constexpr int64_t kLogitRows = 32;     // computed at a time
constexpr int64_t kPageTokens = 64;    // of a cache page
constexpr int64_t kHeadsOfGroup = 16;  // of attention in decode steps, whatever the model has
constexpr int64_t kRouting = 1 << 18;  // bytes in which rows are sorted by expert
constexpr int64_t kPairBytes = 64;     // of a row and one of its experts, in lists
constexpr int64_t kExactBlocks = 128;  // that compute again what no half holds
// Of a recorded decode step, a layer. Estimated from the launches of a layer, not measured.
constexpr int64_t kRecordBytes = 48 << 10;
constexpr int64_t kMostRecords = 256;
constexpr int64_t kLengthClasses = 2;  // of contexts that are in use at one time

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Of sixteen rows: bytes for each 128 values, and for each 256.
struct PackedSize {
  int64_t of_128 = 0;
  int64_t of_256 = 0;
};

PackedSize PackedSizeOf(QuantType type) {
  switch (type) {
    case QuantType::kF32:
    case QuantType::kF16:
    case QuantType::kBF16:
      return {4096, 0};
    case QuantType::kQ1_0:
      return {288, 0};
    case QuantType::kQ2_0:
      return {576, 0};
    case QuantType::kQ4_0:
    case QuantType::kIQ4NL:
    case QuantType::kMXFP4:
    case QuantType::kNVFP4:
      return {1152, 0};
    case QuantType::kQ4_1:
      return {1280, 0};
    case QuantType::kQ5_0:
      return {1408, 0};
    case QuantType::kQ5_1:
      return {1536, 0};
    case QuantType::kQ8_0:
      return {2176, 0};
    case QuantType::kQ2K:
      return {640, 64};
    case QuantType::kQ3K:
      return {896, 32};
    case QuantType::kQ4K:
      return {1152, 64};
    case QuantType::kQ5K:
      return {1408, 64};
    case QuantType::kQ6K:
      return {1664, 32};
    case QuantType::kIQ1S:
      return {416, 32};
    case QuantType::kIQ1M:
      return {448, 32};
    case QuantType::kIQ2XXS:
      return {544, 32};
    case QuantType::kIQ2XS:
      return {608, 32};
    case QuantType::kIQ2S:
      return {640, 32};
    case QuantType::kIQ3XXS:
      return {800, 32};
    case QuantType::kIQ3S:
      return {864, 32};
    case QuantType::kIQ4XS:
      return {1088, 32};
    case QuantType::kTQ1_0:
    case QuantType::kTQ2_0:
      return {512, 32};
    default:
      return {};
  }
}

// How a tensor lies on the card.
struct TensorBytes {
  int64_t kept = 0;
  int64_t staged = 0;  // its blocks as they are in the file, until they have been packed
};

int64_t ValueCount(const GgufTensor& tensor) {
  return tensor.dims[0] * tensor.dims[1] * tensor.dims[2] * tensor.dims[3];
}

TensorBytes Packed(const GgufTensor& tensor, int64_t row_count) {
  return {
      .kept = AllocatedBytes(tensor.dims[2] * PackedBytes(tensor.type, row_count, tensor.dims[0])),
      .staged = static_cast<int64_t>(tensor.byte_count)};
}

TensorBytes BytesOfTensor(const GgufFile& file, const GgufTensor& tensor) {
  constexpr int64_t kGatePad = 128;  // rows of gate and up
  const int64_t stored = AllocatedBytes(static_cast<int64_t>(tensor.byte_count));
  const int64_t floats = AllocatedBytes(ValueCount(tensor) * kFloat);
  const bool is_matrix = tensor.dims[1] > 1 && absl::EndsWith(tensor.name, ".weight");
  if (!is_matrix) return {.kept = floats};
  if (tensor.type == QuantType::kF32) return {.kept = stored};
  if (absl::StrContains(tensor.name, "ffn_gate_inp")) return {.kept = stored + floats};
  if (tensor.dims[2] == 1) return Packed(tensor, tensor.dims[1]);
  // Experts whose inner products have factors of their own are multiplied as floats.
  const std::string prefix(tensor.name.substr(0, tensor.name.find("ffn_")));
  for (const char* const name : {"ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps"}) {
    if (file.FindTensor(absl::StrCat(prefix, name, ".scale")) != nullptr) {
      return {.kept = stored + floats};
    }
  }
  const bool is_down = absl::StrContains(tensor.name, "down");
  return Packed(tensor, is_down ? tensor.dims[1] : RoundUp(tensor.dims[1], kGatePad));
}

// -1: of no layer.
int LayerOf(absl::string_view name) {
  if (!absl::ConsumePrefix(&name, "blk.")) return -1;
  int layer = -1;
  return absl::SimpleAtoi(name.substr(0, name.find('.')), &layer) ? layer : -1;
}

struct WeightBytes {
  int64_t kept = 0;
  int64_t staged = 0;  // at a time: the blocks of a layer
};

WeightBytes WeightBytesOf(const GgufFile& file, const ModelSpec& spec, LayerRange layers) {
  const bool is_first = layers.begin == 0;
  const bool is_last = layers.end == spec.n_layer;
  WeightBytes all;
  std::vector<int64_t> staged(static_cast<size_t>(spec.n_layer));
  for (const GgufTensor& tensor : file.tensors()) {
    if (!InfoOf(tensor.type).is_weight) continue;
    const TensorBytes bytes = BytesOfTensor(file, tensor);
    if (const int layer = LayerOf(tensor.name); layer >= 0 && layer < spec.n_layer) {
      if (layer < layers.begin || layer >= layers.end) continue;
      all.kept += bytes.kept;
      staged[static_cast<size_t>(layer)] += bytes.staged;
    } else if (tensor.name == "token_embd.weight") {
      if (is_first) all.kept += AllocatedBytes(static_cast<int64_t>(tensor.byte_count));
      const bool is_head = is_last && spec.tied_embeddings;
      if (is_head && !(is_first && tensor.type == QuantType::kF32)) all.kept += bytes.kept;
    } else if (absl::StartsWith(tensor.name, "output") && is_last) {
      all.kept += bytes.kept;
    }
  }
  all.staged = *std::max_element(staged.begin(), staged.end());
  return all;
}

// Buffers, in whole pages where they are large.
class Room {
 public:
  void Add(int64_t bytes) { bytes_ += AllocatedBytes(bytes); }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

void AddExperts(const ModelSpec& spec, int64_t rows, Room& room) {
  const MoeSpec& moe = spec.moe;
  const int64_t pairs = rows * moe.used_count;
  // The rows of each expert begin at a multiple of eight.
  const int64_t row_space = RoundUp(pairs + 7 * std::min<int64_t>(pairs, moe.expert_count), 8);
  room.Add(rows * moe.expert_count * kFloat);
  room.Add(2 * pairs * kFloat);
  room.Add(rows * spec.n_embd * kHalf);
  room.Add((row_space + kSlackRows) * RoundUp(spec.n_embd, kPackedWidth) * kHalf);
  room.Add((row_space + kSlackRows) * RoundUp(moe.n_ff_expert, kPackedWidth) * kHalf);
  room.Add(row_space * spec.n_embd * kHalf);
  room.Add(kRouting + row_space * kPairBytes);
  // Marks of what is computed again in single precision, and what that works in.
  room.Add(rows * (spec.n_embd % 8 == 0 ? spec.n_embd / 8 : spec.n_embd));
  const int64_t widest =
      std::max<int64_t>(spec.n_embd, 2 * (int64_t{moe.n_ff_expert} + kPackedWidth)) + kPackedWidth;
  room.Add(kExactBlocks * (widest + moe.n_ff_expert + 2 * int64_t{spec.n_embd}) * kFloat);
  if (moe.n_ff_shared == 0) return;
  room.Add(rows * spec.n_embd * kFloat);
}

int64_t WidestFeedForward(const ModelSpec& spec, LayerRange layers) {
  int64_t widest = 0;
  for (int layer = layers.begin; layer < layers.end; ++layer) {
    const LayerSpec& shape = spec.layers[static_cast<size_t>(layer)];
    widest = std::max<int64_t>(widest, shape.is_moe ? spec.moe.n_ff_shared : shape.n_ff);
  }
  return widest;
}

// Decode steps cut their contexts into parts, prompts read an int8 cache as halves.
void AddAttention(const ModelSpec& spec, const DeviceBytesArgs& args, Room& room) {
  int64_t most_kv_heads = 0;
  for (int layer = args.layers.begin; layer < args.layers.end; ++layer) {
    const LayerSpec& shape = spec.layers[static_cast<size_t>(layer)];
    most_kv_heads = std::max<int64_t>(most_kv_heads, shape.n_head_kv);
  }
  // Parts of 128 positions in short contexts, of 256 in longer ones, of 512 in the longest.
  int64_t parts = 1;
  for (const auto& [limit, length] : {std::pair<int64_t, int64_t>{2048, 128}, {16384, 256}}) {
    parts = std::max(parts, RoundUp(std::min(limit, args.max_context), length) / length + 1);
  }
  parts = std::max(parts, RoundUp(args.max_context, 512) / 512 + 1);
  const int64_t rows = std::min<int64_t>(args.slot_count, args.max_rows);
  room.Add(rows * most_kv_heads * parts * kHeadsOfGroup * (spec.head_dim + 2) * kFloat);
  if (args.format == CacheFormat::kQ8_0) {
    room.Add(2 * RoundUp(args.max_context, kPageTokens) * most_kv_heads * spec.head_dim * kHalf);
  }
}

int64_t StepBytes(const ModelSpec& spec, const DeviceBytesArgs& args) {
  const int64_t rows = args.max_rows;
  const RowWidths widths = RowWidthsOf(spec, args.layers, args.max_context);
  Room room;
  for (const int64_t width : widths.all()) room.Add(rows * width * kFloat);
  room.Add(2 * rows * spec.rope.n_rot * kFloat);
  const int64_t n_ff = WidestFeedForward(spec, args.layers);
  room.Add(rows * n_ff * kFloat);
  room.Add(rows * n_ff * kFloat);
  // The input of a product as halves, and sums that are not yet where they belong.
  const int64_t widest = std::max({int64_t{spec.n_embd}, widths.heads, n_ff});
  room.Add((rows + kSlackRows) * RoundUp(widest, kPackedWidth) * kHalf);
  room.Add(rows * std::max<int64_t>(spec.n_embd, widths.qkv) * kFloat);
  const auto is_moe = [](const LayerSpec& shape) { return shape.is_moe; };
  if (std::any_of(spec.layers.begin() + args.layers.begin, spec.layers.begin() + args.layers.end,
                  is_moe)) {
    AddExperts(spec, rows, room);
  }
  AddAttention(spec, args, room);
  if (args.layers.end == spec.n_layer) {
    room.Add(rows * spec.n_embd * kFloat);
    room.Add(kLogitRows * spec.n_vocab * kFloat);
  }
  const int64_t records = std::min(kLengthClasses * args.slot_count, kMostRecords);
  return room.bytes() + records * args.layers.size() * kRecordBytes;
}

}  // namespace

int64_t PackedBytes(QuantType type, int64_t row_count, int64_t width) {
  const PackedSize size = PackedSizeOf(type);
  const int64_t pieces = RoundUp(width, kPackedWidth) / kPackedWidth;
  return RoundUp(row_count, kPackedRows) / kPackedRows *
         (pieces * size.of_128 + pieces / 2 * size.of_256);
}

DeviceBytes DeviceBytesOf(const GgufFile& file, const ModelSpec& spec,
                          const DeviceBytesArgs& args) {
  const WeightBytes weights = WeightBytesOf(file, spec, args.layers);
  DeviceBytes bytes;
  bytes.weights = weights.kept;
  bytes.caches = CacheBytesOf(spec, args.layers, args.format, args.page_count, args.slot_count);
  // The blocks of the last layers have been given back before there are steps.
  bytes.step = std::max(StepBytes(spec, args), weights.staged);
  return bytes;
}

}  // namespace warpline
