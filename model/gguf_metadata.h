// The keys and values of one GGUF file. Internal to the target `gguf`.
#pragma once

#include <cstdint>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "model/gguf.h"
#include "model/gguf_reader.h"

namespace warpline {

using GgufMetadata = absl::flat_hash_map<std::string, GgufValue>;

constexpr int kGgufTypeU32 = 4;

// Reads `count` keys at the reader's place. Errors: InvalidArgument with key, offset and values.
absl::Status ReadGgufMetadata(GgufReader& reader, uint64_t count, GgufMetadata& metadata);

// "u32", "array": for messages.
std::string GgufTypeName(int64_t type);

}  // namespace warpline
