#include "model/model_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/log.h"
#include "base/status.h"
#include "model/model_spec_hybrid.h"

namespace warpline {
namespace {

using Dims = std::vector<int64_t>;

class TensorList {
 public:
  TensorList(const ModelSpec& spec, const GgufFile& file) : spec_(spec), file_(file) {}

  std::vector<ExpectedTensor> Make() {
    AddEnds();
    for (int layer = 0; layer < spec_.n_layer; ++layer) {
      layer_ = layer;
      const LayerSpec& shape = spec_.layers[static_cast<size_t>(layer)];
      if (!IsWide()) AddNorm("attn_norm.weight", spec_.n_embd);
      if (shape.kind == LayerKind::kDeltaNet) {
        AddDeltaNet();
      } else {
        AddAttention(shape);
      }
      AddFfn(shape);
      if (IsWide()) AddHyperConnections();
      if (layer == spec_.ple.layer) AddPle();
    }
    return std::move(list_);
  }

 private:
  void Add(std::string name, Dims dims, TensorUse use, TensorPlace place, bool required) {
    list_.push_back({.name = std::move(name),
                     .dims = std::move(dims),
                     .use = use,
                     .place = place,
                     .layer = layer_,
                     .required = required});
  }
  void AddMatrix(absl::string_view suffix, Dims dims) {
    Add(LayerTensorName(layer_, suffix), std::move(dims), TensorUse::kMatrix, TensorPlace::kLayer,
        true);
  }
  void AddNorm(absl::string_view suffix, int64_t size) {
    Add(LayerTensorName(layer_, suffix), {size}, TensorUse::kVector, TensorPlace::kLayer, true);
  }
  void AddBias(absl::string_view suffix, int64_t size) {
    Add(LayerTensorName(layer_, suffix), {size}, TensorUse::kVector, TensorPlace::kLayer, false);
  }

  // A gamma over all streams; some files keep one row for each stream.
  void AddWideNorm(absl::string_view suffix) {
    AddNorm(suffix, spec_.residual_width);
    list_.back().other_dims = {spec_.n_embd, spec_.hyper.stream_count};
  }
  bool IsWide() const { return spec_.hyper.stream_count > 1; }
  bool LayerHas(absl::string_view suffix) const {
    return file_.FindTensor(LayerTensorName(layer_, suffix)) != nullptr;
  }

  void AddEnds();
  void AddFinalMix();
  void AddDeltaNet();
  void AddHyperConnections();
  void AddPle();
  void AddAttention(const LayerSpec& layer);
  void AddFfn(const LayerSpec& layer);
  void AddExperts();

  const ModelSpec& spec_;
  const GgufFile& file_;
  int layer_ = 0;
  std::vector<ExpectedTensor> list_;
};

void TensorList::AddEnds() {
  const int64_t width = spec_.n_embd;
  const int64_t vocab = spec_.n_vocab;
  const int64_t pairs = spec_.rope.n_rot / 2;
  const bool needs_output = spec_.architecture == Architecture::kQwen2Moe;
  Add("token_embd.weight", {width, vocab}, TensorUse::kMatrix, TensorPlace::kEmbedding, true);
  if (IsWide()) {
    AddFinalMix();
  } else {
    Add("output_norm.weight", {width}, TensorUse::kVector, TensorPlace::kHead, true);
  }
  Add("output.weight", {width, vocab}, TensorUse::kMatrix, TensorPlace::kHead, needs_output);
  if (spec_.architecture == Architecture::kQwen2) {
    Add("output.bias", {vocab}, TensorUse::kVector, TensorPlace::kHead, false);
  }
  // Factors of the file itself go before those of longrope.
  Add("rope_freqs.weight", {pairs}, TensorUse::kFactors, TensorPlace::kEverywhere, false);
  const bool needs_long = spec_.rope.scaling == RopeScaling::kLongRope &&
                          file_.FindTensor("rope_freqs.weight") == nullptr;
  for (const char* const name : {"rope_factors_long.weight", "rope_factors_short.weight"}) {
    Add(name, {pairs}, TensorUse::kFactors, TensorPlace::kEverywhere, needs_long);
  }
}

void TensorList::AddFinalMix() {
  const int64_t wide = spec_.residual_width;
  const int64_t rank = spec_.hyper.low_rank;
  Add("output_hc_norm.weight", {wide}, TensorUse::kVector, TensorPlace::kHead, true);
  list_.back().other_dims = {spec_.n_embd, spec_.hyper.stream_count};
  Add("output_hc_down.weight", {wide, rank}, TensorUse::kMatrix, TensorPlace::kHead, true);
  Add("output_hc_up.weight", {rank, wide}, TensorUse::kMatrix, TensorPlace::kHead, true);
  if (!spec_.ple.present()) return;
  Add("per_layer_token_embd.weight", {spec_.ple.row_width, spec_.ple.row_count}, TensorUse::kMatrix,
      TensorPlace::kDisk, true);
}

void TensorList::AddHyperConnections() {
  const int64_t wide = spec_.residual_width;
  for (const char* const part : {"hc_attn_", "hc_ffn_"}) {
    AddWideNorm(absl::StrCat(part, "norm.weight"));
    AddMatrix(absl::StrCat(part, "down.weight"), {wide, spec_.hyper.low_rank});
    AddMatrix(absl::StrCat(part, "up.weight"), {spec_.hyper.low_rank, wide});
    AddMatrix(absl::StrCat(part, "inject.weight"), {wide, spec_.hyper.stream_count});
  }
}

void TensorList::AddPle() {
  AddMatrix("ple_key.weight", {spec_.n_embd, spec_.residual_width});
  AddMatrix("ple_value.weight", {spec_.n_embd, spec_.n_embd});
  AddWideNorm("ple_norm_key.weight");
  AddWideNorm("ple_norm_query.weight");
  AddWideNorm("ple_norm_conv.weight");
  Add(LayerTensorName(layer_, "ple_conv1d.weight"), {spec_.ple.conv_kernel, spec_.residual_width},
      TensorUse::kVector, TensorPlace::kLayer, true);
}

void TensorList::AddDeltaNet() {
  const DeltaNetSpec& delta = spec_.delta_net;
  const int64_t width = spec_.n_embd;
  const int64_t heads = delta.n_head_value;
  // Older files of one architecture pack projections head by head.
  const bool may_be_packed = spec_.architecture == Architecture::kQwen3Next;
  if (may_be_packed && LayerHas("ssm_in.weight")) {
    AddMatrix("ssm_in.weight", {width, int64_t{delta.qkv_width()} + delta.value_width()});
  } else {
    AddMatrix("attn_qkv.weight", {width, delta.qkv_width()});
    AddMatrix("attn_gate.weight", {width, delta.value_width()});
  }
  if (may_be_packed && !LayerHas("ssm_beta.weight")) {
    AddMatrix("ssm_ba.weight", {width, 2 * heads});
  } else {
    AddMatrix("ssm_beta.weight", {width, heads});
    AddMatrix("ssm_alpha.weight", {width, heads});
  }
  Add(LayerTensorName(layer_, "ssm_conv1d.weight"), {delta.conv_kernel, delta.qkv_width()},
      TensorUse::kVector, TensorPlace::kLayer, true);
  AddNorm("ssm_dt.bias", heads);
  AddNorm("ssm_a", heads);
  AddNorm("ssm_norm.weight", delta.head_dim);
  AddMatrix("ssm_out.weight", {delta.value_width(), width});
}

void TensorList::AddAttention(const LayerSpec& layer) {
  const int64_t width = spec_.n_embd;
  const int64_t q_width = int64_t{layer.n_head} * spec_.head_dim;
  const int64_t kv_width = int64_t{layer.n_head_kv} * spec_.head_dim;
  if (spec_.has_attention_gate) {
    AddMatrix("attn_q.weight", {width, 2 * q_width});
    AddMatrix("attn_k.weight", {width, kv_width});
    AddMatrix("attn_v.weight", {width, kv_width});
  } else if (LayerHas("attn_qkv.weight")) {
    AddMatrix("attn_qkv.weight", {width, q_width + 2 * kv_width});
    AddBias("attn_qkv.bias", q_width + 2 * kv_width);
  } else {
    AddMatrix("attn_q.weight", {width, q_width});
    AddMatrix("attn_k.weight", {width, kv_width});
    AddMatrix("attn_v.weight", {width, kv_width});
    AddBias("attn_q.bias", q_width);
    AddBias("attn_k.bias", kv_width);
    AddBias("attn_v.bias", kv_width);
  }
  AddMatrix("attn_output.weight", {q_width, width});
  if (spec_.architecture == Architecture::kLlama) AddBias("attn_output.bias", width);
  if (spec_.has_qk_norm) {
    AddNorm("attn_q_norm.weight", spec_.head_dim);
    AddNorm("attn_k_norm.weight", spec_.head_dim);
  }
  if (spec_.architecture == Architecture::kGemma3) AddNorm("post_attention_norm.weight", width);
  const IndexerSpec& indexer = spec_.indexer;
  if (indexer.n_head == 0) return;
  const size_t first = list_.size();
  AddMatrix("indexer.q_proj.weight", {width, int64_t{indexer.n_head} * indexer.head_dim});
  AddMatrix("indexer.k_proj.weight", {width, indexer.head_dim});
  AddNorm("indexer.q_norm.weight", indexer.head_dim);
  AddNorm("indexer.k_norm.weight", indexer.head_dim);
  if (layer.compress_ratio > 0) return;
  for (size_t i = first; i < list_.size(); ++i) list_[i].place = TensorPlace::kNowhere;
}

void TensorList::AddFfn(const LayerSpec& layer) {
  const int64_t width = spec_.n_embd;
  if (!IsWide()) {
    AddNorm(IsHybrid(spec_.architecture) ? "post_attention_norm.weight" : "ffn_norm.weight", width);
  }
  if (spec_.architecture == Architecture::kGemma3) AddNorm("post_ffw_norm.weight", width);
  if (layer.is_moe) return AddExperts();
  AddMatrix("ffn_gate.weight", {width, layer.n_ff});
  AddMatrix("ffn_up.weight", {width, layer.n_ff});
  AddMatrix("ffn_down.weight", {layer.n_ff, width});
  if (spec_.architecture != Architecture::kLlama) return;
  AddBias("ffn_gate.bias", layer.n_ff);
  AddBias("ffn_up.bias", layer.n_ff);
  AddBias("ffn_down.bias", width);
}

void TensorList::AddExperts() {
  const MoeSpec& moe = spec_.moe;
  const int64_t width = spec_.n_embd;
  AddMatrix("ffn_gate_inp.weight", {width, moe.expert_count});
  if (IsHybrid(spec_.architecture) && LayerHas("ffn_gate_up_exps.weight")) {
    AddMatrix("ffn_gate_up_exps.weight", {width, int64_t{2} * moe.n_ff_expert, moe.expert_count});
  } else {
    AddMatrix("ffn_gate_exps.weight", {width, moe.n_ff_expert, moe.expert_count});
    AddMatrix("ffn_up_exps.weight", {width, moe.n_ff_expert, moe.expert_count});
  }
  AddMatrix("ffn_down_exps.weight", {moe.n_ff_expert, width, moe.expert_count});
  if (moe.n_ff_shared == 0) return;
  AddMatrix("ffn_gate_inp_shexp.weight", {width});
  AddMatrix("ffn_gate_shexp.weight", {width, moe.n_ff_shared});
  AddMatrix("ffn_up_shexp.weight", {width, moe.n_ff_shared});
  AddMatrix("ffn_down_shexp.weight", {moe.n_ff_shared, width});
}

std::string DimsText(absl::Span<const int64_t> dims) {
  return absl::StrCat("{", absl::StrJoin(dims, ","), "}");
}

bool HasDims(const GgufTensor& tensor, const Dims& dims) {
  for (size_t i = 0; i < 4; ++i) {
    if (tensor.dims[i] != (i < dims.size() ? dims[i] : 1)) return false;
  }
  return true;
}

class TensorChecker {
 public:
  explicit TensorChecker(const GgufFile& file)
      : file_(file), printable_path_(EscapeForLog(file.path())) {}

  absl::Status Check(const ExpectedTensor& expected) {
    const GgufTensor* const tensor = file_.FindTensor(expected.name);
    if (tensor == nullptr) {
      if (!expected.required) return absl::OkStatus();
      return Error("tensor ", expected.name, " is missing, expected with dimensions ",
                   DimsText(expected.dims));
    }
    used_.insert(tensor->name);
    const bool other_shape = !expected.other_dims.empty() && HasDims(*tensor, expected.other_dims);
    if (!other_shape && !HasDims(*tensor, expected.dims)) {
      return WrongDims(*tensor, DimsText(expected.dims));
    }
    WL_RETURN_IF_ERROR(CheckType(*tensor, expected.use));
    if (expected.use == TensorUse::kFactors) return CheckFactors(*tensor);
    if (expected.use == TensorUse::kMatrix) return CheckCompanion(expected);
    return absl::OkStatus();
  }

  // One line for the draft (MTP) blocks, which stand behind the layers.
  void WarnOfDraftBlocks(const ModelSpec& spec, std::vector<std::string>& warnings) {
    size_t count = 0;
    for (int block = 0; block < spec.draft_block_count; ++block) {
      const std::string prefix = LayerTensorName(spec.n_layer + block, "");
      for (const GgufTensor& tensor : file_.tensors()) {
        if (!absl::StartsWith(tensor.name, prefix)) continue;
        used_.insert(tensor.name);
        ++count;
      }
    }
    if (count == 0) return;
    warnings.push_back(
        absl::StrCat(printable_path_, ": ", spec.draft_block_count,
                     spec.draft_block_count == 1 ? " draft block (MTP), " : " draft blocks (MTP), ",
                     count, " tensors, ignored: drafting is not supported"));
  }

  // One line for all tensors that nothing uses.
  void WarnOfUnused(std::vector<std::string>& warnings) const {
    constexpr size_t kMostNames = 5;
    std::vector<std::string> names;
    size_t count = 0;
    for (const GgufTensor& tensor : file_.tensors()) {
      if (used_.contains(tensor.name)) continue;
      if (++count <= kMostNames) names.push_back(tensor.name);
    }
    if (count == 0) return;
    warnings.push_back(absl::StrCat(
        printable_path_, ": ", count, count == 1 ? " tensor is" : " tensors are",
        " unknown and ignored: ", absl::StrJoin(names, ", "), count > kMostNames ? ", .." : ""));
  }

 private:
  template <typename... Args>
  absl::Status Error(const Args&... args) const {
    return absl::InvalidArgumentError(absl::StrCat(printable_path_, ": ", args...));
  }

  absl::Status WrongDims(const GgufTensor& tensor, const std::string& expected) const {
    return Error("tensor ", tensor.name, " has dimensions ",
                 DimsText(absl::MakeConstSpan(tensor.dims, static_cast<size_t>(tensor.n_dims))),
                 ", expected ", expected);
  }

  absl::Status CheckType(const GgufTensor& tensor, TensorUse use) const {
    const QuantTypeInfo& type = InfoOf(tensor.type);
    if (use == TensorUse::kMatrix) {
      if (type.is_weight) return absl::OkStatus();
      return Error("tensor ", tensor.name, " has type ", type.name, ", which cannot be a weight");
    }
    const bool is_f32 = tensor.type == QuantType::kF32;
    if (use == TensorUse::kFactors) {
      if (is_f32) return absl::OkStatus();
      return Error("tensor ", tensor.name, " has type ", type.name, ", must be F32");
    }
    if (is_f32 || tensor.type == QuantType::kF16 || tensor.type == QuantType::kBF16)
      return absl::OkStatus();
    return Error("tensor ", tensor.name, " has type ", type.name, ", must be F32, F16 or BF16");
  }

  // The angles are divided by them.
  absl::Status CheckFactors(const GgufTensor& tensor) const {
    const absl::Span<const uint8_t> data = file_.Data(tensor);
    for (size_t i = 0; i * sizeof(float) < data.size(); ++i) {
      float factor;
      std::memcpy(&factor, data.data() + i * sizeof(float), sizeof(float));
      if (!std::isfinite(factor) || factor <= 0) {
        return Error("tensor ", tensor.name, ": value ", i, " is ", factor,
                     ", must be positive and finite");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckCompanion(const ExpectedTensor& expected) {
    const GgufTensor* const scale = file_.FindTensor(CompanionName(expected.name));
    if (scale == nullptr) return absl::OkStatus();
    used_.insert(scale->name);
    const int64_t experts = expected.dims.size() == 3 ? expected.dims[2] : 1;
    if (!HasDims(*scale, {1}) && !HasDims(*scale, {experts})) {
      return WrongDims(*scale, experts == 1 ? "{1}" : absl::StrCat("{1} or {", experts, "}"));
    }
    if (scale->type != QuantType::kF32) {
      return Error("tensor ", scale->name, " has type ", InfoOf(scale->type).name, ", must be F32");
    }
    return absl::OkStatus();
  }

  const GgufFile& file_;
  const std::string printable_path_;
  absl::flat_hash_set<absl::string_view> used_;
};

}  // namespace

std::vector<ExpectedTensor> ExpectedTensorsOf(const ModelSpec& spec, const GgufFile& file) {
  return TensorList(spec, file).Make();
}

std::string CompanionName(const std::string& weight_name) {
  return absl::StrCat(absl::StripSuffix(weight_name, ".weight"), ".scale");
}

absl::Status CheckTensors(const ModelSpec& spec, const GgufFile& file,
                          std::vector<std::string>& warnings) {
  TensorChecker checker(file);
  for (const ExpectedTensor& expected : ExpectedTensorsOf(spec, file)) {
    WL_RETURN_IF_ERROR(checker.Check(expected));
  }
  checker.WarnOfDraftBlocks(spec, warnings);
  checker.WarnOfUnused(warnings);
  return absl::OkStatus();
}

}  // namespace warpline
