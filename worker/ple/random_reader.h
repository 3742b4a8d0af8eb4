// Reads many small pieces of one file, each way of doing so behind one interface.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "worker/ple/ngram_reader.h"

namespace warpline {

struct ReadPiece {
  uint64_t offset = 0;  // in the file
  uint8_t* to = nullptr;
};

// Used by one thread at a time; instances are independent of each other.
class RandomReader {
 public:
  virtual ~RandomReader() = default;

  // Fills `to` of every piece with one row's bytes. `pieces` ascend by offset. Errors: DataLoss
  // naming file and offset for an I/O error or a short read; then any piece may be unfilled.
  virtual absl::Status Read(absl::Span<const ReadPiece> pieces) = 0;
};

// Opens a reader of the table's rows. FailedPrecondition, saying what is missing, when this
// machine or file system cannot do it.
absl::StatusOr<std::unique_ptr<RandomReader>> OpenDirectReader(const NgramTable& table);
absl::StatusOr<std::unique_ptr<RandomReader>> OpenMappedReader(const NgramTable& table);

// One of the two by its mode, direct or mmap.
using RandomReaderOpener =
    std::function<absl::StatusOr<std::unique_ptr<RandomReader>>(const NgramTable&, PleIo)>;

// What both say when a read of `wanted` bytes at `offset` fails (`result` is -errno) or ends early.
absl::Status ReadError(const NgramTable& table, uint64_t offset, int64_t wanted, int64_t result);

}  // namespace warpline
