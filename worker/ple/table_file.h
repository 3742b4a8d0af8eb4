// The file of an n-gram table, opened and checked.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "worker/ple/ngram_reader.h"

namespace warpline {

// Opens for reading with `extra_flags` added. Errors: NotFound, FailedPrecondition when the flags
// are not supported there, DataLoss when the file's size is not what it was or the table does not
// lie inside.
absl::StatusOr<UniqueFd> OpenTableFile(const NgramTable& table, int extra_flags);

// Reads `bytes` bytes at `offset` through the page cache. DataLoss naming file and offset.
absl::Status ReadFully(const NgramTable& table, int fd, uint64_t offset, uint8_t* to,
                       int64_t bytes);

}  // namespace warpline
