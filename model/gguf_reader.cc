#include "model/gguf_reader.h"

namespace warpline {

absl::Status GgufReader::Truncated(absl::string_view what, uint64_t wanted) const {
  return Error(what, " at offset ", position_, ": needs ", wanted, " bytes, but only ", remaining(),
               " remain of the ", size(), " bytes of the file (truncated?)");
}

absl::Status GgufReader::TooLong(absl::string_view what, uint64_t begin, uint64_t length) const {
  return Error(what, " at offset ", begin, ": length ", length, " is beyond the end of the file, ",
               remaining(), " bytes remain (truncated?)");
}

absl::Status GgufReader::AboveLimit(absl::string_view what, uint64_t begin, uint64_t length,
                                    uint64_t most) const {
  return Error(what, " at offset ", begin, ": length ", length, " is above the limit of ", most,
               " bytes");
}

absl::Status GgufReader::Charge(uint64_t cost, uint64_t read_bytes, absl::string_view what) {
  const uint64_t limit = free_bytes_ + position_ + read_bytes;
  if (cost > limit || charged_ > limit - cost) {
    return Error(what, " at offset ", position_, ": would bring the memory for metadata to ",
                 charged_, " + ", cost, " bytes, the limit is ", limit);
  }
  charged_ += cost;
  return absl::OkStatus();
}

void GgufReader::CopyText(std::string& text, uint64_t length) {
  text.clear();
  while (length > 0) {
    const uint64_t piece = std::min(length, kReleaseBytes);
    text.append(reinterpret_cast<const char*>(bytes_.data()) + position_, piece);
    Advance(piece);
    length -= piece;
  }
}

void GgufReader::ReleasePages() {
  file_.Release(released_, position_ - released_);
  released_ = position_;
}

}  // namespace warpline
