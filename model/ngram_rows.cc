#include "model/ngram_rows.h"

#include <algorithm>

#include "base/status.h"

namespace warpline {

void NgramContext::Append(absl::Span<const int32_t> ids) {
  ids_.insert(ids_.end(), ids.end() - std::min(ids.size(), reach_), ids.end());
  if (ids_.size() > reach_) ids_.erase(ids_.begin(), ids_.end() - reach_);
}

void NgramRows(const PleSpec& spec, const NgramContext& context, absl::Span<const int32_t> ids,
               absl::Span<int64_t> out) {
  WL_CHECK(out.size() == ids.size() * spec.head_count());
  // What stands before the context does not exist, which reads as eos and cuts like eos.
  std::vector<int32_t> tokens(spec.ngram_size - 1 - context.ids().size(), spec.eos_token_id);
  tokens.insert(tokens.end(), context.ids().begin(), context.ids().end());
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  int64_t* row = out.data();
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t* const newest = &tokens[i + spec.ngram_size - 1];
    uint64_t mixed = static_cast<uint64_t>(*newest) * spec.multipliers[0];
    bool cut = false;
    for (int back = 1; back < spec.ngram_size; ++back) {
      cut = cut || newest[-back] == spec.eos_token_id;
      const int32_t id = cut ? spec.eos_token_id : newest[-back];
      mixed ^= static_cast<uint64_t>(id) * spec.multipliers[back];
      const int first_head = (back - 1) * spec.heads_per_ngram;
      for (int head = first_head; head < first_head + spec.heads_per_ngram; ++head) {
        *row++ = static_cast<int64_t>(mixed % spec.moduli[head] + spec.offsets[head]);
      }
    }
  }
}

}  // namespace warpline
