// The n-gram table as a copy in memory.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "worker/ple/ngram_reader.h"

namespace warpline {

// Reads the whole table. FailedPrecondition, with both figures, when the memory that is available
// now does not hold it.
absl::StatusOr<std::unique_ptr<NgramReader>> OpenRamReader(const NgramTable& table);

}  // namespace warpline
