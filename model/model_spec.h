// What a model is: its architecture and dimensions from GGUF metadata, checked, and the tensors
// that each layer needs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/gguf.h"
#include "model/layer_range.h"

namespace warpline {

enum class Architecture { kLlama, kQwen2, kQwen3, kQwen2Moe, kQwen3Moe };

enum class RopeStyle { kNone, kNorm, kNeox };  // pairs (2i, 2i+1) or (i, i + n_rot/2)
enum class RopeScaling { kNone, kLinear, kYarn, kLongRope };

// How positions turn into angles. Factors of single frequencies live in tensors (rope_freqs.weight,
// rope_factors_long.weight, rope_factors_short.weight).
struct RopeSpec {
  RopeStyle style = RopeStyle::kNorm;
  RopeScaling scaling = RopeScaling::kNone;
  int n_rot = 0;
  double freq_base = 10000;
  double factor = 1;             // s; freq_scale = 1/s
  int64_t original_context = 0;  // for YaRN and longrope
  double attn_factor = 1;        // after yarn_attn_factor
  double yarn_beta_fast = 32;
  double yarn_beta_slow = 1;
  double yarn_log_multiplier = 0;
};

// The experts of a layer that has ffn_gate_inp.
struct MoeSpec {
  int expert_count = 0;
  int used_count = 0;
  int n_ff_expert = 0;
  int n_ff_shared = 0;  // 0: no shared expert
  bool renormalise = false;
};

struct LayerSpec {
  int n_head = 0;
  int n_head_kv = 0;
  int n_ff = 0;
  bool is_moe = false;
};

struct ModelSpec {
  Architecture architecture = Architecture::kLlama;
  std::string architecture_name;  // "qwen3moe"
  std::string name;               // general.name, or the file name
  int n_layer = 0;
  int n_embd = 0;
  int n_vocab = 0;
  int64_t context_length = 0;
  int head_dim = 0;  // of keys and values
  double rms_eps = 1e-6;
  RopeSpec rope;
  MoeSpec moe;
  std::vector<LayerSpec> layers;  // [n_layer]
  bool tied_embeddings = false;   // no output.weight: the head uses token_embd
  bool has_qk_norm = false;
  std::vector<std::string>
      warnings;  // things worth one log line each, such as tensors that are not used

  // Reads and checks everything, the shape and type of every tensor included. Errors are
  // InvalidArgument naming key or tensor and both values; an unknown architecture lists the known
  // ones.
  static absl::StatusOr<ModelSpec> FromGguf(const GgufFile& file);
};

// Where the bytes are, for the split plan: each layer's weights, and the tensors of the ends.
struct ModelBytes {
  std::vector<int64_t> layers;  // [n_layer]
  int64_t embedding = 0;        // token_embd, needed by the first stage
  int64_t head =
      0;  // output_norm and output (or token_embd again when tied), needed by the last stage
};
ModelBytes BytesOf(const ModelSpec& spec, const GgufFile& file);

// "blk.7.attn_q.weight".
std::string LayerTensorName(int layer, absl::string_view suffix);

}  // namespace warpline
