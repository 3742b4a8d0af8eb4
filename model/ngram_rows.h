// Which rows of the n-gram table (PLE) a token reads: the hash of a token and its predecessors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "model/gguf.h"

namespace warpline {

// The name of the table, [row_width, table_rows] in GGUF order.
constexpr char kNgramTableName[] = "per_layer_token_embd.weight";

// The n-gram embedding of one layer, from the keys `<arch>.ple.*`.
struct PleSpec {
  int layer = 0;            // 0-based; the only layer that reads the table
  int ngram_size = 0;       // N: orders 2..N are hashed
  int heads_per_ngram = 0;  // heads of each order
  int conv_kernel = 0;
  int32_t eos_token_id = 0;    // cuts n-grams
  int32_t image_token_id = 0;  // stands for positions with an embedding instead of a token
  int row_width = 0;           // values in a row of the table
  int64_t table_rows = 0;
  std::vector<uint64_t> multipliers;       // [ngram_size]
  std::vector<uint64_t> head_offsets;      // [head_count()]: first row of each head
  std::vector<uint64_t> head_vocab_sizes;  // [head_count()]: rows of each head

  int head_count() const { return (ngram_size - 1) * heads_per_ngram; }
  // Columns of the convolution's history.
  int history_columns() const { return (conv_kernel - 1) * ngram_size; }

  // Nothing when the model has no such layer (`ple.layers` absent or empty). `prefix` is the
  // architecture's name. Errors: InvalidArgument naming the key or the table and both values.
  static absl::StatusOr<std::optional<PleSpec>> FromGguf(const GgufFile& file,
                                                         const std::string& prefix, int n_embd,
                                                         int n_vocab, int n_layer);
};

// The ids that stand before the next token of one sequence, as far back as an n-gram reaches.
// Copyable: a copy is a snapshot to go back to.
class NgramContext {
 public:
  explicit NgramContext(const PleSpec& spec) : reach_(spec.ngram_size - 1) {}

  // The last ids, oldest first; fewer than N-1 only at the start of a sequence.
  absl::Span<const int32_t> ids() const { return ids_; }
  void Append(absl::Span<const int32_t> ids);
  void Clear() { ids_.clear(); }

 private:
  size_t reach_;
  std::vector<int32_t> ids_;
};

// The rows of `ids`, consecutive tokens that follow those of `context`: out[ids.size(),
// head_count()], heads in order. `context` is not changed; Append the ids when they have been run.
void NgramRows(const PleSpec& spec, const NgramContext& context, absl::Span<const int32_t> ids,
               absl::Span<int64_t> out);

}  // namespace warpline
