// The slots of an edge in memory that both processes of it have mapped.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/unique_fd.h"

namespace warpline {

// A mapped range of bytes.
class Mapping {
 public:
  Mapping(void* data, size_t byte_count)
      : data_(static_cast<uint8_t*>(data)), byte_count_(byte_count) {}
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint8_t* data() const { return data_; }
  size_t byte_count() const { return byte_count_; }

 private:
  uint8_t* data_;
  size_t byte_count_;
};

// The sender's end: an anonymous file (memfd). It never has a name, in /dev/shm or elsewhere, so a
// killed process cannot leave anything behind; the receiver finds it as /proc/<pid>/fd/<fd>. Its
// size is sealed, so neither end can make the other one fault.
class SharedSlots {
 public:
  // `slot_bytes` is a multiple of 4. ResourceExhausted when there is no memory.
  static absl::StatusOr<std::unique_ptr<SharedSlots>> Create(int slot_count, int64_t slot_bytes);

  int fd() const { return fd_.get(); }
  // 16 random bytes at the file's beginning: the proof that the receiver has opened this very file.
  const std::string& token() const { return token_; }
  absl::Span<float> slot(int index) const;

 private:
  SharedSlots(UniqueFd fd, std::string token, std::unique_ptr<Mapping> mapping, int64_t slot_bytes);

  const UniqueFd fd_;
  const std::string token_;
  const std::unique_ptr<Mapping> mapping_;
  const int64_t slot_bytes_;
};

struct SharedSlotsLocation {
  pid_t pid = 0;
  int fd = -1;
  absl::string_view token;
  int slot_count = 0;
  int64_t slot_bytes = 0;
};

// The receiver's end: the same memory, for reading.
class SharedSlotsView {
 public:
  // FailedPrecondition when the file cannot be opened from here (another host or container) or is
  // not the one described: token, size, owner or seals differ.
  static absl::StatusOr<std::unique_ptr<SharedSlotsView>> Map(const SharedSlotsLocation& location);

  absl::Span<const float> slot(int index) const;

 private:
  SharedSlotsView(std::unique_ptr<Mapping> mapping, int64_t slot_bytes);

  const std::unique_ptr<Mapping> mapping_;
  const int64_t slot_bytes_;
};

}  // namespace warpline
