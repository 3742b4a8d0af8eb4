#include "model/model_spec_hybrid.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr int64_t kMostStreams = 16;
constexpr int64_t kMostConvKernel = 16;
constexpr int64_t kMostStateSize = 1024;

class HybridReader {
 public:
  HybridReader(const KeyReader& keys, ModelSpec& spec) : keys_(keys), spec_(spec) {}

  absl::Status ReadGemma();
  absl::Status ReadSections();
  absl::Status ReadDraftBlocks();
  absl::Status ReadLayerKinds();
  absl::Status ReadDeltaNet();
  absl::Status ReadHyperConnections();
  absl::Status ReadIndexer();
  absl::Status ReadPle();

 private:
  absl::Status ReadInt32(absl::string_view suffix, int64_t least, int64_t most, int& value) const {
    int64_t wide = 0;
    WL_RETURN_IF_ERROR(keys_.ReadInt(keys_.Key(suffix), least, most, wide));
    value = static_cast<int>(wide);
    return absl::OkStatus();
  }
  absl::Status ReadPleLayer(const std::string& key);
  absl::Status ReadPleSizes();
  absl::Status ReadUnsigned(absl::string_view suffix, int count, std::vector<uint64_t>& values);
  absl::Status CheckPleRows();

  const KeyReader& keys_;
  ModelSpec& spec_;
};

absl::Status HybridReader::ReadGemma() {
  spec_.embedding_factor = std::sqrt(static_cast<double>(spec_.n_embd));
  constexpr int kLayersOfThe27BModel = 62;
  if (spec_.n_layer == kLayersOfThe27BModel) {
    const int per_head = std::max(1, spec_.n_embd / spec_.layers[0].n_head);
    spec_.attention_scale = 1 / std::sqrt(static_cast<double>(per_head));
  }
  WL_RETURN_IF_ERROR(
      keys_.ReadOptionalFloat(keys_.Key("final_logit_softcapping"), 0, spec_.logit_soft_cap));
  int64_t window = 0;
  int64_t period = 6;
  WL_RETURN_IF_ERROR(
      keys_.ReadOptionalInt(keys_.Key("attention.sliding_window"), 0, kMostInt32, window));
  WL_RETURN_IF_ERROR(
      keys_.ReadOptionalInt(keys_.Key("attention.sliding_window_pattern"), 1, kMostLayers, period));
  spec_.window = static_cast<int>(window);
  spec_.rope_local = {.style = RopeStyle::kNeox, .scaling = RopeScaling::kNone};
  spec_.rope_local.n_rot = spec_.rope.n_rot;
  WL_RETURN_IF_ERROR(
      keys_.ReadOptionalPositive(keys_.Key("rope.freq_base_swa"), spec_.rope_local.freq_base));
  for (int layer = 0; window > 0 && layer < spec_.n_layer; ++layer) {
    if (layer % period < period - 1) {
      spec_.layers[static_cast<size_t>(layer)].kind = LayerKind::kSlidingAttention;
    }
  }
  return absl::OkStatus();
}

absl::Status HybridReader::ReadSections() {
  const std::string key = keys_.Key("rope.dimension_sections");
  const absl::StatusOr<absl::Span<const int64_t>> stored = keys_.file().GetInts(key);
  if (!stored.ok()) return KeyReader::AsInvalid(stored.status());
  if (stored->size() != spec_.rope.sections.size()) {
    return keys_.Error("key ", key, " has ", stored->size(), " elements, must have ",
                       spec_.rope.sections.size());
  }
  int64_t sum = 0;
  for (size_t i = 0; i < stored->size(); ++i) {
    WL_RETURN_IF_ERROR(
        keys_.CheckRange(absl::StrCat(key, "[", i, "]"), (*stored)[i], 0, kMostHeadDim));
    spec_.rope.sections[i] = static_cast<int>((*stored)[i]);
    sum += (*stored)[i];
  }
  if (sum == 0) return keys_.Error("key ", key, " has a sum of 0, must be positive");
  return absl::OkStatus();
}

// A file with a draft block alone has no layer that could run.
absl::Status HybridReader::ReadDraftBlocks() {
  if (spec_.draft_block_count == 0) return absl::OkStatus();
  const auto& tensors = keys_.file().tensors();
  const bool has_layers = std::any_of(tensors.begin(), tensors.end(), [](const GgufTensor& tensor) {
    return absl::StartsWith(tensor.name, "blk.0.");
  });
  if (has_layers) return absl::OkStatus();
  return keys_.Error("key ", keys_.Key("nextn_predict_layers"), " is ", spec_.draft_block_count,
                     " and there is no tensor of layer 0: a file of draft blocks alone, which "
                     "cannot be served");
}

absl::Status HybridReader::ReadLayerKinds() {
  int64_t interval = 4;
  WL_RETURN_IF_ERROR(
      keys_.ReadOptionalInt(keys_.Key("full_attention_interval"), 1, kMostInt32, interval));
  std::vector<int64_t> recurrent(spec_.layers.size());
  for (size_t i = 0; i < recurrent.size(); ++i) {
    recurrent[i] = (static_cast<int64_t>(i) + 1) % interval != 0 ? 1 : 0;
  }
  const std::string key = keys_.Key("attention.recurrent_layers");
  const GgufValue* const stored = keys_.file().Find(key);
  if (stored != nullptr && absl::holds_alternative<bool>(stored->value)) {
    recurrent.assign(recurrent.size(), absl::get<bool>(stored->value) ? 1 : 0);
  } else {
    WL_RETURN_IF_ERROR(keys_.ReadPerLayer(key, 0, 1, recurrent));
  }
  for (size_t i = 0; i < recurrent.size(); ++i) {
    if (recurrent[i] != 0) spec_.layers[i].kind = LayerKind::kDeltaNet;
  }
  return absl::OkStatus();
}

absl::Status HybridReader::ReadDeltaNet() {
  DeltaNetSpec& delta = spec_.delta_net;
  WL_RETURN_IF_ERROR(ReadInt32("ssm.conv_kernel", 1, kMostConvKernel, delta.conv_kernel));
  WL_RETURN_IF_ERROR(ReadInt32("ssm.state_size", 1, kMostStateSize, delta.head_dim));
  WL_RETURN_IF_ERROR(ReadInt32("ssm.group_count", 1, kMostHeads, delta.n_head_key));
  WL_RETURN_IF_ERROR(ReadInt32("ssm.time_step_rank", 1, kMostHeads, delta.n_head_value));
  if (delta.n_head_value % delta.n_head_key != 0) {
    return keys_.Error("key ", keys_.Key("ssm.time_step_rank"), " is ", delta.n_head_value,
                       ", not a multiple of ", delta.n_head_key, " (", keys_.Key("ssm.group_count"),
                       ")");
  }
  int64_t inner = 0;
  WL_RETURN_IF_ERROR(keys_.ReadInt(keys_.Key("ssm.inner_size"), 1, kMostInt32, inner));
  if (inner != delta.value_width()) {
    return keys_.Error("key ", keys_.Key("ssm.inner_size"), " is ", inner, ", must be ",
                       delta.value_width(), " (", keys_.Key("ssm.time_step_rank"), " times ",
                       keys_.Key("ssm.state_size"), ")");
  }
  delta.grouped_heads = spec_.architecture == Architecture::kQwen3Next;
  delta.sigmoid_gate = spec_.architecture == Architecture::kQwen4Exp;
  return absl::OkStatus();
}

absl::Status HybridReader::ReadHyperConnections() {
  WL_RETURN_IF_ERROR(
      ReadInt32("hyper_connection.count", 2, kMostStreams, spec_.hyper.stream_count));
  WL_RETURN_IF_ERROR(ReadInt32("hyper_connection.low_rank", 1, kMostWidth, spec_.hyper.low_rank));
  spec_.residual_width = spec_.hyper.stream_count * spec_.n_embd;
  return absl::OkStatus();
}

absl::Status HybridReader::ReadIndexer() {
  IndexerSpec& indexer = spec_.indexer;
  WL_RETURN_IF_ERROR(ReadInt32("attention.indexer.head_count", 1, kMostHeads, indexer.n_head));
  WL_RETURN_IF_ERROR(ReadInt32("attention.indexer.key_length", 1, kMostHeadDim, indexer.head_dim));
  WL_RETURN_IF_ERROR(ReadInt32("attention.indexer.top_k", 1, kMostInt32, indexer.token_budget));
  if (spec_.rope.n_rot > indexer.head_dim) {
    return keys_.Error("key ", keys_.Key("attention.indexer.key_length"), " is ", indexer.head_dim,
                       ", less than the ", spec_.rope.n_rot, " rotated values (",
                       keys_.Key("rope.dimension_count"), ")");
  }
  std::vector<int64_t> ratios(spec_.layers.size(), 0);
  WL_RETURN_IF_ERROR(
      keys_.ReadPerLayer(keys_.Key("attention.compress_ratios"), 0, indexer.token_budget, ratios));
  for (size_t i = 0; i < ratios.size(); ++i) {
    if (spec_.layers[i].kind == LayerKind::kDeltaNet) continue;
    spec_.layers[i].compress_ratio = static_cast<int>(ratios[i]);
  }
  return absl::OkStatus();
}

absl::Status HybridReader::ReadPleLayer(const std::string& key) {
  const absl::StatusOr<absl::Span<const int64_t>> layers = keys_.file().GetInts(key);
  if (!layers.ok()) return KeyReader::AsInvalid(layers.status());
  if (layers->empty()) return absl::OkStatus();
  if (layers->size() != 1) {
    return keys_.Error("key ", key, " has ", layers->size(), " elements, one is supported");
  }
  WL_RETURN_IF_ERROR(keys_.CheckRange(key, (*layers)[0], 0, spec_.n_layer - 1));
  spec_.ple.layer = static_cast<int>((*layers)[0]);
  if (spec_.layers[static_cast<size_t>(spec_.ple.layer)].kind != LayerKind::kDeltaNet) {
    return keys_.Error("key ", key, " is ", spec_.ple.layer, ", which is no recurrent layer");
  }
  return absl::OkStatus();
}

absl::Status HybridReader::ReadPleSizes() {
  constexpr int64_t kMostHeadsOfTable = 64;
  PleSpec& ple = spec_.ple;
  WL_RETURN_IF_ERROR(ReadInt32("ple.ngram_size", 2, 8, ple.ngram_size));
  WL_RETURN_IF_ERROR(ReadInt32("ple.heads_per_ngram", 1, kMostHeadsOfTable / (ple.ngram_size - 1),
                               ple.heads_per_ngram));
  WL_RETURN_IF_ERROR(ReadInt32("ple.conv_kernel", 1, kMostConvKernel, ple.conv_kernel));
  WL_RETURN_IF_ERROR(ReadInt32("ple.eos_token_id", 0, kMostInt32, ple.eos_token_id));
  int64_t image = 0;
  WL_RETURN_IF_ERROR(keys_.ReadOptionalInt(keys_.Key("ple.image_token_id"), 0, kMostInt32, image));
  ple.image_token_id = image == 0 ? ple.eos_token_id : static_cast<int32_t>(image);
  WL_RETURN_IF_ERROR(ReadInt32("embedding_length_per_layer_input", 1, kMostWidth, ple.row_width));
  if (int64_t{ple.row_width} * ple.head_count() != spec_.n_embd) {
    return keys_.Error("key ", keys_.Key("embedding_length_per_layer_input"), " is ", ple.row_width,
                       "; with ", ple.head_count(), " rows for each token that is ",
                       int64_t{ple.row_width} * ple.head_count(), " values, must be ", spec_.n_embd,
                       " (", keys_.Key("embedding_length"), ")");
  }
  return absl::OkStatus();
}

absl::Status HybridReader::ReadUnsigned(absl::string_view suffix, int count,
                                        std::vector<uint64_t>& values) {
  const std::string key = keys_.Key(suffix);
  const absl::StatusOr<absl::Span<const int64_t>> stored = keys_.file().GetInts(key);
  if (!stored.ok()) return KeyReader::AsInvalid(stored.status());
  if (stored->size() < static_cast<size_t>(count)) {
    return keys_.Error("key ", key, " has ", stored->size(), " elements, must have ", count);
  }
  values.assign(stored->begin(), stored->begin() + count);
  return absl::OkStatus();
}

// Every row that any ids can ask for lies in the table.
absl::Status HybridReader::CheckPleRows() {
  PleSpec& ple = spec_.ple;
  uint64_t needed = 0;
  for (int head = 0; head < ple.head_count(); ++head) {
    const auto h = static_cast<size_t>(head);
    if (ple.moduli[h] == 0) {
      return keys_.Error("key ", keys_.Key("ple.head_vocab_sizes"), "[", head,
                         "] is 0, must be positive");
    }
    constexpr uint64_t kMost = static_cast<uint64_t>(kMostInt32);
    if (ple.offsets[h] > kMost || ple.moduli[h] > kMost - ple.offsets[h]) {
      return keys_.Error("key ", keys_.Key("ple.head_offsets"), "[", head, "] is ", ple.offsets[h],
                         ", with ", ple.moduli[h], " rows that exceeds ", kMost);
    }
    needed = std::max(needed, ple.offsets[h] + ple.moduli[h]);
  }
  ple.row_count = static_cast<int64_t>(needed);
  const GgufTensor* const table = keys_.file().FindTensor("per_layer_token_embd.weight");
  if (table == nullptr) return absl::OkStatus();  // The check of the tensors says so.
  if (table->dims[1] < ple.row_count) {
    return keys_.Error("tensor ", table->name, " has ", table->dims[1], " rows, but ",
                       keys_.Key("ple.head_offsets"), " and ", keys_.Key("ple.head_vocab_sizes"),
                       " reach up to ", needed);
  }
  ple.row_count = table->dims[1];
  return absl::OkStatus();
}

absl::Status HybridReader::ReadPle() {
  const std::string key = keys_.Key("ple.layers");
  if (!keys_.file().Has(key)) return absl::OkStatus();
  WL_RETURN_IF_ERROR(ReadPleLayer(key));
  PleSpec& ple = spec_.ple;
  if (!ple.present()) return absl::OkStatus();
  WL_RETURN_IF_ERROR(ReadPleSizes());
  WL_RETURN_IF_ERROR(ReadUnsigned("ple.layer_multipliers", ple.ngram_size, ple.multipliers));
  WL_RETURN_IF_ERROR(ReadUnsigned("ple.head_offsets", ple.head_count(), ple.offsets));
  WL_RETURN_IF_ERROR(ReadUnsigned("ple.head_vocab_sizes", ple.head_count(), ple.moduli));
  return CheckPleRows();
}

}  // namespace

bool IsHybrid(Architecture architecture) {
  return architecture == Architecture::kQwen3Next || architecture == Architecture::kQwen35 ||
         architecture == Architecture::kQwen35Moe || architecture == Architecture::kQwen4Exp;
}

bool HasDraftBlocks(Architecture architecture) { return IsHybrid(architecture); }

absl::Status ReadHybridKeys(const KeyReader& keys, ModelSpec& spec) {
  HybridReader reader(keys, spec);
  if (spec.architecture == Architecture::kGemma3) return reader.ReadGemma();
  if (!IsHybrid(spec.architecture)) return absl::OkStatus();
  spec.has_attention_gate = true;
  WL_RETURN_IF_ERROR(reader.ReadDraftBlocks());
  WL_RETURN_IF_ERROR(reader.ReadLayerKinds());
  WL_RETURN_IF_ERROR(reader.ReadDeltaNet());
  if (spec.architecture == Architecture::kQwen3Next) return absl::OkStatus();
  WL_RETURN_IF_ERROR(reader.ReadSections());
  if (spec.architecture != Architecture::kQwen4Exp) return absl::OkStatus();
  WL_RETURN_IF_ERROR(reader.ReadHyperConnections());
  WL_RETURN_IF_ERROR(reader.ReadIndexer());
  return reader.ReadPle();
}

}  // namespace warpline
