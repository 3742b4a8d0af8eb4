#include "model/gguf_shard.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/log.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr uint64_t kHeaderBytes = 24;
constexpr uint64_t kLeastKeyBytes = 13;     // length, one byte of key, type
constexpr uint64_t kLeastTensorBytes = 24;  // length, dimension count, type, offset
constexpr uint64_t kMostEntries = 65536;    // of keys, and of tensors
constexpr uint64_t kMostElements = uint64_t{1} << 30;
constexpr uint64_t kMostStringBytes = uint64_t{64} << 20;
constexpr uint64_t kMostKeyBytes = uint64_t{64} << 10;
constexpr uint64_t kMostNameBytes = 63;
constexpr uint64_t kMostAlignment = uint64_t{1} << 20;
constexpr uint32_t kDefaultAlignment = 32;

// Decoded values may take this much more memory than the bytes of the file read so far. With the
// pages of the map (given back every kReleaseBytes) that stays below file size + 64 MiB.
constexpr uint64_t kFreeDecodedBytes = uint64_t{44} << 20;
constexpr uint64_t kReleaseBytes = uint64_t{4} << 20;
constexpr uint64_t kKeyCost = 256;     // of one entry of the hash table, growth included
constexpr uint64_t kTensorCost = 256;  // of one GgufTensor, growth included

enum ValueType : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kTypeCount
};
constexpr uint64_t kElementBytes[kTypeCount] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
constexpr const char* kTypeNames[kTypeCount] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"};

bool AddOverflows(uint64_t a, uint64_t b, uint64_t& sum) {
  return __builtin_add_overflow(a, b, &sum);
}
bool MulOverflows(uint64_t a, uint64_t b, uint64_t& product) {
  return __builtin_mul_overflow(a, b, &product);
}
bool PadOverflows(uint64_t value, uint64_t alignment, uint64_t& padded) {
  if (AddOverflows(value, alignment - 1, padded)) return true;
  padded &= ~(alignment - 1);
  return false;
}

absl::string_view AsText(absl::Span<const uint8_t> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A file that is no GGUF is mostly one of a few things.
std::string LooksLike(absl::string_view text) {
  const absl::string_view start = absl::StripLeadingAsciiWhitespace(text.substr(0, 512));
  if (absl::StartsWithIgnoreCase(start, "<!doctype") ||
      absl::StartsWithIgnoreCase(start, "<html") || absl::StartsWithIgnoreCase(start, "<head")) {
    return "it looks like an HTML page: the download saved a web page";
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
  if (text.size() > 9 && text[8] == '{') return "it looks like a safetensors file";
  if (absl::StartsWith(start, "{")) return "it looks like JSON";
  return "it is something else";
}

class Parser {
 public:
  Parser(const MappedFile& file, absl::string_view name)
      : file_(file), bytes_(file.bytes()), name_(name) {}

  absl::StatusOr<GgufShard> Parse() {
    WL_RETURN_IF_ERROR(ReadHeader());
    for (uint64_t i = 0; i < key_count_; ++i) WL_RETURN_IF_ERROR(ReadKey(i));
    WL_RETURN_IF_ERROR(ReadAlignment());
    for (uint64_t i = 0; i < tensor_count_; ++i) WL_RETURN_IF_ERROR(ReadTensor(i));
    shard_.header_bytes = position_;
    WL_RETURN_IF_ERROR(PlaceTensors());
    ReleasePages(position_);
    return std::move(shard_);
  }

 private:
  uint64_t remaining() const { return bytes_.size() - position_; }

  template <typename... Args>
  absl::Status Error(const Args&... args) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ": ", args...));
  }

  absl::Status Truncated(absl::string_view what, uint64_t wanted) const {
    return Error(what, " at offset ", position_, ": needs ", wanted,
                 " bytes, but the file ends after ", remaining(), " (truncated file of ",
                 bytes_.size(), " bytes?)");
  }

  // Memory that the decoded form takes, charged before it is allocated.
  absl::Status Charge(uint64_t cost, absl::string_view what) {
    uint64_t total;
    if (AddOverflows(charged_, cost, total) || total > kFreeDecodedBytes + position_) {
      return Error(what, " at offset ", position_, ": metadata needs ", charged_, " + ", cost,
                   " bytes of memory, the limit here is ", kFreeDecodedBytes + position_);
    }
    charged_ = total;
    return absl::OkStatus();
  }

  void ReleasePages(uint64_t end) {
    file_.Release(released_, end - released_);
    released_ = end;
  }

  // The caller has checked that the bytes are there.
  template <typename T>
  T Take() {
    T value;
    std::memcpy(&value, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    if (position_ - released_ >= kReleaseBytes) ReleasePages(position_);
    return value;
  }

  template <typename T>
  absl::Status Read(T& value, absl::string_view what) {
    if (remaining() < sizeof(T)) return Truncated(what, sizeof(T));
    value = Take<T>();
    return absl::OkStatus();
  }

  // The bytes stay in the map; `what` names them in messages.
  absl::Status ReadText(absl::string_view& text, uint64_t most_bytes, absl::string_view what) {
    const uint64_t begin = position_;
    uint64_t length = 0;
    WL_RETURN_IF_ERROR(Read(length, what));
    if (length > remaining()) {
      return Error(what, " at offset ", begin, ": length ", length,
                   " is beyond the end of the file, ", remaining(), " bytes remain");
    }
    if (length > most_bytes) {
      return Error(what, " at offset ", begin, ": length ", length, " is above the limit of ",
                   most_bytes, " bytes");
    }
    text = AsText(bytes_.subspan(position_, length));
    position_ += length;
    return absl::OkStatus();
  }

  absl::Status ReadHeader();
  absl::Status ReadKey(uint64_t index);
  absl::Status ReadValue(absl::string_view key, GgufValue& value);
  absl::Status ReadArray(absl::string_view key, GgufArray& array);
  absl::Status ReadStrings(absl::string_view key, uint64_t count,
                           std::vector<std::string>& strings);
  absl::Status ReadBool(absl::string_view key, bool& value);
  absl::Status ReadAlignment();
  absl::Status ReadTensor(uint64_t index);
  absl::Status ReadDims(const std::string& label, GgufTensor& tensor);
  absl::Status CheckSize(const std::string& label, int32_t type_id, GgufTensor& tensor);
  absl::Status PlaceTensors();
  absl::Status CheckOffset(const GgufTensor& tensor, uint64_t expected) const;
  absl::Status CheckEnd(uint64_t end, uint64_t padded_end);

  const MappedFile& file_;
  const absl::Span<const uint8_t> bytes_;
  const absl::string_view name_;
  GgufShard shard_;
  uint64_t position_ = 0;
  uint64_t released_ = 0;  // pages before this were given back
  uint64_t charged_ = 0;
  uint64_t key_count_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  absl::flat_hash_map<std::string, uint64_t> tensor_index_;
};

absl::Status Parser::ReadHeader() {
  if (bytes_.empty()) return Error("the file is empty");
  if (bytes_.size() < 4 || AsText(bytes_.first(4)) != "GGUF") {
    return Error("not a GGUF file at offset 0: begins with \"",
                 EscapeForLog(AsText(bytes_.first(std::min<size_t>(bytes_.size(), 4)))),
                 "\" instead of \"GGUF\"; ", LooksLike(AsText(bytes_)));
  }
  if (bytes_.size() < kHeaderBytes) return Truncated("header", kHeaderBytes);
  position_ = 4;
  const auto version = Take<uint32_t>();
  if (version != 0 && (version & 0xFFFF) == 0) {
    return Error("version at offset 4 is ", version, ", byte-swapped ", __builtin_bswap32(version),
                 ": a big-endian file, which is not supported");
  }
  if (version != 2 && version != 3) {
    return Error("version at offset 4 is ", version, ", supported are 2 and 3");
  }
  const auto tensors = Take<int64_t>();
  const auto keys = Take<int64_t>();
  const uint64_t most_tensors = std::min(kMostEntries, remaining() / kLeastTensorBytes);
  const uint64_t most_keys = std::min(kMostEntries, remaining() / kLeastKeyBytes);
  if (tensors < 0 || static_cast<uint64_t>(tensors) > most_tensors) {
    return Error("tensor count at offset 8 is ", tensors, ", a file of ", bytes_.size(),
                 " bytes can have 0 to ", most_tensors);
  }
  if (keys < 0 || static_cast<uint64_t>(keys) > most_keys) {
    return Error("key count at offset 16 is ", keys, ", a file of ", bytes_.size(),
                 " bytes can have 0 to ", most_keys);
  }
  tensor_count_ = static_cast<uint64_t>(tensors);
  key_count_ = static_cast<uint64_t>(keys);
  return absl::OkStatus();
}

absl::Status Parser::ReadKey(uint64_t index) {
  const uint64_t begin = position_;
  absl::string_view text;
  WL_RETURN_IF_ERROR(ReadText(text, kMostKeyBytes, absl::StrCat("key ", index)));
  const std::string key(text);
  if (key.empty()) return Error("key ", index, " at offset ", begin, " is empty");
  const std::string printable = EscapeForLog(key);
  if (printable != key) {
    return Error("key ", index, " at offset ", begin, " has control characters or is not UTF-8: \"",
                 printable.substr(0, 200), "\"");
  }
  WL_RETURN_IF_ERROR(Charge(kKeyCost + key.size(), key));
  GgufValue value;
  WL_RETURN_IF_ERROR(ReadValue(key, value));
  if (!shard_.metadata.try_emplace(key, std::move(value)).second) {
    return Error("key ", key, " at offset ", begin, " occurs twice");
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadBool(absl::string_view key, bool& value) {
  uint8_t byte = 0;
  WL_RETURN_IF_ERROR(Read(byte, key));
  if (byte > 1) {
    return Error("key ", key, " at offset ", position_ - 1, ": bool has the value ", byte,
                 ", not 0 or 1");
  }
  value = byte == 1;
  return absl::OkStatus();
}

// Calls `visitor` with a value of the C++ type of a number's value type.
template <typename Visitor>
auto VisitNumber(uint32_t type, Visitor visitor) {
  switch (type) {
    case kU8:
      return visitor(uint8_t{});
    case kI8:
      return visitor(int8_t{});
    case kU16:
      return visitor(uint16_t{});
    case kI16:
      return visitor(int16_t{});
    case kU32:
      return visitor(uint32_t{});
    case kI32:
      return visitor(int32_t{});
    case kF32:
      return visitor(float{});
    case kU64:
      return visitor(uint64_t{});
    case kI64:
      return visitor(int64_t{});
    default:
      return visitor(double{});
  }
}

absl::Status Parser::ReadValue(absl::string_view key, GgufValue& value) {
  uint32_t type = 0;
  const uint64_t begin = position_;
  WL_RETURN_IF_ERROR(Read(type, absl::StrCat("value type of key ", key)));
  if (type >= kTypeCount) {
    return Error("key ", key, " at offset ", begin, ": unknown value type ", type,
                 ", the highest is ", kTypeCount - 1);
  }
  value.type = static_cast<int>(type);
  if (type == kString) {
    absl::string_view text;
    WL_RETURN_IF_ERROR(ReadText(text, kMostStringBytes, absl::StrCat("value of key ", key)));
    WL_RETURN_IF_ERROR(Charge(text.size(), key));
    value.value = std::string(text);
    return absl::OkStatus();
  }
  if (type == kArray) return ReadArray(key, value.value.emplace<GgufArray>());
  if (type == kBool) return ReadBool(key, value.value.emplace<bool>());
  return VisitNumber(type, [&](auto number) {
    using T = decltype(number);
    WL_RETURN_IF_ERROR(Read(number, absl::StrCat("value of key ", key)));
    if constexpr (std::is_floating_point_v<T>) {
      value.value = static_cast<double>(number);
    } else if constexpr (std::is_unsigned_v<T>) {
      value.value = static_cast<uint64_t>(number);
    } else {
      value.value = static_cast<int64_t>(number);
    }
    return absl::OkStatus();
  });
}

absl::Status Parser::ReadArray(absl::string_view key, GgufArray& array) {
  const uint64_t begin = position_;
  uint32_t type = 0;
  uint64_t count = 0;
  WL_RETURN_IF_ERROR(Read(type, absl::StrCat("array of key ", key)));
  WL_RETURN_IF_ERROR(Read(count, absl::StrCat("array of key ", key)));
  if (type >= kTypeCount) {
    return Error("key ", key, " at offset ", begin, ": unknown element type ", type,
                 ", the highest is ", kTypeCount - 1);
  }
  if (type == kArray)
    return Error("key ", key, " at offset ", begin, ": arrays of arrays are not supported");
  const uint64_t most = std::min(kMostElements, remaining() / kElementBytes[type]);
  if (count > most) {
    return Error("key ", key, " at offset ", begin, ": array of ", count, " elements of type ",
                 kTypeNames[type], ", at most ", most, " fit into the remaining ", remaining(),
                 " bytes");
  }
  array.element_type = static_cast<int>(type);
  if (type == kString)
    return ReadStrings(key, count, array.elements.emplace<std::vector<std::string>>());
  WL_RETURN_IF_ERROR(Charge(count * sizeof(int64_t), key));
  if (type == kBool) {
    auto& values = array.elements.emplace<std::vector<int64_t>>(count);
    for (int64_t& element : values) {
      bool flag = false;
      WL_RETURN_IF_ERROR(ReadBool(key, flag));
      element = flag ? 1 : 0;
    }
    return absl::OkStatus();
  }
  VisitNumber(type, [&](auto number) {
    using T = decltype(number);
    using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
    auto& values = array.elements.emplace<std::vector<Wide>>(count);
    for (Wide& element : values) element = static_cast<Wide>(Take<T>());
  });
  return absl::OkStatus();
}

absl::Status Parser::ReadStrings(absl::string_view key, uint64_t count,
                                 std::vector<std::string>& strings) {
  // Tokens and merges are short; other lists of strings may hold longer texts.
  const uint64_t most_bytes =
      absl::StartsWith(key, "tokenizer.ggml.") ? kMostKeyBytes : kMostStringBytes;
  WL_RETURN_IF_ERROR(Charge(count * sizeof(std::string), key));
  strings.resize(count);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t begin = position_;
    uint64_t length = 0;
    // The common case by hand: building a label for each of 250,000 tokens would cost more than
    // reading them.
    if (remaining() >= sizeof(length)) {
      std::memcpy(&length, bytes_.data() + position_, sizeof(length));
      if (length <= std::min(remaining() - sizeof(length), most_bytes)) {
        position_ += sizeof(length);
        if (length > strings[i].capacity()) WL_RETURN_IF_ERROR(Charge(length + 16, key));
        strings[i].assign(reinterpret_cast<const char*>(bytes_.data()) + position_, length);
        position_ += length;
        if (position_ - released_ >= kReleaseBytes) ReleasePages(position_);
        continue;
      }
    }
    position_ = begin;
    absl::string_view text;
    return ReadText(text, most_bytes, absl::StrCat("element ", i, " of key ", key));
  }
  return absl::OkStatus();
}

absl::Status Parser::ReadAlignment() {
  const auto found = shard_.metadata.find("general.alignment");
  if (found == shard_.metadata.end()) return absl::OkStatus();
  if (found->second.type != kU32) {
    return Error("key general.alignment has type ", GgufTypeName(found->second.type),
                 ", must be u32");
  }
  const uint64_t value = absl::get<uint64_t>(found->second.value);
  if (value == 0 || (value & (value - 1)) != 0 || value > kMostAlignment) {
    return Error("key general.alignment is ", value, ", must be a power of two from 1 to ",
                 kMostAlignment);
  }
  alignment_ = value;
  return absl::OkStatus();
}

absl::Status Parser::ReadTensor(uint64_t index) {
  const uint64_t begin = position_;
  absl::string_view text;
  WL_RETURN_IF_ERROR(ReadText(text, kMostNameBytes, absl::StrCat("name of tensor ", index)));
  GgufTensor tensor;
  tensor.name = std::string(text);
  if (tensor.name.empty())
    return Error("tensor ", index, " at offset ", begin, " has an empty name");
  const std::string printable = EscapeForLog(text);
  if (printable != text) {
    return Error("name of tensor ", index, " at offset ", begin,
                 " has control characters or is not UTF-8: \"", printable, "\"");
  }
  const std::string label = absl::StrCat("tensor ", tensor.name, " at offset ", begin);
  WL_RETURN_IF_ERROR(Charge(kTensorCost, label));
  WL_RETURN_IF_ERROR(ReadDims(label, tensor));
  int32_t type_id = 0;
  WL_RETURN_IF_ERROR(Read(type_id, absl::StrCat("type of ", label)));
  WL_RETURN_IF_ERROR(Read(tensor.offset, absl::StrCat("offset of ", label)));
  WL_RETURN_IF_ERROR(CheckSize(label, type_id, tensor));
  if (!tensor_index_.try_emplace(tensor.name, index).second) return Error(label, " occurs twice");
  shard_.tensors.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status Parser::ReadDims(const std::string& label, GgufTensor& tensor) {
  uint32_t n_dims = 0;
  WL_RETURN_IF_ERROR(Read(n_dims, absl::StrCat("dimension count of ", label)));
  if (n_dims < 1 || n_dims > 4) return Error(label, " has ", n_dims, " dimensions, must be 1 to 4");
  tensor.n_dims = static_cast<int>(n_dims);
  for (uint32_t i = 0; i < n_dims; ++i) {
    WL_RETURN_IF_ERROR(Read(tensor.dims[i], absl::StrCat("dimensions of ", label)));
    if (tensor.dims[i] < 1)
      return Error(label, ": dimension ", i, " is ", tensor.dims[i], ", must be positive");
  }
  return absl::OkStatus();
}

absl::Status Parser::CheckSize(const std::string& label, int32_t type_id, GgufTensor& tensor) {
  const QuantTypeInfo* const info = FindQuantType(type_id);
  if (info == nullptr) {
    const std::string supported =
        absl::StrJoin(AllQuantTypes(), " ", [](std::string* out, const QuantTypeInfo& type) {
          absl::StrAppend(out, type.name, "=", static_cast<int>(type.type));
        });
    return Error(label, " has the unsupported type number ", type_id, "; supported are ",
                 supported);
  }
  tensor.type = info->type;
  const absl::Span<const int64_t> dims(tensor.dims);
  uint64_t elements = 1;
  for (const int64_t dim : dims) {
    if (MulOverflows(elements, static_cast<uint64_t>(dim), elements) ||
        elements > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return Error(label, ": the product of its dimensions ", absl::StrJoin(dims, " x "),
                   " overflows");
    }
  }
  if (dims[0] % info->block_values != 0) {
    return Error(label, ": dimension 0 is ", dims[0], ", not a multiple of ", info->block_values,
                 ", the block of ", info->name);
  }
  const uint64_t blocks = elements / static_cast<uint64_t>(info->block_values);
  if (MulOverflows(blocks, static_cast<uint64_t>(info->block_bytes), tensor.byte_count) ||
      tensor.byte_count > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
    return Error(label, ": ", blocks, " blocks of ", info->block_bytes, " bytes overflow");
  }
  return absl::OkStatus();
}

absl::Status Parser::CheckOffset(const GgufTensor& tensor, uint64_t expected) const {
  if (tensor.offset == expected) return absl::OkStatus();
  const char* reason = tensor.offset % alignment_ != 0 ? "it is not a multiple of the alignment"
                       : tensor.offset < expected      ? "it overlaps its predecessor"
                                                       : "there is a gap before it";
  return Error("tensor ", tensor.name, " has offset ", tensor.offset, ", expected ", expected, ": ",
               reason, " (alignment ", alignment_, ")");
}

// Turns offsets in the data section into offsets in the file.
absl::Status Parser::PlaceTensors() {
  uint64_t data_begin;
  if (PadOverflows(position_, alignment_, data_begin))
    return Error("the data section begins beyond 2^64");
  uint64_t expected = 0;  // in the data section
  uint64_t end = shard_.tensors.empty() ? position_ : data_begin;
  uint64_t padded_end = data_begin;
  for (GgufTensor& tensor : shard_.tensors) {
    WL_RETURN_IF_ERROR(CheckOffset(tensor, expected));
    if (AddOverflows(data_begin, tensor.offset, tensor.offset) ||
        AddOverflows(tensor.offset, tensor.byte_count, end) ||
        PadOverflows(end, alignment_, padded_end)) {
      return Error("tensor ", tensor.name, ": its offset and size overflow");
    }
    // Padding counts from the data section, which is itself aligned.
    expected = padded_end - data_begin;
    if (end > bytes_.size()) {
      return Error("tensor ", tensor.name, " with ", tensor.byte_count, " bytes at offset ",
                   tensor.offset, " ends at ", end, ", but the file has ", bytes_.size(),
                   " bytes (truncated?)");
    }
  }
  return CheckEnd(end, padded_end);
}

absl::Status Parser::CheckEnd(uint64_t end, uint64_t padded_end) {
  for (const uint64_t next : {end, padded_end}) {
    if (next <= bytes_.size() && absl::StartsWith(AsText(bytes_.subspan(next)), "GGUF")) {
      return Error("another GGUF file follows at offset ", next, " of ", bytes_.size(),
                   ": shards were joined into one file; keep them apart and start from shard 1");
    }
  }
  if (bytes_.size() > padded_end) {
    shard_.warnings.push_back(absl::StrCat(name_, ": ", bytes_.size() - padded_end,
                                           " bytes after the last tensor are ignored: expected ",
                                           padded_end, " bytes, the file has ", bytes_.size()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GgufShard> ParseGgufShard(const MappedFile& file, absl::string_view name) {
  return Parser(file, name).Parse();
}

std::string GgufTypeName(int64_t type) {
  if (type < 0 || type >= kTypeCount) return absl::StrCat("type ", type);
  return kTypeNames[type];
}

}  // namespace warpline
