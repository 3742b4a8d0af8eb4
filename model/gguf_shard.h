// The parser of one GGUF file: header, metadata and tensor infos, every number checked. Internal to
// the target `gguf`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "model/gguf.h"
#include "model/mapped_file.h"

namespace warpline {

using GgufMetadata = absl::flat_hash_map<std::string, GgufValue>;

// What one file holds. `offset` of the tensors counts from the start of the file; `shard` is left
// 0.
struct GgufShard {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;
  uint64_t header_bytes = 0;  // metadata and infos
  std::vector<std::string> warnings;
};

// `name` is the printable path, which begins every message. Errors: InvalidArgument with key or
// tensor, offset, both numbers. Uses at most 64 MiB beyond the size of the file, whatever the file
// claims.
absl::StatusOr<GgufShard> ParseGgufShard(const MappedFile& file, absl::string_view name);

// "u32", "array": for messages.
std::string GgufTypeName(int64_t type);

}  // namespace warpline
