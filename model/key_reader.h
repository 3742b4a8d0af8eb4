// Reads metadata keys of one architecture with their bounds. Internal to the target `model_spec`.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/log.h"
#include "base/status.h"
#include "model/gguf.h"

namespace warpline {

// Above what any real model has; they keep all later products inside 64 bits.
constexpr int64_t kMostLayers = 512;
constexpr int64_t kMostWidth = 1 << 20;
constexpr int64_t kMostFfnWidth = 1 << 24;
constexpr int64_t kMostHeads = 1 << 14;
constexpr int64_t kMostHeadDim = 1 << 13;
constexpr int64_t kMostExperts = 1 << 16;
constexpr int64_t kMostInt32 = std::numeric_limits<int32_t>::max();

// All errors are InvalidArgument and begin with the file's path.
class KeyReader {
 public:
  explicit KeyReader(const GgufFile& file)
      : file_(file), printable_path_(EscapeForLog(file.path())) {}

  // The architecture's name, which keys begin with.
  void set_prefix(std::string prefix) { prefix_ = std::move(prefix); }
  // Arrays with an element for each layer must have that many, draft blocks included.
  void set_block_count(int64_t count) { block_count_ = static_cast<size_t>(count); }

  const GgufFile& file() const { return file_; }

  std::string Key(absl::string_view suffix) const { return absl::StrCat(prefix_, ".", suffix); }

  template <typename... Args>
  absl::Status Error(const Args&... args) const {
    return absl::InvalidArgumentError(absl::StrCat(printable_path_, ": ", args...));
  }
  // A missing key is a wrong file, too.
  static absl::Status AsInvalid(const absl::Status& status) {
    return absl::InvalidArgumentError(status.message());
  }

  absl::Status CheckRange(const std::string& key, int64_t value, int64_t least,
                          int64_t most) const {
    if (value >= least && value <= most) return absl::OkStatus();
    return Error("key ", key, " is ", value, ", must be ", least, " to ", most);
  }

  absl::Status ReadInt(const std::string& key, int64_t least, int64_t most, int64_t& value) const {
    const absl::StatusOr<int64_t> stored = file_.GetInt(key);
    if (!stored.ok()) return AsInvalid(stored.status());
    value = *stored;
    return CheckRange(key, value, least, most);
  }
  // Leaves the default in `value` when the key is absent; the default is checked, too.
  absl::Status ReadOptionalInt(const std::string& key, int64_t least, int64_t most,
                               int64_t& value) const {
    if (file_.Has(key)) return ReadInt(key, least, most, value);
    return CheckRange(absl::StrCat(key, " (absent, default)"), value, least, most);
  }

  // Leaves the default in `value` when the key is absent.
  absl::Status ReadOptionalFloat(const std::string& key, double least, double& value) const {
    if (!file_.Has(key)) return absl::OkStatus();
    const absl::StatusOr<double> stored = file_.GetFloat(key);
    if (!stored.ok()) return AsInvalid(stored.status());
    if (!std::isfinite(*stored) || *stored < least) {
      return Error("key ", key, " is ", *stored, ", must be finite and at least ", least);
    }
    value = *stored;
    return absl::OkStatus();
  }
  absl::Status ReadOptionalPositive(const std::string& key, double& value) const {
    return ReadOptionalFloat(key, std::numeric_limits<float>::denorm_min(), value);
  }

  // One number for all layers or an array with one for each; absent: `value` stays.
  absl::Status ReadPerLayer(const std::string& key, int64_t least, int64_t most,
                            std::vector<int64_t>& values) const {
    const GgufValue* const stored = file_.Find(key);
    if (stored == nullptr) return absl::OkStatus();
    if (!absl::holds_alternative<GgufArray>(stored->value)) {
      int64_t value = 0;
      WL_RETURN_IF_ERROR(ReadInt(key, least, most, value));
      values.assign(values.size(), value);
      return absl::OkStatus();
    }
    const absl::StatusOr<absl::Span<const int64_t>> array = file_.GetInts(key);
    if (!array.ok()) return AsInvalid(array.status());
    if (array->size() < std::max(values.size(), block_count_)) {
      return Error("key ", key, " has ", array->size(), " elements, but ", Key("block_count"),
                   " is ", std::max(values.size(), block_count_));
    }
    for (size_t layer = 0; layer < values.size(); ++layer) {
      WL_RETURN_IF_ERROR(
          CheckRange(absl::StrCat(key, "[", layer, "]"), (*array)[layer], least, most));
      values[layer] = (*array)[layer];
    }
    return absl::OkStatus();
  }

 private:
  const GgufFile& file_;
  const std::string printable_path_;
  std::string prefix_;
  size_t block_count_ = 0;
};

}  // namespace warpline
