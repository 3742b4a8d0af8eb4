#include <xxhash.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_format.h"
#include "model/gguf.h"

namespace warpline {
namespace {

constexpr size_t kSampleBytes = 4096;             // of each tensor
constexpr size_t kPieceBytes = size_t{16} << 20;  // hashed between two releases of pages

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

absl::StatusOr<std::string> FingerprintOf(const GgufFile& file, bool everything) {
  const std::unique_ptr<XXH3_state_t, FreeState> state(XXH3_createState());
  if (state == nullptr) return absl::ResourceExhaustedError("no memory for the fingerprint");
  XXH3_128bits_reset(state.get());
  for (int shard = 0; shard < file.shard_count(); ++shard) {
    const absl::Span<const uint8_t> bytes = file.ShardBytes(shard);
    const uint64_t sizes[] = {bytes.size(), file.HeaderBytes(shard)};
    XXH3_128bits_update(state.get(), sizes, sizeof(sizes));
    const size_t count = everything ? bytes.size() : file.HeaderBytes(shard);
    for (size_t begin = 0; begin < count; begin += kPieceBytes) {
      const size_t piece = std::min(kPieceBytes, count - begin);
      XXH3_128bits_update(state.get(), bytes.data() + begin, piece);
      file.ReleaseBytes(shard, begin, piece);
    }
  }
  if (!everything) {
    for (const GgufTensor& tensor : file.tensors()) {
      const absl::Span<const uint8_t> data = file.Data(tensor);
      XXH3_128bits_update(state.get(), data.data(), std::min(kSampleBytes, data.size()));
    }
  }
  const XXH128_hash_t hash = XXH3_128bits_digest(state.get());
  return absl::StrFormat("%016x%016x", hash.high64, hash.low64);
}

}  // namespace warpline
