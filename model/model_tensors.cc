#include "model/model_tensors.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/log.h"
#include "base/status.h"

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
      AddAttention(spec_.layers[static_cast<size_t>(layer)]);
      AddFfn(spec_.layers[static_cast<size_t>(layer)]);
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

  void AddEnds();
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
  Add("output_norm.weight", {width}, TensorUse::kVector, TensorPlace::kHead, true);
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

void TensorList::AddAttention(const LayerSpec& layer) {
  const int64_t width = spec_.n_embd;
  const int64_t q_width = int64_t{layer.n_head} * spec_.head_dim;
  const int64_t kv_width = int64_t{layer.n_head_kv} * spec_.head_dim;
  AddNorm("attn_norm.weight", width);
  if (file_.FindTensor(LayerTensorName(layer_, "attn_qkv.weight")) != nullptr) {
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
}

void TensorList::AddFfn(const LayerSpec& layer) {
  const int64_t width = spec_.n_embd;
  AddNorm("ffn_norm.weight", width);
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
  AddMatrix("ffn_gate_exps.weight", {width, moe.n_ff_expert, moe.expert_count});
  AddMatrix("ffn_up_exps.weight", {width, moe.n_ff_expert, moe.expert_count});
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
    if (!HasDims(*tensor, expected.dims)) return WrongDims(*tensor, DimsText(expected.dims));
    WL_RETURN_IF_ERROR(CheckType(*tensor, expected.use));
    if (expected.use == TensorUse::kFactors) return CheckFactors(*tensor);
    if (expected.use == TensorUse::kMatrix) return CheckCompanion(expected);
    return absl::OkStatus();
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
  checker.WarnOfUnused(warnings);
  return absl::OkStatus();
}

}  // namespace warpline
