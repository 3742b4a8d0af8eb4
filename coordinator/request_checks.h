// Checks of what clients send: every value is compared with the model's limits before it can reach
// a worker. Errors are InvalidArgument and name the field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/inference.pb.h"
#include "proto/stage.pb.h"

namespace warpline {

// Options with their defaults filled in. A missing seed is drawn; `forbidden_ids` get a bias of
// minus infinity.
absl::StatusOr<v1::Sampling> CheckSampling(const v1::SamplingOptions& options, int32_t vocab_size,
                                           absl::Span<const int32_t> forbidden_ids);

// At least one id, all within the vocabulary. `field` is named in errors.
absl::Status CheckTokenIds(absl::Span<const int32_t> ids, int32_t vocab_size,
                           const std::string& field);

absl::StatusOr<std::vector<std::string>> CheckStops(const v1::GenerateRequest& request);

// How many tokens may be generated: what was asked for (absent: as many as fit), clipped so that
// prompt and answer fit into the context. A prompt that leaves no room is refused with code
// context_length_exceeded and both numbers.
absl::StatusOr<int64_t> CheckLength(const v1::GenerateRequest& request, int64_t prompt_count,
                                    int64_t context_length);

}  // namespace warpline
