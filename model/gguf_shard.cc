#include "model/gguf_shard.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "base/log.h"
#include "base/status.h"
#include "model/gguf_reader.h"

namespace warpline {
namespace {

constexpr uint64_t kHeaderBytes = 24;
constexpr uint64_t kLeastKeyBytes = 13;     // length, one byte of key, type
constexpr uint64_t kLeastTensorBytes = 24;  // length, dimension count, type, offset
constexpr uint64_t kMostKeys = 65536;
constexpr uint64_t kMostNameBytes = 63;
constexpr uint64_t kMostAlignment = uint64_t{1} << 20;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kTensorCost = 400;  // of a GgufTensor and its entry in the index of names
constexpr uint64_t kMostBytes = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

bool AddOverflows(uint64_t a, uint64_t b, uint64_t& sum) {
  return __builtin_add_overflow(a, b, &sum);
}
bool MulOverflows(uint64_t a, uint64_t b, uint64_t& product) {
  return __builtin_mul_overflow(a, b, &product);
}
// Up to the next multiple of `alignment`, a power of two.
bool PadOverflows(uint64_t value, uint64_t alignment, uint64_t& padded) {
  if (AddOverflows(value, alignment - 1, padded)) return true;
  padded &= ~(alignment - 1);
  return false;
}

// A file that is no GGUF is mostly one of a few things.
std::string LooksLike(absl::string_view text) {
  const absl::string_view start = absl::StripLeadingAsciiWhitespace(text.substr(0, 512));
  for (const absl::string_view tag : {"<!doctype", "<html", "<head"}) {
    if (absl::StartsWithIgnoreCase(start, tag)) {
      return "it looks like an HTML page: the download saved a web page";
    }
  }
  if (absl::StartsWith(start, "version https://git-lfs")) {
    return "it looks like a Git LFS pointer: run `git lfs pull` to get the file itself";
  }
  if (absl::StartsWith(text, "FUGG"))
    return "it looks like a big-endian file, which is not supported";
  for (const absl::string_view old : {"lmgg", "fmgg", "tjgg", "algg"}) {
    if (absl::StartsWith(text, old))
      return "it looks like a GGML file from before GGUF: convert it again";
  }
  if (absl::StartsWith(text, "PK\x03\x04")) return "it looks like a ZIP archive or a PyTorch file";
  if (absl::StartsWith(text, "\x1F\x8B")) return "it looks like a gzip archive";
  if (text.size() > 8 && text[8] == '{') return "it looks like a safetensors file";
  if (absl::StartsWith(start, "{")) return "it looks like JSON";
  return "it looks like nothing known";
}

class ShardParser {
 public:
  ShardParser(const MappedFile& file, absl::string_view name, uint64_t free_bytes)
      : reader_(file, name, free_bytes) {}

  absl::StatusOr<GgufShard> Parse() {
    WL_RETURN_IF_ERROR(CheckMagic());
    WL_RETURN_IF_ERROR(ReadHeader());
    WL_RETURN_IF_ERROR(ReadGgufMetadata(reader_, key_count_, shard_.metadata));
    WL_RETURN_IF_ERROR(ReadAlignment());
    WL_RETURN_IF_ERROR(reader_.Charge(tensor_count_ * kTensorCost,
                                      tensor_count_ * kLeastTensorBytes, "list of tensors"));
    shard_.tensors.resize(tensor_count_);
    for (uint64_t i = 0; i < tensor_count_; ++i)
      WL_RETURN_IF_ERROR(ReadTensor(i, shard_.tensors[i]));
    shard_.header_bytes = reader_.position();
    reader_.ReleasePages();
    WL_RETURN_IF_ERROR(PlaceTensors());
    return std::move(shard_);
  }

 private:
  absl::Status CheckMagic() const;
  absl::Status ReadHeader();
  absl::Status ReadAlignment();
  absl::Status ReadTensor(uint64_t index, GgufTensor& tensor);
  absl::Status ReadDims(const std::string& label, GgufTensor& tensor);
  absl::Status CheckSize(const std::string& label, int32_t type_id, GgufTensor& tensor) const;
  absl::Status PlaceTensors();
  absl::Status CheckOffset(const GgufTensor& tensor, uint64_t expected) const;
  absl::Status CheckEnd(uint64_t end, uint64_t padded_end);

  GgufReader reader_;
  GgufShard shard_;
  uint64_t key_count_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
};

absl::Status ShardParser::CheckMagic() const {
  const absl::string_view text = AsText(reader_.bytes());
  if (text.empty()) return reader_.Error("the file is empty");
  if (absl::StartsWith(text, "GGUF")) return absl::OkStatus();
  return reader_.Error("not a GGUF file: at offset 0 it has \"", EscapeForLog(text.substr(0, 4)),
                       "\" instead of \"GGUF\"; ", LooksLike(text));
}

absl::Status ShardParser::ReadHeader() {
  if (reader_.size() < kHeaderBytes) return reader_.Truncated("header", kHeaderBytes);
  reader_.Take<uint32_t>();  // The magic.
  const auto version = reader_.Take<uint32_t>();
  if (version != 0 && (version & 0xFFFF) == 0) {
    return reader_.Error("version at offset 4 is ", version, ", with swapped bytes ",
                         __builtin_bswap32(version), ": a big-endian file, which is not supported");
  }
  if (version != 2 && version != 3) {
    return reader_.Error("version at offset 4 is ", version, ", supported are 2 and 3");
  }
  const auto tensors = reader_.Take<int64_t>();
  const auto keys = reader_.Take<int64_t>();
  const uint64_t most_tensors = std::min(kMostGgufTensors, reader_.remaining() / kLeastTensorBytes);
  const uint64_t most_keys = std::min(kMostKeys, reader_.remaining() / kLeastKeyBytes);
  if (tensors < 0 || static_cast<uint64_t>(tensors) > most_tensors) {
    return reader_.Error("tensor count at offset 8 is ", tensors, ", must be 0 to ", most_tensors,
                         " in a file of ", reader_.size(), " bytes");
  }
  if (keys < 0 || static_cast<uint64_t>(keys) > most_keys) {
    return reader_.Error("key count at offset 16 is ", keys, ", must be 0 to ", most_keys,
                         " in a file of ", reader_.size(), " bytes");
  }
  tensor_count_ = static_cast<uint64_t>(tensors);
  key_count_ = static_cast<uint64_t>(keys);
  return absl::OkStatus();
}

absl::Status ShardParser::ReadAlignment() {
  const auto found = shard_.metadata.find("general.alignment");
  if (found == shard_.metadata.end()) return absl::OkStatus();
  if (found->second.type != kGgufTypeU32) {
    return reader_.Error("key general.alignment has type ", GgufTypeName(found->second.type),
                         ", must be u32");
  }
  const uint64_t value = absl::get<uint64_t>(found->second.value);
  if (value == 0 || (value & (value - 1)) != 0 || value > kMostAlignment) {
    return reader_.Error("key general.alignment is ", value, ", must be a power of two from 1 to ",
                         kMostAlignment);
  }
  alignment_ = value;
  return absl::OkStatus();
}

absl::Status ShardParser::ReadTensor(uint64_t index, GgufTensor& tensor) {
  const uint64_t begin = reader_.position();
  WL_RETURN_IF_ERROR(reader_.ReadText(tensor.name, kMostNameBytes,
                                      [index] { return absl::StrCat("name of tensor ", index); }));
  if (tensor.name.empty())
    return reader_.Error("name of tensor ", index, " at offset ", begin, " is empty");
  const std::string printable = EscapeForLog(tensor.name);
  if (printable != tensor.name) {
    return reader_.Error("name of tensor ", index, " at offset ", begin,
                         " has control characters or is not UTF-8: \"", printable, "\"");
  }
  const std::string label = absl::StrCat("tensor ", tensor.name, " at offset ", begin);
  WL_RETURN_IF_ERROR(ReadDims(label, tensor));
  int32_t type_id = 0;
  WL_RETURN_IF_ERROR(reader_.Read(type_id, absl::StrCat("type of ", label)));
  WL_RETURN_IF_ERROR(reader_.Read(tensor.offset, absl::StrCat("place of ", label)));
  return CheckSize(label, type_id, tensor);
}

absl::Status ShardParser::ReadDims(const std::string& label, GgufTensor& tensor) {
  uint32_t n_dims = 0;
  WL_RETURN_IF_ERROR(reader_.Read(n_dims, absl::StrCat("dimension count of ", label)));
  if (n_dims < 1 || n_dims > 4)
    return reader_.Error(label, " has ", n_dims, " dimensions, must be 1 to 4");
  tensor.n_dims = static_cast<int>(n_dims);
  for (uint32_t i = 0; i < n_dims; ++i) {
    WL_RETURN_IF_ERROR(reader_.Read(tensor.dims[i], absl::StrCat("dimensions of ", label)));
    if (tensor.dims[i] < 1) {
      return reader_.Error(label, ": dimension ", i, " is ", tensor.dims[i], ", must be positive");
    }
  }
  return absl::OkStatus();
}

absl::Status ShardParser::CheckSize(const std::string& label, int32_t type_id,
                                    GgufTensor& tensor) const {
  const QuantTypeInfo* const info = FindQuantType(type_id);
  if (info == nullptr) {
    const std::string supported =
        absl::StrJoin(AllQuantTypes(), " ", [](std::string* out, const QuantTypeInfo& type) {
          absl::StrAppend(out, type.name, "=", static_cast<int>(type.type));
        });
    return reader_.Error(label, " has the unsupported type number ", type_id, "; supported are ",
                         supported);
  }
  tensor.type = info->type;
  const absl::Span<const int64_t> dims(tensor.dims);
  uint64_t elements = 1;
  for (const int64_t dim : dims) {
    if (MulOverflows(elements, static_cast<uint64_t>(dim), elements) || elements > kMostBytes) {
      return reader_.Error(label, ": the product of its dimensions ", absl::StrJoin(dims, " x "),
                           " overflows");
    }
  }
  if (dims[0] % info->block_values != 0) {
    return reader_.Error(label, ": dimension 0 is ", dims[0], ", not a multiple of ",
                         info->block_values, ", the block of ", info->name);
  }
  const uint64_t blocks = elements / static_cast<uint64_t>(info->block_values);
  if (MulOverflows(blocks, static_cast<uint64_t>(info->block_bytes), tensor.byte_count) ||
      tensor.byte_count > kMostBytes) {
    return reader_.Error(label, ": its size of ", blocks, " blocks of ", info->block_bytes,
                         " bytes overflows");
  }
  return absl::OkStatus();
}

absl::Status ShardParser::CheckOffset(const GgufTensor& tensor, uint64_t expected) const {
  if (tensor.offset == expected) return absl::OkStatus();
  const char* const reason = tensor.offset % alignment_ != 0
                                 ? "it is not a multiple of the alignment"
                             : tensor.offset < expected ? "it overlaps its predecessor"
                                                        : "there is a gap before it";
  return reader_.Error("tensor ", tensor.name, " has offset ", tensor.offset,
                       " in the data section, expected ", expected, ": ", reason, " (alignment ",
                       alignment_, ")");
}

// Turns offsets in the data section into offsets in the file.
absl::Status ShardParser::PlaceTensors() {
  uint64_t data_begin = 0;
  if (PadOverflows(reader_.position(), alignment_, data_begin))
    return reader_.Error("the file is too long");
  uint64_t expected = 0;  // in the data section
  uint64_t end = shard_.tensors.empty() ? reader_.position() : data_begin;
  uint64_t padded_end = data_begin;
  for (GgufTensor& tensor : shard_.tensors) {
    WL_RETURN_IF_ERROR(CheckOffset(tensor, expected));
    if (AddOverflows(data_begin, tensor.offset, tensor.offset) ||
        AddOverflows(tensor.offset, tensor.byte_count, end) ||
        PadOverflows(end, alignment_, padded_end)) {
      return reader_.Error("tensor ", tensor.name, ": its offset ", expected, " and its size ",
                           tensor.byte_count, " overflow");
    }
    expected = padded_end - data_begin;
    if (end > reader_.size()) {
      return reader_.Error("tensor ", tensor.name, " of ", tensor.byte_count, " bytes at offset ",
                           tensor.offset, " ends at ", end, ", but the file has ", reader_.size(),
                           " bytes (truncated?)");
    }
  }
  return CheckEnd(end, padded_end);
}

absl::Status ShardParser::CheckEnd(uint64_t end, uint64_t padded_end) {
  for (const uint64_t next : {end, padded_end}) {
    if (next < reader_.size() && absl::StartsWith(AsText(reader_.bytes().subspan(next)), "GGUF")) {
      return reader_.Error(
          "another GGUF file follows at offset ", next, " of ", reader_.size(),
          ": shards were joined into one file; keep them apart and start from shard 1");
    }
  }
  if (reader_.size() > padded_end) {
    shard_.warnings.push_back(absl::StrCat(reader_.name(), ": ", reader_.size() - padded_end,
                                           " bytes after the last tensor are ignored: expected ",
                                           padded_end, " bytes, the file has ", reader_.size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufShard> ParseGgufShard(const MappedFile& file, absl::string_view name,
                                         uint64_t free_bytes) {
  return ShardParser(file, name, free_bytes).Parse();
}

}  // namespace warpline
