// Which rows of the n-gram table (PLE) a token reads: the hash of a token and its predecessors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "model/ple_spec.h"

namespace warpline {

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
