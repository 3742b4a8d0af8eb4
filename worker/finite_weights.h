// The search for weights that are no numbers, which --verify makes before a model is served.
#pragma once

#include "absl/status/status.h"
#include "model/gguf.h"

namespace warpline {

// Decodes every weight of the file; reads all of it. DataLoss names the file, the tensor and the
// block in which a scale or a value is NaN or infinite; FailedPrecondition on a processor that the
// decoders do not know.
absl::Status CheckFiniteWeights(const GgufFile& file);

}  // namespace warpline
