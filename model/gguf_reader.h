// A cursor over one mapped GGUF file: checked reads, a memory budget, and messages with file and
// offset. Internal to the target `gguf`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/mapped_file.h"

namespace warpline {

inline absl::string_view AsText(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class GgufReader {
 public:
  // `name` is the printable path; both must outlive the reader. Decoded values may take
  // `free_bytes` more memory than the bytes of the file that were read so far.
  GgufReader(const MappedFile& file, absl::string_view name, uint64_t free_bytes)
      : file_(file), bytes_(file.bytes()), name_(name), free_bytes_(free_bytes) {}

  absl::string_view name() const { return name_; }
  absl::Span<const uint8_t> bytes() const { return bytes_; }
  uint64_t size() const { return bytes_.size(); }
  uint64_t position() const { return position_; }
  uint64_t remaining() const { return bytes_.size() - position_; }

  // InvalidArgument "file: ...".
  template <typename... Args>
  absl::Status Error(const Args&... args) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": ", args...));
  }
  absl::Status Truncated(absl::string_view what, uint64_t wanted) const;

  // Counts memory that a decoded value of `read_bytes` bytes in the file will take; call before
  // allocating it. `what` names the value.
  absl::Status Charge(uint64_t cost, uint64_t read_bytes, absl::string_view what);

  // The next number. The caller has checked that its bytes are there.
  template <typename T>
  T Take() {
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    Advance(sizeof(T));
    return value;
  }

  template <typename T>
  absl::Status Read(T& value, absl::string_view what) {
    if (remaining() < sizeof(T)) return Truncated(what, sizeof(T));
    value = Take<T>();
    return absl::OkStatus();
  }

  // A length and that many bytes, charged and copied to `text`. `what` makes the name for messages;
  // a function, because a name for each of 250,000 tokens would cost more than reading them.
  template <typename MakeName>
  absl::Status ReadText(std::string& text, uint64_t most_bytes, MakeName what) {
    if (remaining() < sizeof(uint64_t)) return Truncated(what(), sizeof(uint64_t));
    const uint64_t begin = position_;
    const auto length = Take<uint64_t>();
    if (length > remaining()) return TooLong(what(), begin, length);
    if (length > most_bytes) return AboveLimit(what(), begin, length, most_bytes);
    if (length > text.capacity()) {
      if (absl::Status status = Charge(length + kStringOverhead, length, what()); !status.ok())
        return status;
      text.reserve(length);
    }
    CopyText(text, length);
    return absl::OkStatus();
  }

  // Gives back the resident pages before the cursor.
  void ReleasePages();

 private:
  static constexpr uint64_t kStringOverhead = 32;  // of the allocator, rounding included
  static constexpr uint64_t kReleaseBytes = uint64_t{2} << 20;

  void Advance(uint64_t length) {
    position_ += length;
    if (position_ - released_ >= kReleaseBytes) ReleasePages();
  }
  void CopyText(std::string& text, uint64_t length);
  absl::Status TooLong(absl::string_view what, uint64_t begin, uint64_t length) const;
  absl::Status AboveLimit(absl::string_view what, uint64_t begin, uint64_t length,
                          uint64_t most) const;

  const MappedFile& file_;
  const absl::Span<const uint8_t> bytes_;
  const absl::string_view name_;
  const uint64_t free_bytes_;
  uint64_t position_ = 0;
  uint64_t released_ = 0;  // pages before this were given back
  uint64_t charged_ = 0;
};

}  // namespace warpline
