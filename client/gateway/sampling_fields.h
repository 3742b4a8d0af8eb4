// The sampling fields that chat and plain completions share.
#pragma once

#include "client/gateway/request_fields.h"
#include "proto/inference.pb.h"

namespace warpline {

constexpr size_t kMaxStopStrings = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxLogitBiases = 1024;

// Fills sampling, max_tokens, stop and ignore_eos. `seed` may be any 64-bit integer: -1 is drawn
// anew, another negative one is taken as its two's complement.
void ParseSamplingFields(RequestFields& fields, v1::GenerateRequest& request);

// Refuses what a client may ask for and this release cannot do.
void RefuseUnsupported(RequestFields& fields);

}  // namespace warpline
