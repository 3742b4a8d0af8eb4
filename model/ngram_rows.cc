#include "model/ngram_rows.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr int64_t kMostNgramSize = 8;
constexpr int64_t kMostHeads = 64;
constexpr uint64_t kMostRows = (uint64_t{1} << 31) - 1;

// Reads the keys of one model and says what is wrong with them.
class PleKeys {
 public:
  PleKeys(const GgufFile& file, const std::string& prefix) : file_(file), prefix_(prefix) {}

  std::string Key(const char* name) const { return absl::StrCat(prefix_, ".", name); }
  bool Has(const char* name) const { return file_.Has(Key(name)); }

  absl::StatusOr<int64_t> Int(const char* name, int64_t least, int64_t most) const {
    WL_ASSIGN_OR_RETURN(const int64_t value, file_.GetInt(Key(name)));
    if (value < least || value > most) {
      return Error("key ", Key(name), " is ", value, ", must be from ", least, " to ", most);
    }
    return value;
  }

  // At least `count` elements, of which the first `count` are returned, by their bits.
  absl::StatusOr<std::vector<uint64_t>> Words(const char* name, int count) const {
    WL_ASSIGN_OR_RETURN(const absl::Span<const int64_t> values, file_.GetInts(Key(name)));
    if (values.size() < static_cast<size_t>(count)) {
      return Error("key ", Key(name), " has ", values.size(), " elements, wanted ", count);
    }
    return std::vector<uint64_t>(values.begin(), values.begin() + count);
  }

  template <typename... Args>
  absl::Status Error(const Args&... args) const {
    return absl::InvalidArgumentError(absl::StrCat(EscapeForLog(file_.path()), ": ", args...));
  }

 private:
  const GgufFile& file_;
  const std::string& prefix_;
};

absl::Status ReadSizes(const PleKeys& keys, int n_embd, int n_vocab, PleSpec& spec) {
  WL_ASSIGN_OR_RETURN(spec.ngram_size, keys.Int("ple.ngram_size", 2, kMostNgramSize));
  WL_ASSIGN_OR_RETURN(spec.heads_per_ngram, keys.Int("ple.heads_per_ngram", 1, kMostHeads));
  if (spec.head_count() > kMostHeads) {
    return keys.Error("key ", keys.Key("ple.heads_per_ngram"), " makes ", spec.head_count(),
                      " heads in all, the most is ", kMostHeads);
  }
  constexpr int64_t kMostConv = 64;
  WL_ASSIGN_OR_RETURN(spec.conv_kernel, keys.Int("ple.conv_kernel", 1, kMostConv));
  WL_ASSIGN_OR_RETURN(spec.eos_token_id, keys.Int("ple.eos_token_id", 0, n_vocab - 1));
  spec.image_token_id = spec.eos_token_id;
  if (keys.Has("ple.image_token_id")) {
    WL_ASSIGN_OR_RETURN(const int64_t image,
                        keys.Int("ple.image_token_id", 0, std::numeric_limits<int32_t>::max()));
    if (image != 0) spec.image_token_id = static_cast<int32_t>(image);
  }
  WL_ASSIGN_OR_RETURN(spec.row_width, keys.Int("embedding_length_per_layer_input", 1, n_embd));
  if (int64_t{spec.row_width} * spec.head_count() != n_embd) {
    return keys.Error("key ", keys.Key("embedding_length_per_layer_input"), " is ", spec.row_width,
                      ", but ", spec.head_count(), " heads must make embedding_length ", n_embd);
  }
  return absl::OkStatus();
}

absl::Status CheckHeads(const PleKeys& keys, const PleSpec& spec) {
  for (int head = 0; head < spec.head_count(); ++head) {
    const uint64_t offset = spec.head_offsets[head];
    const uint64_t size = spec.head_vocab_sizes[head];
    if (size == 0) return keys.Error("key ", keys.Key("ple.head_vocab_sizes"), "[", head, "] is 0");
    if (size > kMostRows || offset > kMostRows - size) {
      return keys.Error("keys ", keys.Key("ple.head_offsets"), " and ple.head_vocab_sizes give [",
                        head, "] rows from ", offset, " on, ", size, " of them, the most is ",
                        kMostRows);
    }
    if (offset + size > static_cast<uint64_t>(spec.table_rows)) {
      return keys.Error("keys ", keys.Key("ple.head_offsets"), " and ple.head_vocab_sizes give [",
                        head, "] rows up to ", offset + size, ", but tensor ", kNgramTableName,
                        " has ", spec.table_rows);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::optional<PleSpec>> PleSpec::FromGguf(const GgufFile& file,
                                                         const std::string& prefix, int n_embd,
                                                         int n_vocab, int n_layer) {
  const PleKeys keys(file, prefix);
  if (!keys.Has("ple.layers")) return std::nullopt;
  WL_ASSIGN_OR_RETURN(const absl::Span<const int64_t> layers, file.GetInts(keys.Key("ple.layers")));
  if (layers.empty()) return std::nullopt;
  if (layers.size() != 1 || layers[0] < 0 || layers[0] >= n_layer) {
    return keys.Error("key ", keys.Key("ple.layers"), " names ", layers.size(),
                      " layers, the first is ", layers[0], "; supported is one below ", n_layer);
  }
  PleSpec spec;
  spec.layer = static_cast<int>(layers[0]);
  WL_RETURN_IF_ERROR(ReadSizes(keys, n_embd, n_vocab, spec));
  const int heads = spec.head_count();
  WL_ASSIGN_OR_RETURN(spec.multipliers, keys.Words("ple.layer_multipliers", spec.ngram_size));
  WL_ASSIGN_OR_RETURN(spec.head_offsets, keys.Words("ple.head_offsets", heads));
  WL_ASSIGN_OR_RETURN(spec.head_vocab_sizes, keys.Words("ple.head_vocab_sizes", heads));
  const GgufTensor* const table = file.FindTensor(kNgramTableName);
  if (table == nullptr) return keys.Error("tensor ", kNgramTableName, " is missing");
  if (table->n_dims > 2 || table->dims[0] != spec.row_width) {
    return keys.Error("tensor ", kNgramTableName, " has ", table->n_dims,
                      " dimensions and rows of ", table->dims[0], ", wanted 2 and ",
                      spec.row_width);
  }
  spec.table_rows = table->dims[1];
  WL_RETURN_IF_ERROR(CheckHeads(keys, spec));
  return spec;
}

void NgramContext::Append(absl::Span<const int32_t> ids) {
  ids_.insert(ids_.end(), ids.end() - std::min(ids.size(), reach_), ids.end());
  if (ids_.size() > reach_) ids_.erase(ids_.begin(), ids_.end() - reach_);
}

void NgramRows(const PleSpec& spec, const NgramContext& context, absl::Span<const int32_t> ids,
               absl::Span<int64_t> out) {
  WL_CHECK(out.size() == ids.size() * spec.head_count());
  // What stands before the context does not exist, which reads as eos and cuts like eos.
  std::vector<int32_t> tokens(spec.ngram_size - 1 - context.ids().size(), spec.eos_token_id);
  tokens.insert(tokens.end(), context.ids().begin(), context.ids().end());
  tokens.insert(tokens.end(), ids.begin(), ids.end());
  int64_t* row = out.data();
  for (size_t i = 0; i < ids.size(); ++i) {
    const int32_t* const newest = &tokens[i + spec.ngram_size - 1];
    uint64_t mixed = static_cast<uint64_t>(*newest) * spec.multipliers[0];
    bool cut = false;
    for (int back = 1; back < spec.ngram_size; ++back) {
      cut = cut || newest[-back] == spec.eos_token_id;
      const int32_t id = cut ? spec.eos_token_id : newest[-back];
      mixed ^= static_cast<uint64_t>(id) * spec.multipliers[back];
      const int first_head = (back - 1) * spec.heads_per_ngram;
      for (int head = first_head; head < first_head + spec.heads_per_ngram; ++head) {
        *row++ =
            static_cast<int64_t>(mixed % spec.head_vocab_sizes[head] + spec.head_offsets[head]);
      }
    }
  }
}

}  // namespace warpline
