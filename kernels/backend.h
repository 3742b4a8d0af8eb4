// What a device can do: memory, order, and the ops that layer code in worker/layers is written
// over. The CPU back end is the reference. A row's result depends on nothing but that row (and the
// cache of its sequence): the same bits for any chunk size, batch mix and thread count.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/quant.h"

namespace warpline {

constexpr int kPageTokens = 64;  // KV pages; attention works in tiles at these absolute borders

// Device memory. Owned by whoever allocated it; must not outlive its back end.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual int64_t byte_count() const = 0;
};

// A matrix of f32 rows inside a buffer; the usual activation. Borrowed: lives as long as its
// buffer.
struct Tensor {
  Buffer* buffer = nullptr;
  int64_t row_count = 0;
  int64_t width = 0;   // values in a row
  int64_t stride = 0;  // values from one row to the next, >= width
  int64_t first = 0;   // offset of the first value
};

// A loaded weight matrix, or `expert_count` of them. Layout is the back end's business.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual QuantType type() const = 0;
  virtual int64_t input_width() const = 0;   // k: dims[0], the contiguous axis
  virtual int64_t output_width() const = 0;  // n: dims[1]
  virtual int64_t expert_count() const = 0;  // 1 for plain matrices
};

struct WeightArgs {
  QuantType type = QuantType::kF32;
  int64_t input_width = 0;
  int64_t output_width = 1;
  int64_t expert_count = 1;
  absl::Span<const uint8_t> data;  // as in the file; copied (and repacked) before the call returns
  // Used by Linear, DenseFfn and Head alone, so that it may be arranged for them at once.
  bool only_multiplied = false;
  // Per-matrix factors of the product (`<name>.scale`): empty, one value, or one for each expert.
  absl::Span<const float> scales;
};

// A matrix with its optional additive bias of output_width values; the scale lives in the weight: y
// = (W x) scale + bias.
struct LinearWeight {
  const Weight* weight = nullptr;
  const Buffer* bias = nullptr;  // f32 values
};

// Memory of a device of its own.
struct DeviceMemory {
  int64_t total = 0;
  int64_t free = 0;
};

enum class KvType { kF32, kF16, kQ8_0 };

// Keys and values of one layer for all sequences: page_count pages of kPageTokens positions.
// kQ8_0: int8 with one f16 scale for each 32 values inside a head (16 or 8 where head_dim is no
// multiple).
class KvCache {
 public:
  virtual ~KvCache() = default;
};

struct KvCacheArgs {
  KvType type = KvType::kF16;
  int n_head = 0;  // that will ask; 0: not known yet
  int n_head_kv = 0;
  int head_dim = 0;
  int64_t page_count = 0;
};

// f32 values that a layer keeps for each slot's sequence beside keys and values: convolution
// columns, DeltaNet memory. All zero at first.
class SlotState {
 public:
  virtual ~SlotState() = default;
  // Zeroes one slot. InvalidArgument when there is no such slot.
  virtual absl::Status Reset(int kv_slot) = 0;
};

struct SlotStateArgs {
  int slot_count = 0;
  int64_t value_count = 0;  // of one slot
};

enum class StepKind { kPrompt, kDecode };

// Consecutive rows of one sequence in a step. Row r stands at position first_position + r.
struct StepSequence {
  int kv_slot = 0;
  int64_t first_position = 0;
  int row_count = 0;
  absl::Span<const int32_t>
      pages;  // page ids of the sequence; they cover first_position + row_count positions
};

// Rows of a step are the sequences' rows one after another; token_ids has one entry for each.
struct StepArgs {
  StepKind kind = StepKind::kPrompt;
  int bucket = 0;  // planned length class, chooses paths on devices that need it
  absl::Span<const int32_t> token_ids;
  absl::Span<const StepSequence> sequences;
};

struct EmbedArgs {
  const Weight* table = nullptr;  // [n_vocab rows, n_embd]; its scale applies
  float factor = 1;               // gemma: sqrt(n_embd)
  int copies = 1;                 // side by side: the streams of a wide residual
  Tensor out;                     // [rows, copies * n_embd]
};

struct NormConvertArgs {
  Tensor in;                      // undefined afterwards when `accumulate`
  const Buffer* gamma = nullptr;  // f32 [width]
  float eps = 0;
  Tensor out;               // may be `in`, unless `accumulate`
  bool accumulate = false;  // out += instead of out =
};

struct LinearArgs {
  LinearWeight matrix;
  Tensor in;                // [rows, input_width]
  Tensor out;               // [rows, output_width]
  bool accumulate = false;  // out += instead of out =
};

// How angles follow from positions: theta_i = position * inverse_frequency[i], cos and sin times
// `magnitude`, in double. Scaling kinds (linear, YaRN, longrope, frequency factors) are folded into
// inverse_frequency by the layer code.
struct RopeArgs {
  bool interleaved = false;                    // pairs (2i, 2i+1); otherwise (i, i + n_rot/2)
  absl::Span<const double> inverse_frequency;  // [n_rot / 2]; empty: no rotation
  double magnitude = 1;
};

// Takes projected q, k, v: per-head RMSNorm of q and k (when gammas are given), RoPE of q and k,
// store k and v at the rows' positions. q is changed in place.
struct QkvRopeStoreArgs {
  Tensor q;  // [rows, n_head * head_dim]
  Tensor k;  // [rows, n_head_kv * head_dim], changed
  Tensor v;  // [rows, n_head_kv * head_dim]
  int n_head = 0;
  int n_head_kv = 0;
  int head_dim = 0;
  const Buffer* q_gamma = nullptr;  // f32 [head_dim] or null
  const Buffer* k_gamma = nullptr;
  float eps = 0;
  RopeArgs rope;
  KvCache* cache = nullptr;
};

// Causal attention of the step's rows over their sequences' pages. Head h reads KV head h / (n_head
// / n_head_kv).
struct AttentionArgs {
  Tensor q;    // [rows, n_head * head_dim]
  Tensor out;  // [rows, n_head * head_dim]
  int n_head = 0;
  int n_head_kv = 0;
  int head_dim = 0;
  float scale = 0;
  int64_t window = 0;  // > 0: a row sees only the last `window` positions, itself included
  const KvCache* cache = nullptr;
  // Unless its buffer is null: [rows, n_head * head_dim], out is multiplied by its sigmoid.
  Tensor gate;
};

enum class Activation { kSilu, kGeluTanh };

// out (+)= down( act(gate x) . (up x) )
struct DenseFfnArgs {
  LinearWeight gate;
  LinearWeight up;
  LinearWeight down;
  Activation activation = Activation::kSilu;
  Tensor in;
  Tensor out;
  bool accumulate = false;
};

// Routing to combine: p = softmax(router x), top `used_count` by p (ties: the lower index; NaN
// never wins over a number), weights p (divided by max(sum, 2^-14) when renormalise), out (+)= sum
// of w_e down_e(silu(gate_e x) . (up_e x)) in descending p; plus sigmoid(shared_gate . x) *
// shared(x) when there is a shared expert.
struct MoeFfnArgs {
  LinearWeight router;           // [n_embd, expert_count]
  const Weight* gate = nullptr;  // expert matrices; null when gate_up is given
  const Weight* up = nullptr;
  const Weight* gate_up = nullptr;  // fused: rows 0..F-1 gate, F..2F-1 up
  const Weight* down = nullptr;
  int used_count = 0;
  bool renormalise = false;
  const Weight* shared_gate_input = nullptr;  // [n_embd, 1]; null: no shared expert
  LinearWeight shared_gate;
  LinearWeight shared_up;
  LinearWeight shared_down;
  Tensor in;
  Tensor out;
  bool accumulate = false;
};

// Which blocks of `ratio` consecutive tokens a row attends to. For each token: q heads are normed
// and rotated; k is kept, and when a block is complete, the mean of its keys is normed, rotated at
// its first position and stored. A row at position p has floor((p + 1) / ratio) complete blocks. If
// these are at most `most_blocks`, it sees everything up to itself; otherwise the `most_blocks`
// with the largest sum over heads of relu(q . key) (ties: the lower index; NaN counts as 0), and
// the tokens behind the last complete block.
struct QsaIndexSelectArgs {
  Tensor q;  // [rows, n_head * head_dim], projected, changed
  Tensor k;  // [rows, head_dim], projected
  int n_head = 0;
  int head_dim = 0;
  int ratio = 0;
  int64_t most_blocks = 0;
  const Buffer* q_gamma = nullptr;  // f32 [head_dim]
  const Buffer* k_gamma = nullptr;
  float eps = 0;
  RopeArgs rope;
  SlotState* raw_keys = nullptr;  // [ratio - 1, head_dim] of the block that is not complete
  // f32 [page_count, PooledKeysOfPage(ratio), head_dim]: a block's key lies in the page of its last
  // token.
  Buffer* pooled_keys = nullptr;
  // i32 [rows, 1 + most_blocks]: -1, or most_blocks and then as many ascending block indices.
  Buffer* selection = nullptr;
};

constexpr int PooledKeysOfPage(int ratio) { return (kPageTokens + ratio - 1) / ratio; }

// Attention over what QsaIndexSelect chose for the same rows.
struct QsaAttendArgs {
  AttentionArgs attention;  // without window
  int ratio = 0;
  int64_t most_blocks = 0;
  const Buffer* selection = nullptr;
};

// A wide residual is `stream_count` streams of n_embd values side by side. xn = each stream
// rms-normed on its own, times gamma; g = sigmoid(up silu((down xn) / stream_count)); out = the
// streams' mean of xn . g; inject_out = inject xn.
struct HyperMixArgs {
  Tensor wide;  // [rows, stream_count * n_embd]
  int stream_count = 0;
  const Buffer* gamma = nullptr;  // f32 [stream_count * n_embd]
  LinearWeight down;
  LinearWeight up;
  LinearWeight inject;  // without weight: no inject_out
  float eps = 0;
  Tensor out;         // [rows, n_embd]
  Tensor inject_out;  // [rows, stream_count]
};

// stream c of wide += 2 sigmoid(inject_c / stream_count) y
struct HyperCombineArgs {
  Tensor wide;    // [rows, stream_count * n_embd]
  Tensor y;       // [rows, n_embd]
  Tensor inject;  // [rows, stream_count]
  int stream_count = 0;
};

// Adds what the n-gram table says to a wide residual: kn and qn = key ngrams and the residual,
// normed stream by stream; s = kn . qn / sqrt(n_embd) for each stream; gated = sigmoid(sgn(s)
// sqrt(max(|s|, 1e-6))) (value ngrams); wide += gated + silu(causal convolution of the normed gated
// values, with `dilation` rows between its taps).
struct PleArgs {
  Tensor ngrams;  // [rows, n_embd]: the table's rows of each token side by side
  Tensor wide;    // [rows, stream_count * n_embd]
  int stream_count = 0;
  LinearWeight key;
  LinearWeight value;
  const Buffer* key_gamma = nullptr;  // f32 [stream_count * n_embd], as the next two
  const Buffer* query_gamma = nullptr;
  const Buffer* conv_gamma = nullptr;
  int conv_kernel = 0;
  int dilation = 0;
  const Buffer* kernel = nullptr;  // f32 [conv_kernel, stream_count * n_embd], oldest first
  float eps = 0;
  SlotState* columns = nullptr;  // [(conv_kernel - 1) * dilation, stream_count * n_embd]
};

// What stands before a Gated DeltaNet's recurrence: a causal convolution with SiLU over the columns
// that the slot kept and the step's rows; unit length for each head of q and k (x / sqrt(sum x^2 +
// eps)), q also divided by sqrt(head_dim); beta = sigmoid(beta); alpha = exp(a softplus(alpha +
// dt)), the decay. The slots keep the last columns.
struct DeltaPrepArgs {
  Tensor qkv;    // [rows, (2 n_head_key + n_head_value) head_dim]: heads of q, of k, of v
  Tensor out;    // the same shape, elsewhere
  Tensor beta;   // [rows, n_head_value], in place
  Tensor alpha;  // [rows, n_head_value], in place
  int n_head_key = 0;
  int n_head_value = 0;
  int head_dim = 0;
  int conv_kernel = 0;
  const Buffer* kernel = nullptr;  // f32 [conv_kernel, width of qkv], the oldest column's first
  const Buffer* a = nullptr;       // f32 [n_head_value]
  const Buffer* dt = nullptr;      // f32 [n_head_value]
  float eps = 0;
  SlotState* columns = nullptr;  // [conv_kernel - 1, width of qkv], oldest first
};

// The recurrence, token by token: for each value head, with memory M [head_dim, head_dim] (key,
// value dim), M = decay M, d = beta (v - M^T k), M += k d^T, o = M^T q; then o = rms_norm(o) gamma
// times sigmoid(z) or silu(z).
struct DeltaRunArgs {
  Tensor qkv;    // as DeltaPrep left it
  Tensor beta;   // [rows, n_head_value]
  Tensor decay;  // [rows, n_head_value]
  Tensor z;      // [rows, n_head_value head_dim]
  Tensor out;    // [rows, n_head_value head_dim]
  int n_head_key = 0;
  int n_head_value = 0;
  int head_dim = 0;
  bool grouped_heads = false;  // head h reads key head h / (n_head_value / n_head_key), otherwise
                               // h mod n_head_key
  bool sigmoid_gate = false;
  const Buffer* gamma = nullptr;  // f32 [head_dim]
  float eps = 0;
  SlotState* memory = nullptr;  // [n_head_value, head_dim, head_dim]
};

// Logits of chosen rows of the step. Rows are given as indices into `in`.
struct HeadArgs {
  LinearWeight matrix;
  Tensor in;  // [rows, n_embd], already normalised
  absl::Span<const int32_t> rows;
  float soft_cap = 0;  // > 0: cap * tanh(logit / cap)
  Tensor out;          // [rows.size(), n_vocab]
};

// A change of one logit: the bias is added, where -infinity forbids the token for good; then, with
// a count, come the query's penalties for a token that occurs `count` times.
struct LogitEdit {
  int32_t token_id = 0;
  int32_t count = 0;
  float bias = 0;
};

constexpr int kMaxCandidates = 256;

// What is asked about one row of logits.
struct CandidateQuery {
  absl::Span<const LogitEdit> edits;  // ascending token ids; those of one token apply in order
  float repetition_penalty = 1;       // divides a logit above 0, multiplies any other
  float presence_penalty = 0;         // is subtracted
  float frequency_penalty = 0;        // is subtracted `count` times
  double temperature = 0;             // > 0: weight_sum is asked for
  int least = 1;                      // so many candidates are wanted,
  int most = 1;                       // and up to kMaxCandidates where they cost little
};

struct Candidate {
  float logit = 0;
  int32_t token_id = 0;
};

struct RowCandidates {
  bool all_finite = true;  // before the edits; otherwise nothing below is set
  float largest = 0;       // after the edits; -infinity when no token is left
  double weight_sum = 0;   // of exp((logit - largest) / temperature), in an order that is fixed
  // In descending order, ties by the lower id, at least `least` unless fewer logits are finite.
  std::vector<Candidate> candidates;
};

// Edits rows of logits in place, in double and clamped to finite floats, and finds the largest.
struct TopCandidatesArgs {
  Tensor logits;  // [rows, n_vocab]
  absl::Span<const CandidateQuery> queries;
  absl::Span<RowCandidates> out;  // complete when the call returns
};

// One device. All calls come from the one thread that owns it (the stage executor); each op is
// complete, or ordered before later ones, when it returns. Errors of ops: Internal (a device fault)
// or InvalidArgument (a bug in the caller).
class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string Describe()
      const = 0;  // one line for the log: device, instruction set, threads

  // Sentences about what is slower on this device than it might be, to be logged: those that the
  // calls since the last time have found.
  virtual std::vector<std::string> TakeNotices() { return {}; }

  // Memory. Everything is allocated at start.
  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t byte_count) = 0;
  virtual absl::Status Upload(absl::Span<const uint8_t> bytes, Buffer& buffer,
                              int64_t offset_bytes) = 0;
  virtual absl::Status Download(const Buffer& buffer, int64_t offset_bytes,
                                absl::Span<uint8_t> bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Weight>> LoadWeight(const WeightArgs& args) = 0;
  virtual absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheArgs& args) = 0;
  virtual absl::StatusOr<std::unique_ptr<SlotState>> CreateSlotState(const SlotStateArgs& args) = 0;
  // May be called once with the weights of an expert layer, without tensors, when they have all
  // been loaded: the device then arranges them now and not in the first step.
  virtual absl::Status PrepareMoe(const MoeFfnArgs& /*args*/) { return absl::OkStatus(); }
  // Scratch for steps of up to this many rows, widths and contexts; call once, before the first
  // step.
  virtual absl::Status Reserve(int64_t max_rows, int64_t max_context) = 0;
  // None where steps work in the memory of the machine. Where there is some, the first steps of a
  // shape allocate in it, so a stage runs such steps before the first request.
  virtual absl::StatusOr<std::optional<DeviceMemory>> Memory() const { return std::nullopt; }

  // Order. Ids, positions and page tables of the step live in the back end until EndStep.
  virtual absl::Status BeginStep(const StepArgs& args) = 0;
  // False where the device has the ops of the step that was begun, because an equal one came
  // before: then none need be called between BeginStep and EndStep.
  virtual bool NeedsOps() const { return true; }
  virtual absl::Status EndStep() = 0;
  // Instead of EndStep where an op of the step has failed: nothing of the step is relied on.
  virtual void AbandonStep() { (void)EndStep(); }

  virtual absl::Status Embed(const EmbedArgs& args) = 0;
  virtual absl::Status NormConvert(const NormConvertArgs& args) = 0;
  virtual absl::Status Linear(const LinearArgs& args) = 0;
  virtual absl::Status QkvRopeStore(const QkvRopeStoreArgs& args) = 0;
  virtual absl::Status Attention(const AttentionArgs& args) = 0;
  virtual absl::Status DenseFfn(const DenseFfnArgs& args) = 0;
  virtual absl::Status MoeFfn(const MoeFfnArgs& args) = 0;
  virtual absl::Status QsaIndexSelect(const QsaIndexSelectArgs& args) = 0;
  virtual absl::Status QsaAttend(const QsaAttendArgs& args) = 0;
  virtual absl::Status HyperMix(const HyperMixArgs& args) = 0;
  virtual absl::Status HyperCombine(const HyperCombineArgs& args) = 0;
  virtual absl::Status Ple(const PleArgs& args) = 0;
  virtual absl::Status DeltaPrep(const DeltaPrepArgs& args) = 0;
  virtual absl::Status DeltaRun(const DeltaRunArgs& args) = 0;
  virtual absl::Status Head(const HeadArgs& args) = 0;
  // After EndStep, as Head may be.
  virtual absl::Status TopCandidates(const TopCandidatesArgs& args) = 0;
};

}  // namespace warpline
