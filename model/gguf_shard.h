// The parser of one GGUF file: header, metadata and tensor infos, every number checked. Internal to
// the target `gguf`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "model/gguf.h"
#include "model/gguf_metadata.h"
#include "model/mapped_file.h"

namespace warpline {

constexpr uint64_t kMostGgufTensors = 65536;  // in one file, and in all shards together

// What one file holds. `offset` of the tensors counts from the start of the file; `shard` is left
// 0.
struct GgufShard {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // names may occur twice
  uint64_t header_bytes = 0;        // metadata and infos
  std::vector<std::string> warnings;
};

// `name` is the printable path, which begins every message. What is decoded takes at most
// `free_bytes` more memory than the file has bytes. Errors: InvalidArgument with key or tensor,
// offset, both numbers.
absl::StatusOr<GgufShard> ParseGgufShard(const MappedFile& file, absl::string_view name,
                                         uint64_t free_bytes);

}  // namespace warpline
