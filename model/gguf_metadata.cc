#include "model/gguf_metadata.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr uint64_t kMostElements = uint64_t{1} << 30;
constexpr uint64_t kMostStringBytes = uint64_t{64} << 20;
constexpr uint64_t kMostKeyBytes = uint64_t{64} << 10;
constexpr uint64_t kMostTokenBytes = uint64_t{64} << 10;
constexpr uint64_t kKeyCost = 320;  // of one entry of the hash table, its growth included

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
static_assert(kU32 == kGgufTypeU32);

struct TypeInfo {
  const char* name;
  uint64_t least_bytes;  // of one element of an array
};
constexpr TypeInfo kTypes[kTypeCount] = {
    {"u8", 1},   {"i8", 1},     {"u16", 2},    {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
    {"bool", 1}, {"string", 8}, {"array", 12}, {"u64", 8}, {"i64", 8}, {"f64", 8}};

// Calls `visitor` with a zero of the C++ type of a number's value type.
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

// Reads the value of one key.
class ValueReader {
 public:
  ValueReader(GgufReader& reader, absl::string_view key) : reader_(reader), key_(key) {}

  absl::Status Read(GgufValue& value);

 private:
  absl::Status ReadBool(bool& value);
  absl::Status ReadArray(GgufArray& array);
  absl::Status ReadStrings(uint64_t count, std::vector<std::string>& strings);
  absl::Status ReadBools(uint64_t count, std::vector<int64_t>& flags);
  std::string Label() const { return absl::StrCat("value of key ", key_); }

  GgufReader& reader_;
  const absl::string_view key_;
};

absl::Status ValueReader::Read(GgufValue& value) {
  const uint64_t begin = reader_.position();
  uint32_t type = 0;
  WL_RETURN_IF_ERROR(reader_.Read(type, Label()));
  if (type >= kTypeCount) {
    return reader_.Error("key ", key_, " at offset ", begin, ": unknown value type ", type,
                         ", the highest is ", kTypeCount - 1);
  }
  value.type = static_cast<int>(type);
  if (type == kArray) return ReadArray(value.value.emplace<GgufArray>());
  if (type == kBool) return ReadBool(value.value.emplace<bool>());
  if (type == kString) {
    return reader_.ReadText(value.value.emplace<std::string>(), kMostStringBytes,
                            [this] { return Label(); });
  }
  return VisitNumber(type, [&](auto number) {
    using T = decltype(number);
    WL_RETURN_IF_ERROR(reader_.Read(number, Label()));
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

absl::Status ValueReader::ReadBool(bool& value) {
  const uint64_t begin = reader_.position();
  uint8_t byte = 0;
  WL_RETURN_IF_ERROR(reader_.Read(byte, Label()));
  if (byte > 1) {
    return reader_.Error("key ", key_, " at offset ", begin, ": a bool has the value ", byte,
                         ", not 0 or 1");
  }
  value = byte == 1;
  return absl::OkStatus();
}

absl::Status ValueReader::ReadArray(GgufArray& array) {
  const uint64_t begin = reader_.position();
  uint32_t type = 0;
  uint64_t count = 0;
  WL_RETURN_IF_ERROR(reader_.Read(type, Label()));
  WL_RETURN_IF_ERROR(reader_.Read(count, Label()));
  if (type >= kTypeCount) {
    return reader_.Error("key ", key_, " at offset ", begin, ": unknown element type ", type,
                         ", the highest is ", kTypeCount - 1);
  }
  if (type == kArray) {
    return reader_.Error("key ", key_, " at offset ", begin,
                         ": an array of arrays is not supported");
  }
  const uint64_t most = std::min(kMostElements, reader_.remaining() / kTypes[type].least_bytes);
  if (count > most) {
    return reader_.Error("key ", key_, " at offset ", begin, ": array of ", count,
                         " elements of type ", kTypes[type].name, ", at most ", most,
                         " fit into the remaining ", reader_.remaining(), " bytes");
  }
  array.element_type = static_cast<int>(type);
  if (type == kString)
    return ReadStrings(count, array.elements.emplace<std::vector<std::string>>());
  WL_RETURN_IF_ERROR(
      reader_.Charge(count * sizeof(int64_t), count * kTypes[type].least_bytes, Label()));
  if (type == kBool) return ReadBools(count, array.elements.emplace<std::vector<int64_t>>());
  VisitNumber(type, [&](auto number) {
    using T = decltype(number);
    using Wide = std::conditional_t<std::is_floating_point_v<T>, double, int64_t>;
    auto& values = array.elements.emplace<std::vector<Wide>>(count);
    for (Wide& element : values) element = static_cast<Wide>(reader_.Take<T>());
  });
  return absl::OkStatus();
}

absl::Status ValueReader::ReadBools(uint64_t count, std::vector<int64_t>& flags) {
  flags.resize(count);
  for (int64_t& flag : flags) {
    bool value = false;
    WL_RETURN_IF_ERROR(ReadBool(value));
    flag = value ? 1 : 0;
  }
  return absl::OkStatus();
}

absl::Status ValueReader::ReadStrings(uint64_t count, std::vector<std::string>& strings) {
  // Tokens and merges are short; other lists of strings may hold longer texts.
  const uint64_t most_bytes =
      absl::StartsWith(key_, "tokenizer.ggml.") ? kMostTokenBytes : kMostStringBytes;
  WL_RETURN_IF_ERROR(
      reader_.Charge(count * sizeof(std::string), count * kTypes[kString].least_bytes, Label()));
  strings.resize(count);
  for (uint64_t i = 0; i < count; ++i) {
    WL_RETURN_IF_ERROR(reader_.ReadText(strings[i], most_bytes, [this, i] {
      return absl::StrCat("element ", i, " of key ", key_);
    }));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadGgufMetadata(GgufReader& reader, uint64_t count, GgufMetadata& metadata) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t begin = reader.position();
    std::string key;
    const auto label = [i] { return absl::StrCat("name of key ", i); };
    WL_RETURN_IF_ERROR(reader.ReadText(key, kMostKeyBytes, label));
    if (key.empty()) return reader.Error("name of key ", i, " at offset ", begin, " is empty");
    const std::string printable = EscapeForLog(key);
    if (printable != key) {
      return reader.Error("name of key ", i, " at offset ", begin,
                          " has control characters or is not UTF-8: \"", printable.substr(0, 200),
                          "\"");
    }
    WL_RETURN_IF_ERROR(reader.Charge(kKeyCost, 0, label()));
    GgufValue value;
    WL_RETURN_IF_ERROR(ValueReader(reader, key).Read(value));
    if (!metadata.try_emplace(key, std::move(value)).second) {
      return reader.Error("key ", key, " at offset ", begin, " occurs twice");
    }
  }
  return absl::OkStatus();
}

std::string GgufTypeName(int64_t type) {
  if (type < 0 || type >= kTypeCount) return absl::StrCat("type ", type);
  return kTypes[type].name;
}

}  // namespace warpline
