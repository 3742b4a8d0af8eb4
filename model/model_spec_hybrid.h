// The metadata of gemma3 and of the architectures with recurrent layers. Internal to the target
// `model_spec`.
#pragma once

#include "absl/status/status.h"
#include "model/key_reader.h"
#include "model/model_spec.h"

namespace warpline {

bool IsHybrid(Architecture architecture);  // has recurrent layers
bool HasDraftBlocks(Architecture architecture);

// Fills in what these architectures have beyond the others; nothing for the others. Dimensions,
// heads, experts and rope are read already.
absl::Status ReadHybridKeys(const KeyReader& keys, ModelSpec& spec);

}  // namespace warpline
