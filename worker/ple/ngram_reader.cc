#include "worker/ple/ngram_reader.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "kernels/quant_decode.h"
#include "model/mapped_file.h"

namespace warpline {
namespace {

constexpr char kTableName[] = "per_layer_token_embd.weight";

class MappedReader final : public NgramReader {
 public:
  MappedReader(const NgramTable& table, std::unique_ptr<MappedFile> file)
      : table_(table), file_(std::move(file)) {}

  absl::Status Fetch(absl::Span<const int64_t> rows, absl::Span<float> out) override {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] < 0 || rows[i] >= table_.row_count) {
        return absl::InvalidArgumentError(
            absl::StrCat("row ", rows[i], " of an n-gram table of ", table_.row_count));
      }
      DequantizeRow(table_.type,
                    file_->bytes().data() + table_.offset + rows[i] * table_.row_bytes(),
                    table_.row_width, out.data() + i * table_.row_width);
    }
    counters_.rows_requested += rows.size();
    return absl::OkStatus();
  }
  void Prefetch(absl::Span<const int64_t>) override {}
  NgramCounters counters() const override { return counters_; }

 private:
  const NgramTable table_;
  const std::unique_ptr<MappedFile> file_;
  NgramCounters counters_{.mode = PleIo::kMmap};
};

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
                                                             const NgramReaderOptions&) {
  WL_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(table.path));
  if (file->bytes().size() != table.file_bytes) {
    return absl::DataLossError(absl::StrCat(EscapeForLog(table.path), " has ", file->bytes().size(),
                                            " bytes, had ", table.file_bytes));
  }
  return std::unique_ptr<NgramReader>(new MappedReader(table, std::move(file)));
}

}  // namespace warpline
