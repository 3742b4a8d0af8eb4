// What a model is: its architecture and dimensions from GGUF metadata, checked, and the tensors
// that each layer needs.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/gguf.h"
#include "model/layer_range.h"
#include "model/ple_spec.h"

namespace warpline {

enum class Architecture {
  kLlama,
  kQwen2,
  kQwen3,
  kQwen2Moe,
  kQwen3Moe,
  kGemma3,
  kQwen3Next,
  kQwen35,
  kQwen35Moe,
  kQwen4Exp
};

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
  // IMROPE: how many pairs belong to each position axis; all 0: one axis. For text three axes carry
  // the position and the fourth, e, carries 0.
  std::array<int, 4> sections = {};
};

// The experts of a layer that has ffn_gate_inp.
struct MoeSpec {
  int expert_count = 0;
  int used_count = 0;
  int n_ff_expert = 0;
  int n_ff_shared = 0;  // 0: no shared expert
  bool renormalise = false;
};

// families.md 10 and 11, qwen4exp.md 5. Keys and values have the same head size.
struct DeltaNetSpec {
  int conv_kernel = 0;
  int head_dim = 0;            // S
  int n_head_key = 0;          // Hk
  int n_head_value = 0;        // Hv, a multiple of Hk
  bool grouped_heads = false;  // value head h uses key head h / (Hv / Hk), otherwise h mod Hk
  bool sigmoid_gate = false;   // of the output; otherwise silu

  int key_width() const { return n_head_key * head_dim; }
  int value_width() const { return n_head_value * head_dim; }
  int qkv_width() const { return 2 * key_width() + value_width(); }
  // What a layer keeps for each slot, in f32 values.
  int64_t column_values() const { return int64_t{conv_kernel - 1} * qkv_width(); }
  int64_t memory_values() const { return int64_t{value_width()} * head_dim; }
};

// qwen4exp.md 4: the wide residual.
struct HyperSpec {
  int stream_count = 1;  // C; 1: a plain residual
  int low_rank = 0;
};

// qwen4exp.md 6.3: which blocks of tokens a row attends to.
struct IndexerSpec {
  int n_head = 0;
  int head_dim = 0;
  int token_budget = 0;  // B
};

enum class LayerKind {
  kAttention,
  kSlidingAttention,  // sees the last ModelSpec::window tokens, rotates by rope_local
  kDeltaNet,
};

struct LayerSpec {
  LayerKind kind = LayerKind::kAttention;
  int n_head = 0;
  int n_head_kv = 0;
  int n_ff = 0;
  bool is_moe = false;
  int compress_ratio = 0;  // of sparse attention; 0: dense
};

struct ModelSpec {
  Architecture architecture = Architecture::kLlama;
  std::string architecture_name;  // "qwen3moe"
  std::string name;               // general.name, or the file name
  int n_layer = 0;                // without draft blocks
  int draft_block_count = 0;      // MTP blocks behind the layers, which nothing uses
  int n_embd = 0;
  int n_vocab = 0;
  int64_t context_length = 0;
  // Values of a row between layers and stages: n_embd, or stream_count times that.
  int residual_width = 0;
  int head_dim = 0;  // of keys and values
  double attention_scale = 0;
  double rms_eps = 1e-6;
  RopeSpec rope;
  RopeSpec rope_local;  // of layers with a sliding window
  int window = 0;       // of such layers
  MoeSpec moe;
  DeltaNetSpec delta_net;
  HyperSpec hyper;
  IndexerSpec indexer;  // n_head is 0 where the architecture has none
  PleSpec ple;
  double embedding_factor = 1;
  double logit_soft_cap = 0;      // 0: none
  std::vector<LayerSpec> layers;  // [n_layer]
  bool tied_embeddings = false;   // no output.weight: the head uses token_embd
  bool has_qk_norm = false;
  bool has_attention_gate = false;  // attn_q holds a gate beside each head
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
  int64_t ple_table = 0;        // n-gram rows: on disk, no part of the layer that uses them
  int64_t embedding = 0;        // token_embd, needed by the first stage
  int64_t head =
      0;  // final norm and output (or token_embd again when tied), needed by the last stage
  int64_t shared_ends = 0;  // of embedding and head, held once by a stage that has both
};
ModelBytes BytesOf(const ModelSpec& spec, const GgufFile& file);

// "blk.7.attn_q.weight".
std::string LayerTensorName(int layer, absl::string_view suffix);

}  // namespace warpline
