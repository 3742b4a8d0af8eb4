#include "model/model_spec.h"

#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/log.h"
#include "base/status.h"
#include "model/key_reader.h"
#include "model/model_spec_hybrid.h"
#include "model/model_tensors.h"

namespace warpline {
namespace {

constexpr size_t kMostNameBytes = 256;  // of general.name, which stands in logs and answers

enum class Experts { kNever, kMaybe, kAlways };

struct ArchitectureInfo {
  const char* name;
  Architecture architecture;
  RopeStyle rope;
  bool has_qk_norm;
  Experts experts;
  bool renormalise;
  bool has_shared_expert;
};

constexpr ArchitectureInfo kArchitectures[] = {
    {"llama", Architecture::kLlama, RopeStyle::kNorm, false, Experts::kMaybe, true, false},
    {"qwen2", Architecture::kQwen2, RopeStyle::kNeox, false, Experts::kNever, false, false},
    {"qwen3", Architecture::kQwen3, RopeStyle::kNeox, true, Experts::kNever, false, false},
    {"qwen2moe", Architecture::kQwen2Moe, RopeStyle::kNeox, false, Experts::kAlways, false, true},
    {"qwen3moe", Architecture::kQwen3Moe, RopeStyle::kNeox, true, Experts::kAlways, true, false},
    {"gemma3", Architecture::kGemma3, RopeStyle::kNeox, true, Experts::kNever, false, false},
    {"qwen3next", Architecture::kQwen3Next, RopeStyle::kNeox, true, Experts::kAlways, true, true},
    {"qwen35", Architecture::kQwen35, RopeStyle::kNeox, true, Experts::kNever, false, false},
    {"qwen35moe", Architecture::kQwen35Moe, RopeStyle::kNeox, true, Experts::kAlways, true, true},
    {"qwen4exp", Architecture::kQwen4Exp, RopeStyle::kNeox, true, Experts::kAlways, true, true},
};

std::string FileName(const std::string& path) { return path.substr(path.rfind('/') + 1); }

class SpecReader : private KeyReader {
 public:
  explicit SpecReader(const GgufFile& file) : KeyReader(file), file_(file) {}

  absl::StatusOr<ModelSpec> Read() {
    WL_RETURN_IF_ERROR(ReadArchitecture());
    WL_RETURN_IF_ERROR(ReadDimensions());
    WL_RETURN_IF_ERROR(ReadVocabulary());
    WL_RETURN_IF_ERROR(ReadHeads());
    WL_RETURN_IF_ERROR(ReadExperts());
    WL_RETURN_IF_ERROR(ReadRope());
    WL_RETURN_IF_ERROR(ReadHybridKeys(*this, spec_));
    spec_.tied_embeddings = file_.FindTensor("output.weight") == nullptr;
    WL_RETURN_IF_ERROR(CheckTensors(spec_, file_, spec_.warnings));
    return std::move(spec_);
  }

 private:
  absl::Status ReadArchitecture();
  absl::Status ReadDimensions();
  absl::Status ReadVocabulary();
  absl::Status ReadHeads();
  absl::Status ReadExperts();
  absl::Status ReadExpertWidths(int64_t experts_used);
  absl::Status CheckOneExpertWidth();
  absl::Status RefuseSingleExpertTensors() const;
  absl::Status ReadRope();
  absl::Status ReadRopeScaling();

  const GgufFile& file_;
  const ArchitectureInfo* info_ = nullptr;
  ModelSpec spec_;
};

absl::Status SpecReader::ReadArchitecture() {
  const absl::StatusOr<std::string> name = file_.GetString("general.architecture");
  if (!name.ok()) return AsInvalid(name.status());
  for (const ArchitectureInfo& info : kArchitectures) {
    if (*name == info.name) info_ = &info;
  }
  if (info_ == nullptr) {
    const std::string known = absl::StrJoin(
        kArchitectures, ", ",
        [](std::string* out, const ArchitectureInfo& info) { absl::StrAppend(out, info.name); });
    return Error("key general.architecture is \"",
                 EscapeForLog(absl::string_view(*name).substr(0, 80)),
                 "\", which is not supported; known are ", known);
  }
  spec_.architecture = info_->architecture;
  spec_.architecture_name = info_->name;
  set_prefix(info_->name);
  spec_.has_qk_norm = info_->has_qk_norm;
  spec_.name = EscapeForLog(FileName(file_.path()));
  if (file_.Has("general.name")) {
    const absl::StatusOr<std::string> model_name = file_.GetString("general.name");
    if (!model_name.ok()) return AsInvalid(model_name.status());
    if (!model_name->empty()) spec_.name = EscapeForLog(model_name->substr(0, kMostNameBytes));
  }
  return absl::OkStatus();
}

absl::Status SpecReader::ReadDimensions() {
  int64_t block_count = 0;
  int64_t n_embd = 0;
  WL_RETURN_IF_ERROR(ReadInt(Key("block_count"), 1, kMostLayers, block_count));
  set_block_count(block_count);
  int64_t draft_blocks = 0;  // at the end; nothing else uses them
  if (HasDraftBlocks(info_->architecture)) {
    WL_RETURN_IF_ERROR(
        ReadOptionalInt(Key("nextn_predict_layers"), 0, block_count - 1, draft_blocks));
  }
  const int64_t n_layer = block_count - draft_blocks;
  spec_.draft_block_count = static_cast<int>(draft_blocks);
  WL_RETURN_IF_ERROR(ReadInt(Key("embedding_length"), 1, kMostWidth, n_embd));
  WL_RETURN_IF_ERROR(ReadInt(Key("context_length"), 1, kMostInt32, spec_.context_length));
  spec_.n_layer = static_cast<int>(n_layer);
  spec_.n_embd = static_cast<int>(n_embd);
  spec_.residual_width = spec_.n_embd;
  spec_.layers.resize(static_cast<size_t>(n_layer));
  const std::string eps_key = Key("attention.layer_norm_rms_epsilon");
  if (!file_.Has(eps_key)) return Error("key ", eps_key, " is missing");
  WL_RETURN_IF_ERROR(ReadOptionalPositive(eps_key, spec_.rms_eps));
  std::vector<int64_t> n_ff(spec_.layers.size(), 0);
  WL_RETURN_IF_ERROR(ReadPerLayer(Key("feed_forward_length"), 0, kMostFfnWidth, n_ff));
  for (size_t i = 0; i < n_ff.size(); ++i) spec_.layers[i].n_ff = static_cast<int>(n_ff[i]);
  return absl::OkStatus();
}

absl::Status SpecReader::ReadVocabulary() {
  constexpr char kTokens[] = "tokenizer.ggml.tokens";
  int64_t n_vocab = 0;
  const bool has_tokens = file_.Has(kTokens);
  if (has_tokens) {
    const auto tokens = file_.GetStrings(kTokens);
    if (!tokens.ok()) return AsInvalid(tokens.status());
    if (tokens->empty()) return Error("key ", kTokens, " is empty");
    n_vocab = static_cast<int64_t>(tokens->size());
  }
  const std::string key = Key("vocab_size");
  if (!has_tokens && !file_.Has(key)) return Error("key ", key, " is missing, and so is ", kTokens);
  const int64_t token_count = n_vocab;
  WL_RETURN_IF_ERROR(ReadOptionalInt(key, 1, kMostInt32, n_vocab));
  if (has_tokens && token_count != n_vocab) {
    return Error("key ", key, " is ", n_vocab, ", but ", kTokens, " has ", token_count,
                 " elements");
  }
  spec_.n_vocab = static_cast<int>(n_vocab);
  const GgufTensor* const embedding = file_.FindTensor("token_embd.weight");
  if (embedding != nullptr && embedding->dims[1] != n_vocab) {
    return Error("tensor token_embd.weight has ", embedding->dims[1],
                 " rows, but the vocabulary size is ", n_vocab);
  }
  return absl::OkStatus();
}

absl::Status SpecReader::ReadHeads() {
  const std::string heads_key = Key("attention.head_count");
  if (!file_.Has(heads_key)) return Error("key ", heads_key, " is missing");
  std::vector<int64_t> heads(spec_.layers.size(), 0);
  WL_RETURN_IF_ERROR(ReadPerLayer(heads_key, 1, kMostHeads, heads));
  std::vector<int64_t> kv_heads = heads;
  const std::string kv_key = Key("attention.head_count_kv");
  WL_RETURN_IF_ERROR(ReadPerLayer(kv_key, 1, kMostHeads, kv_heads));
  for (size_t i = 0; i < heads.size(); ++i) {
    if (heads[i] % kv_heads[i] != 0) {
      return Error("key ", heads_key, " is ", heads[i], " in layer ", i, ", not a multiple of ",
                   kv_heads[i], " (", kv_key, ")");
    }
    spec_.layers[i].n_head = static_cast<int>(heads[i]);
    spec_.layers[i].n_head_kv = static_cast<int>(kv_heads[i]);
  }
  const std::string dim_key = Key("attention.key_length");
  if (!file_.Has(dim_key) && spec_.n_embd % heads[0] != 0) {
    return Error("key ", Key("embedding_length"), " is ", spec_.n_embd, ", not a multiple of ",
                 heads[0], " (", heads_key, "), and ", dim_key, " is missing");
  }
  int64_t head_dim = spec_.n_embd / heads[0];
  WL_RETURN_IF_ERROR(ReadOptionalInt(dim_key, 1, kMostHeadDim, head_dim));
  // Without the key the file means the same default as for key_length, not key_length itself.
  const std::string value_key = Key("attention.value_length");
  int64_t value_dim = file_.Has(value_key) ? 0 : spec_.n_embd / heads[0];
  WL_RETURN_IF_ERROR(ReadOptionalInt(value_key, 0, kMostHeadDim, value_dim));
  if (value_dim != head_dim) {
    return Error("key ", value_key, file_.Has(value_key) ? "" : " (absent, default)", " is ",
                 value_dim, ", must equal ", dim_key, ", which is ", head_dim);
  }
  spec_.head_dim = static_cast<int>(head_dim);
  spec_.attention_scale = 1 / std::sqrt(static_cast<double>(head_dim));
  return absl::OkStatus();
}

absl::Status SpecReader::RefuseSingleExpertTensors() const {
  for (int layer = 0; layer < spec_.n_layer; ++layer) {
    const std::string name = LayerTensorName(layer, "ffn_gate.0.weight");
    if (file_.FindTensor(name) == nullptr) continue;
    return Error("tensor ", name,
                 ": an old file with one tensor for each expert, which is not supported; "
                 "convert the model again to get ",
                 LayerTensorName(layer, "ffn_gate_exps.weight"));
  }
  return absl::OkStatus();
}

absl::Status SpecReader::ReadExperts() {
  WL_RETURN_IF_ERROR(RefuseSingleExpertTensors());
  int64_t experts = 0;
  const std::string count_key = Key("expert_count");
  if (info_->experts != Experts::kNever) {
    const int64_t least = info_->experts == Experts::kAlways ? 1 : 0;
    WL_RETURN_IF_ERROR(ReadOptionalInt(count_key, least, kMostExperts, experts));
  }
  for (int layer = 0; layer < spec_.n_layer; ++layer) {
    LayerSpec& layer_spec = spec_.layers[static_cast<size_t>(layer)];
    const std::string router = LayerTensorName(layer, "ffn_gate_inp.weight");
    const bool has_router = file_.FindTensor(router) != nullptr;
    if (has_router && experts == 0) {
      return Error("tensor ", router, " is there, but ", count_key,
                   " is 0 or missing or unknown to ", spec_.architecture_name);
    }
    // A layer without router and without a dense FFN lacks its router: the check of the tensors
    // says so.
    layer_spec.is_moe =
        has_router ||
        (experts > 0 && file_.FindTensor(LayerTensorName(layer, "ffn_up.weight")) == nullptr);
    if (!layer_spec.is_moe) {
      WL_RETURN_IF_ERROR(CheckRange(Key("feed_forward_length"), layer_spec.n_ff, 1, kMostFfnWidth));
    }
  }
  if (experts == 0) return absl::OkStatus();
  int64_t used = 0;
  WL_RETURN_IF_ERROR(ReadInt(Key("expert_used_count"), 1, experts, used));
  spec_.moe.expert_count = static_cast<int>(experts);
  spec_.moe.used_count = static_cast<int>(used);
  spec_.moe.renormalise = info_->renormalise;
  return ReadExpertWidths(used);
}

// feed_forward_length as one number for all expert layers, for architectures that take an expert's
// width from it.
absl::Status SpecReader::CheckOneExpertWidth() {
  for (const LayerSpec& layer : spec_.layers) {
    if (!layer.is_moe) continue;
    if (spec_.moe.n_ff_expert == 0) spec_.moe.n_ff_expert = layer.n_ff;
    if (layer.n_ff != spec_.moe.n_ff_expert || layer.n_ff == 0) {
      return Error("key ", Key("feed_forward_length"), " is ", layer.n_ff,
                   " in one expert layer and ", spec_.moe.n_ff_expert,
                   " in another; it must be positive and the same in all");
    }
  }
  return absl::OkStatus();
}

absl::Status SpecReader::ReadExpertWidths(int64_t experts_used) {
  if (info_->experts == Experts::kMaybe) return CheckOneExpertWidth();
  const int64_t n_ff = spec_.layers[0].n_ff;
  int64_t n_ff_expert = n_ff / experts_used;
  const std::string width_key = Key("expert_feed_forward_length");
  std::vector<int64_t> widths(spec_.layers.size(), n_ff_expert);
  WL_RETURN_IF_ERROR(ReadPerLayer(width_key, 1, kMostFfnWidth, widths));
  for (const int64_t width : widths) {
    const char* const origin = file_.Has(width_key) ? "" : " (absent, default)";
    WL_RETURN_IF_ERROR(CheckRange(absl::StrCat(width_key, origin), width, 1, kMostFfnWidth));
    if (width != widths[0]) {
      return Error("key ", width_key, " is ", widths[0], " in one layer and ", width,
                   " in another; it must be the same in all");
    }
  }
  n_ff_expert = widths[0];
  spec_.moe.n_ff_expert = static_cast<int>(n_ff_expert);
  if (!info_->has_shared_expert) return absl::OkStatus();
  int64_t n_ff_shared = n_ff;
  WL_RETURN_IF_ERROR(
      ReadOptionalInt(Key("expert_shared_feed_forward_length"), 1, kMostFfnWidth, n_ff_shared));
  spec_.moe.n_ff_shared = static_cast<int>(n_ff_shared);
  return absl::OkStatus();
}

absl::Status SpecReader::ReadRope() {
  RopeSpec& rope = spec_.rope;
  rope.style = info_->rope;
  int64_t n_rot = spec_.head_dim;
  const std::string rot_key = Key("rope.dimension_count");
  WL_RETURN_IF_ERROR(ReadOptionalInt(rot_key, 1, spec_.head_dim, n_rot));
  if (n_rot % 2 != 0) return Error("key ", rot_key, " is ", n_rot, ", must be even");
  rope.n_rot = static_cast<int>(n_rot);
  WL_RETURN_IF_ERROR(ReadOptionalPositive(Key("rope.freq_base"), rope.freq_base));
  rope.original_context = spec_.context_length;
  WL_RETURN_IF_ERROR(ReadOptionalInt(Key("rope.scaling.original_context_length"), 1, kMostInt32,
                                     rope.original_context));
  WL_RETURN_IF_ERROR(ReadOptionalPositive(Key("rope.scaling.attn_factor"), rope.attn_factor));
  WL_RETURN_IF_ERROR(ReadOptionalPositive(Key("rope.scaling.yarn_attn_factor"), rope.attn_factor));
  WL_RETURN_IF_ERROR(ReadOptionalPositive(Key("rope.scaling.yarn_beta_fast"), rope.yarn_beta_fast));
  WL_RETURN_IF_ERROR(ReadOptionalPositive(Key("rope.scaling.yarn_beta_slow"), rope.yarn_beta_slow));
  WL_RETURN_IF_ERROR(
      ReadOptionalFloat(Key("rope.scaling.yarn_log_multiplier"), 0, rope.yarn_log_multiplier));
  return ReadRopeScaling();
}

absl::Status SpecReader::ReadRopeScaling() {
  RopeSpec& rope = spec_.rope;
  const std::string type_key = Key("rope.scaling.type");
  std::string type = "linear";
  if (file_.Has(type_key)) {
    absl::StatusOr<std::string> stored = file_.GetString(type_key);
    if (!stored.ok()) return AsInvalid(stored.status());
    type = *std::move(stored);
  }
  constexpr std::pair<const char*, RopeScaling> kScalings[] = {
      {"none", RopeScaling::kNone},
      {"linear", RopeScaling::kLinear},
      {"yarn", RopeScaling::kYarn},
      {"longrope", RopeScaling::kLongRope}};
  bool known = false;
  for (const auto& [name, scaling] : kScalings) {
    if (type != name) continue;
    rope.scaling = scaling;
    known = true;
  }
  if (!known) {
    return Error("key ", type_key, " is \"", EscapeForLog(absl::string_view(type).substr(0, 80)),
                 "\", must be none, linear, yarn or longrope");
  }
  double factor = 0;  // 0 stands for 1.
  WL_RETURN_IF_ERROR(ReadOptionalFloat(Key("rope.scale_linear"), 0, factor));
  WL_RETURN_IF_ERROR(ReadOptionalFloat(Key("rope.scaling.factor"), 0, factor));
  const bool factor_counts =
      rope.scaling == RopeScaling::kLinear || rope.scaling == RopeScaling::kYarn;
  rope.factor = factor_counts && factor != 0 ? factor : 1;
  if (rope.scaling == RopeScaling::kYarn && rope.freq_base <= 1) {
    return Error("key ", Key("rope.freq_base"), " is ", rope.freq_base,
                 ", must be above 1 for yarn");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelSpec> ModelSpec::FromGguf(const GgufFile& file) {
  return SpecReader(file).Read();
}

ModelBytes BytesOf(const ModelSpec& spec, const GgufFile& file) {
  ModelBytes bytes;
  bytes.layers.resize(spec.layers.size());
  const auto size_of = [&file](const std::string& name) -> int64_t {
    const GgufTensor* const tensor = file.FindTensor(name);
    return tensor == nullptr ? 0 : static_cast<int64_t>(tensor->byte_count);
  };
  for (const ExpectedTensor& expected : ExpectedTensorsOf(spec, file)) {
    const int64_t count =
        size_of(expected.name) +
        (expected.use == TensorUse::kMatrix ? size_of(CompanionName(expected.name)) : 0);
    switch (expected.place) {
      case TensorPlace::kLayer:
        bytes.layers[static_cast<size_t>(expected.layer)] += count;
        break;
      case TensorPlace::kEmbedding:
        bytes.embedding += count;
        break;
      case TensorPlace::kHead:
        bytes.head += count;
        break;
      case TensorPlace::kDisk:
        bytes.ple_table += count;
        break;
      case TensorPlace::kNowhere:
        break;
      case TensorPlace::kEverywhere:
        break;  // A few hundred bytes on each stage.
    }
  }
  if (spec.tied_embeddings) {
    bytes.head += bytes.embedding;
    bytes.shared_ends = bytes.embedding;
  }
  return bytes;
}

std::string LayerTensorName(int layer, absl::string_view suffix) {
  return absl::StrCat("blk.", layer, ".", suffix);
}

}  // namespace warpline
