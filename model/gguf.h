// Reads GGUF v2 and v3 files: metadata, tensor infos, and a memory map of the tensor data, over one
// or several shards.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "absl/types/variant.h"
#include "model/quant.h"

namespace warpline {

// An array value keeps its elements widened: integers and bools as int64 (u64 as its bit pattern),
// floats as double.
struct GgufArray {
  int element_type = 0;  // GGUF value type number
  absl::variant<std::vector<int64_t>, std::vector<double>, std::vector<std::string>> elements;
};

struct GgufValue {
  int type = 0;  // GGUF value type number: 4 u32, 5 i32, 6 f32, 7 bool, 8 string, 9 array, ...
  absl::variant<int64_t, uint64_t, double, bool, std::string, GgufArray> value;
};

struct GgufTensor {
  std::string name;
  QuantType type = QuantType::kF32;
  int64_t dims[4] = {1, 1, 1, 1};  // GGUF order: dims[0] is contiguous
  int n_dims = 0;
  int shard = 0;
  uint64_t offset = 0;  // from the start of its shard file
  uint64_t byte_count = 0;
};

// One model, all of its shards. Immutable after Open; its data stays mapped while the object lives.
class GgufFile {
 public:
  // `path` is the file, or shard 1 of N. Every number in it is checked.
  // Errors: InvalidArgument with file, key or tensor, offset and both numbers; NotFound when a file
  // is missing; FailedPrecondition when it is no regular file; PermissionDenied.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const std::string& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::string& path() const;  // as given to Open
  // Null when absent.
  const GgufValue* Find(absl::string_view key) const;
  bool Has(absl::string_view key) const { return Find(key) != nullptr; }

  // Typed access. NotFound when absent, InvalidArgument (naming key, stored type, value) when it
  // does not fit.
  absl::StatusOr<int64_t> GetInt(absl::string_view key) const;  // any integer type whose value fits
  absl::StatusOr<double> GetFloat(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<std::string> GetString(absl::string_view key) const;
  absl::StatusOr<absl::Span<const std::string>> GetStrings(absl::string_view key) const;
  absl::StatusOr<absl::Span<const int64_t>> GetInts(
      absl::string_view key) const;  // array of any integers or bools
  absl::StatusOr<absl::Span<const double>> GetFloats(
      absl::string_view key) const;  // array of floats

  absl::Span<const GgufTensor> tensors() const;
  const GgufTensor* FindTensor(absl::string_view name) const;
  // The tensor's bytes in the memory map. A file that shrinks under the map raises SIGBUS on
  // access; see model/mapped_file.h for how programs turn that into a clean exit.
  absl::Span<const uint8_t> Data(const GgufTensor& tensor) const;
  // Tells the kernel that a tensor's pages are not needed any more.
  void Release(const GgufTensor& tensor) const;
  // The file of one shard as a whole, and how many of its first bytes are metadata and infos.
  int shard_count() const;
  const std::string& ShardPath(int shard) const;
  absl::Span<const uint8_t> ShardBytes(int shard) const;
  uint64_t HeaderBytes(int shard) const;
  // As Release, for the bytes [begin, begin + length) of a shard.
  void ReleaseBytes(int shard, uint64_t begin, uint64_t length) const;
  // Things worth one warning line each: trailing bytes and the like.
  absl::Span<const std::string> warnings() const;
  uint64_t total_file_bytes() const;

 private:
  struct Impl;
  explicit GgufFile(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// 32 hex digits: XXH3-128 over each shard's header bytes (metadata and infos), the file sizes and
// the first 4 KiB of every tensor. `everything` hashes all bytes (--verify).
absl::StatusOr<std::string> FingerprintOf(const GgufFile& file, bool everything = false);

}  // namespace warpline
