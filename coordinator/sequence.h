// A sequence: one request's tokens and how far the stages have got with them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/clock.h"
#include "coordinator/cache_allocator.h"
#include "proto/stage.pb.h"

namespace warpline {

enum class Verdict {
  kContinue,
  kStop,        // the answer ends here: an end-of-generation token or a stop string
  kSlowReader,  // the client reads too slowly: the sequence is given up
};

enum class FinishKind { kStop, kLength };

// Who gets what a sequence gives. All methods are called by the engine thread and must not block;
// what they collect goes out with Flush, after the next step has been sent.
class SequenceSink {
 public:
  virtual ~SequenceSink() = default;
  // The sequence waits in the queue or runs: nothing is wrong with it so far.
  virtual void OnAccepted() = 0;
  // Tokens of the prompt that are in the cache.
  virtual void OnPromptProgress(int64_t prompt_done) { (void)prompt_done; }
  virtual Verdict OnToken(int32_t token_id) {
    (void)token_id;
    return Verdict::kContinue;
  }
  // Rows of little-endian float32 logits, in order.
  virtual void OnLogits(v1::LogitRows rows) { (void)rows; }
  // True: no further step is sent for the sequence until Engine::Resume.
  virtual bool Blocked() const { return false; }
  // The last call but Flush; once. `kind` matters when the status is OK.
  virtual void OnFinished(const absl::Status& status, FinishKind kind) = 0;
  virtual void Flush() = 0;
};

// What a request asks of the engine.
struct SequenceRequest {
  std::vector<int32_t> tokens;  // The prompt: at least one, all within the vocabulary.
  v1::Sampling sampling;
  int64_t max_tokens = 0;    // To generate; prompt and these fit into the context. 0: evaluation.
  int64_t logits_from = -1;  // Evaluation: logits of the rows from this position on; -1: none.
  int64_t decode_from = std::numeric_limits<int64_t>::max();  // Rows from here go by decode steps.
  std::shared_ptr<SequenceSink> sink;
};

// Owned and used by the engine thread. The counts are exact; all else is a function of them.
struct Sequence {
  uint64_t id = 0;
  SequenceRequest request;      // Its tokens have moved to `tokens`.
  std::vector<int32_t> tokens;  // The exact history: the prompt, then what was drawn.
  int64_t prompt_count = 0;
  int64_t scheduled_count = 0;  // Rows that steps have carried, at most one beyond `tokens`.
  int64_t cached_count = 0;     // Rows that went through every stage.
  int64_t logit_rows = 0;       // Rows of logits that have come.
  uint64_t last_step_id = 0;
  SlotGrant slot;               // Valid while it runs.
  std::vector<uint32_t> pages;  // In the order of positions; all that it can ever need.
  int64_t pages_sent = 0;
  bool closing = false;  // Close was sent: waits for the last stage's word.
  bool is_warm_up = false;
  SteadyTime progress_at;  // When it came, later when its last token did.

  int64_t token_count() const { return static_cast<int64_t>(tokens.size()); }
  int64_t generated_count() const { return token_count() - prompt_count; }
  // Rows before it go in prompt chunks.
  int64_t prompt_end() const {
    return std::min(prompt_count, std::max<int64_t>(0, request.decode_from));
  }
  // Most rows that it will ever have in the cache: the last token drawn is never fed.
  int64_t most_rows() const { return prompt_count + std::max<int64_t>(0, request.max_tokens - 1); }
  bool has_slot() const { return slot.generation != 0; }
  // All its rows are sent and the last stage draws the next token.
  bool awaits_token() const { return request.max_tokens > 0 && scheduled_count >= token_count(); }
  // The row of the token that is being drawn has a place in the cache: it is not the last one.
  bool may_run_ahead() const { return awaits_token() && token_count() < most_rows(); }
  int64_t expected_logit_rows() const {
    return request.logits_from < 0 ? 0 : prompt_count - request.logits_from;
  }
};

}  // namespace warpline
