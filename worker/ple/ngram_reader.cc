#include "worker/ple/ngram_reader.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "worker/ple/ram_reader.h"
#include "worker/ple/random_reader.h"
#include "worker/ple/table_reader.h"

namespace warpline {
namespace {

constexpr char kTableName[] = "per_layer_token_embd.weight";

}  // namespace

absl::StatusOr<NgramTable> FindNgramTable(const GgufFile& file, const PleSpec& spec) {
  const GgufTensor* const tensor = file.FindTensor(kTableName);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat(EscapeForLog(file.path()), ": tensor ", kTableName, " is missing"));
  }
  return NgramTable{.path = file.ShardPath(tensor->shard),
                    .offset = tensor->offset,
                    .file_bytes = file.ShardBytes(tensor->shard).size(),
                    .type = tensor->type,
                    .row_width = spec.row_width,
                    .row_count = spec.row_count};
}

absl::StatusOr<PleIo> ParsePleIo(absl::string_view name) {
  for (const PleIo io : {PleIo::kAuto, PleIo::kDirect, PleIo::kMmap, PleIo::kRam}) {
    if (name == kPleIoNames[static_cast<int>(io)]) return io;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no such way to read n-gram rows: ", EscapeForLog(name)));
}

absl::StatusOr<std::unique_ptr<NgramReader>> OpenNgramReader(const NgramTable& table,
                                                             const NgramReaderOptions& options) {
  // A small table may fill the memory that was granted to a cache: then nothing is left to read.
  const bool fits_cache = table.row_count * table.row_bytes() <= options.cache_bytes;
  if (options.io == PleIo::kRam || (options.io == PleIo::kAuto && fits_cache)) {
    return OpenRamReader(table);
  }
  return TableReader::Open(table, options, [](const NgramTable& of, PleIo mode) {
    return mode == PleIo::kDirect ? OpenDirectReader(of) : OpenMappedReader(of);
  });
}

}  // namespace warpline
