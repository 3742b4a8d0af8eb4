// Rows of the n-gram table (PLE), which is too big for memory: read from disk, decoded to f32.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/gguf.h"
#include "model/ple_spec.h"

namespace warpline {

// Where the table lies: in one shard, at any offset.
struct NgramTable {
  std::string path;
  uint64_t offset = 0;  // of row 0, from the start of the file
  uint64_t file_bytes = 0;
  QuantType type = QuantType::kF32;
  int row_width = 0;  // values
  int64_t row_count = 0;

  int64_t row_bytes() const { return RowBytes(type, row_width); }
};

// InvalidArgument when the file has no such table.
absl::StatusOr<NgramTable> FindNgramTable(const GgufFile& file, const PleSpec& spec);

enum class PleIo {
  kAuto,    // ram for a table that fits into cache_bytes; else the faster of direct and mmap, as
            // measured at start and again while running
  kDirect,  // io_uring with O_DIRECT, past the page cache
  kMmap,    // the page cache
  kRam,     // a copy of the whole table
};
constexpr char kPleIoNames[][7] = {"auto", "direct", "mmap", "ram"};
absl::StatusOr<PleIo> ParsePleIo(absl::string_view name);

struct NgramReaderOptions {
  PleIo io = PleIo::kAuto;
  int64_t cache_bytes = int64_t{256} << 20;  // for rows kept in memory; 0: none
  double max_wait_seconds = 30;              // longest wait of one Fetch
  double probe_pause_seconds = 60;           // most between two measurements of the modes
  double slow_seconds = 1;                   // a Fetch that waits longer is announced in the log
};

// Totals since the reader was opened, and the mode now.
struct NgramCounters {
  uint64_t rows_requested = 0;
  uint64_t cache_hits = 0;
  uint64_t rows_read = 0;  // from the table, prefetched ones included
  uint64_t mode_changes = 0;
  uint64_t errors = 0;              // Fetches that failed
  uint64_t slow_batches = 0;        // Fetches that waited longer than slow_seconds
  uint64_t consecutive_errors = 0;  // Fetches failed since the last that had to read and succeeded
  PleIo mode = PleIo::kAuto;        // in use now
};

// Owned and used by the executor's thread; `counters` may be called from any. Readings happen on
// threads of the reader's own.
class NgramReader {
 public:
  virtual ~NgramReader() = default;

  // Decodes `rows` in their order to out[rows.size(), row_width]. Rows may repeat. Waits for the
  // disk, at most max_wait_seconds. Errors: InvalidArgument for a row outside of the table;
  // DataLoss naming file and offset for an I/O error or a short read; DeadlineExceeded when the
  // disk is too slow. After an error the reader goes on working.
  virtual absl::Status Fetch(absl::Span<const int64_t> rows, absl::Span<float> out) = 0;
  // Begins to read the rows of a coming Fetch and returns at once; one call for each coming Fetch.
  // Never fails: what could not be read shows in Fetch.
  virtual void Prefetch(absl::Span<const int64_t> rows) = 0;
  virtual NgramCounters counters() const = 0;
};

// Errors: NotFound and the like when the file cannot be opened, DataLoss when its size is not that
// of `table`, FailedPrecondition when a copy does not fit into memory.
absl::StatusOr<std::unique_ptr<NgramReader>> OpenNgramReader(const NgramTable& table,
                                                             const NgramReaderOptions& options);

}  // namespace warpline
