// A regular file mapped into memory for reading, and the SIGBUS handler for files that shrink under
// their map.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace warpline {

// Immutable; the bytes stay mapped while the object lives. May be read from any thread.
class MappedFile {
 public:
  // Opens without blocking, so that a FIFO or a device is refused at once. Errors: NotFound,
  // PermissionDenied, FailedPrecondition when it is no regular file or cannot be mapped; all name
  // the file.
  static absl::StatusOr<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  absl::Span<const uint8_t> bytes() const { return {data_, size_}; }
  // Gives up the resident pages that lie wholly inside the range; a later access reads the file
  // again.
  void Release(size_t begin, size_t length) const;

 private:
  MappedFile(const uint8_t* data, size_t size, std::string printable_path);

  const uint8_t* data_;
  size_t size_;
  std::string printable_path_;  // The fault handler reads it, so it must not move while the map is
                                // registered.
  int fault_slot_ = -1;         // Place in the fault handler's table; -1: none.
};

// From now on a bus error inside a MappedFile (its file was truncated or its disk failed) prints
// one line with the file's name on stderr and ends the process with the exit code for model files.
// Other bus errors keep their default action. Call once in main, before threads start.
void InstallMappedFileFaultHandler();

}  // namespace warpline
