#include "model/gguf.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "model/gguf_shard.h"
#include "model/mapped_file.h"

namespace warpline {
namespace {

constexpr int64_t kMostShards = 65535;
constexpr size_t kShardSuffixBytes = 20;  // "-00001-of-00003.gguf"

// How much more memory than its bytes a file's metadata may take decoded. Their sum, the pages in
// use and the program itself stay below 64 MiB. Later shards carry almost no metadata, and it is
// not kept.
constexpr uint64_t kFirstShardFreeBytes = uint64_t{40} << 20;
constexpr uint64_t kLaterShardFreeBytes = uint64_t{8} << 20;

// The file name of a shard, taken apart. Names always come from this pattern, never from inside a
// file.
struct ShardName {
  std::string prefix;  // with the directory
  int64_t index = 0;   // 0-based
  int64_t count = 0;

  std::string Path(int64_t shard) const {
    return absl::StrFormat("%s-%05d-of-%05d.gguf", prefix, shard + 1, count);
  }
};

bool ParseShardName(const std::string& path, ShardName& name) {
  if (path.size() <= kShardSuffixBytes) return false;
  const absl::string_view suffix = absl::string_view(path).substr(path.size() - kShardSuffixBytes);
  const absl::string_view number = suffix.substr(1, 5);
  const absl::string_view count = suffix.substr(10, 5);
  for (const absl::string_view digits : {number, count}) {
    for (const char c : digits) {
      if (c < '0' || c > '9') return false;
    }
  }
  if (suffix[0] != '-' || suffix.substr(6, 4) != "-of-" || suffix.substr(15) != ".gguf")
    return false;
  int64_t one_based = 0;
  if (!absl::SimpleAtoi(number, &one_based) || !absl::SimpleAtoi(count, &name.count)) return false;
  name.prefix = path.substr(0, path.size() - kShardSuffixBytes);
  name.index = one_based - 1;
  return true;
}

// The value as text for messages, shortened.
std::string Describe(const GgufValue& value) {
  struct Visitor {
    std::string operator()(int64_t v) const { return absl::StrCat(v); }
    std::string operator()(uint64_t v) const { return absl::StrCat(v); }
    std::string operator()(double v) const { return absl::StrCat(v); }
    std::string operator()(bool v) const { return v ? "true" : "false"; }
    std::string operator()(const std::string& v) const {
      return absl::StrCat("\"", EscapeForLog(absl::string_view(v).substr(0, 80)), "\"");
    }
    std::string operator()(const GgufArray& v) const {
      const size_t count =
          absl::visit([](const auto& elements) { return elements.size(); }, v.elements);
      return absl::StrCat(count, " elements of type ", GgufTypeName(v.element_type));
    }
  };
  return absl::StrCat(GgufTypeName(value.type), " ", absl::visit(Visitor{}, value.value));
}

}  // namespace

struct GgufFile::Impl {
  struct Shard {
    std::string path;
    std::unique_ptr<MappedFile> file;
    uint64_t header_bytes = 0;
  };

  std::string path;
  std::string printable_path;
  std::vector<Shard> shards;
  GgufMetadata metadata;  // of the first shard
  std::vector<GgufTensor> tensors;
  absl::flat_hash_map<absl::string_view, size_t> tensor_index;  // keys point into `tensors`
  std::vector<std::string> warnings;

  template <typename... Args>
  absl::Status Error(const Args&... args) const {
    return absl::InvalidArgumentError(absl::StrCat(printable_path, ": ", args...));
  }

  absl::Status Load();
  absl::Status AddShard(const std::string& shard_path, GgufMetadata& shard_metadata);
  absl::Status IndexTensors();
  absl::Status LoadOtherShards(int64_t count);
  absl::Status CheckShardKeys(const GgufMetadata& shard_metadata, const std::string& shard_path,
                              int64_t index, int64_t count) const;
  absl::StatusOr<const GgufValue*> Require(absl::string_view key) const;
  absl::Status WrongType(absl::string_view key, const GgufValue& value,
                         absl::string_view wanted) const {
    return Error("key ", key, " is ", Describe(value), ", wanted ", wanted);
  }
};

namespace {

// An integer of any type. False when the value is no integer or does not fit.
bool AsInt(const GgufValue& value, int64_t& result) {
  if (const int64_t* const number = absl::get_if<int64_t>(&value.value)) {
    result = *number;
    return true;
  }
  const uint64_t* const number = absl::get_if<uint64_t>(&value.value);
  if (number == nullptr || *number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
    return false;
  result = static_cast<int64_t>(*number);
  return true;
}

}  // namespace

absl::Status GgufFile::Impl::Load() {
  WL_RETURN_IF_ERROR(AddShard(path, metadata));
  const auto found = metadata.find("split.count");
  int64_t count = 1;
  if (found != metadata.end() &&
      (!AsInt(found->second, count) || count < 0 || count > kMostShards)) {
    return Error("key split.count is ", Describe(found->second), ", must be an integer from 0 to ",
                 kMostShards);
  }
  if (count > 1) WL_RETURN_IF_ERROR(LoadOtherShards(count));
  return IndexTensors();
}

absl::Status GgufFile::Impl::AddShard(const std::string& shard_path, GgufMetadata& shard_metadata) {
  WL_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(shard_path));
  const std::string printable = EscapeForLog(shard_path);
  const uint64_t free_bytes = shards.empty() ? kFirstShardFreeBytes : kLaterShardFreeBytes;
  WL_ASSIGN_OR_RETURN(GgufShard parsed, ParseGgufShard(*file, printable, free_bytes));
  if (tensors.size() + parsed.tensors.size() > kMostGgufTensors) {
    return absl::InvalidArgumentError(
        absl::StrCat(printable, ": ", parsed.tensors.size(), " tensors after ", tensors.size(),
                     " in earlier shards, at most ", kMostGgufTensors, " are supported"));
  }
  for (GgufTensor& tensor : parsed.tensors) tensor.shard = static_cast<int>(shards.size());
  if (tensors.empty()) {
    tensors = std::move(parsed.tensors);
  } else {
    std::move(parsed.tensors.begin(), parsed.tensors.end(), std::back_inserter(tensors));
  }
  for (std::string& warning : parsed.warnings) warnings.push_back(std::move(warning));
  shard_metadata = std::move(parsed.metadata);
  shards.push_back(
      {.path = shard_path, .file = std::move(file), .header_bytes = parsed.header_bytes});
  return absl::OkStatus();
}

absl::Status GgufFile::Impl::IndexTensors() {
  tensor_index.reserve(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const GgufTensor& tensor = tensors[i];
    const auto [entry, is_new] = tensor_index.try_emplace(tensor.name, i);
    if (is_new) continue;
    const GgufTensor& other = tensors[entry->second];
    return Error("tensor ", tensor.name, " occurs twice: in shard ", other.shard + 1, " at offset ",
                 other.offset, " and in shard ", tensor.shard + 1, " at offset ", tensor.offset,
                 other.shard == tensor.shard ? "" : "; do the shards belong together?");
  }
  return absl::OkStatus();
}

absl::Status GgufFile::Impl::LoadOtherShards(int64_t count) {
  ShardName name;
  const bool named = ParseShardName(path, name);
  int64_t index = 0;
  const auto number = metadata.find("split.no");
  if (number == metadata.end() || !AsInt(number->second, index)) {
    return Error("key split.no is missing or no integer, but split.count is ", count);
  }
  if (index != 0 || (named && name.index != 0)) {
    return Error("this is shard ", (index != 0 ? index : name.index) + 1, " of ", count,
                 ": start from shard 1 of ", count,
                 named ? absl::StrCat(" (", EscapeForLog(name.Path(0)), ")") : "");
  }
  if (!named) {
    return Error("key split.count is ", count, ", but the file name does not end in -00001-of-",
                 absl::StrFormat("%05d", count), ".gguf");
  }
  if (name.count != count) {
    return Error("key split.count is ", count, ", but the file name says ", name.count);
  }
  for (int64_t shard = 1; shard < count; ++shard) {
    const std::string shard_path = name.Path(shard);
    GgufMetadata shard_metadata;
    if (absl::Status status = AddShard(shard_path, shard_metadata); !status.ok()) {
      return Annotate(status, absl::StrCat("shard ", shard + 1, " of ", count));
    }
    WL_RETURN_IF_ERROR(CheckShardKeys(shard_metadata, shard_path, shard, count));
  }
  const auto total = metadata.find("split.tensors.count");
  if (total == metadata.end()) return absl::OkStatus();
  int64_t tensor_count = 0;
  if (!AsInt(total->second, tensor_count) || tensor_count != static_cast<int64_t>(tensors.size())) {
    return Error("key split.tensors.count is ", Describe(total->second), ", but the ", count,
                 " shards have ", tensors.size(), " tensors");
  }
  return absl::OkStatus();
}

absl::Status GgufFile::Impl::CheckShardKeys(const GgufMetadata& shard_metadata,
                                            const std::string& shard_path, int64_t index,
                                            int64_t count) const {
  const std::string printable = EscapeForLog(shard_path);
  const std::pair<const char*, int64_t> expected[] = {{"split.no", index}, {"split.count", count}};
  for (const auto& [key, value] : expected) {
    const auto found = shard_metadata.find(key);
    int64_t actual = 0;
    if (found == shard_metadata.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(printable, ": key ", key, " is missing, must be ", value));
    }
    if (!AsInt(found->second, actual) || actual != value) {
      return absl::InvalidArgumentError(absl::StrCat(printable, ": key ", key, " is ",
                                                     Describe(found->second), ", must be ", value));
    }
  }
  // Later shards need not repeat these keys; one that does and differs belongs to another model.
  for (const char* const key : {"general.architecture", "general.name"}) {
    const auto other = shard_metadata.find(key);
    const auto ours = metadata.find(key);
    if (other == shard_metadata.end()) continue;
    if (ours == metadata.end() || Describe(other->second) != Describe(ours->second)) {
      return absl::InvalidArgumentError(absl::StrCat(
          printable, ": a shard of another model: key ", key, " is ", Describe(other->second),
          ", in shard 1 it is ", ours == metadata.end() ? "missing" : Describe(ours->second)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<const GgufValue*> GgufFile::Impl::Require(absl::string_view key) const {
  const auto found = metadata.find(key);
  if (found == metadata.end()) {
    return absl::NotFoundError(absl::StrCat(printable_path, ": key ", key, " is missing"));
  }
  return &found->second;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const std::string& path) {
  auto impl = std::make_unique<Impl>();
  impl->path = path;
  impl->printable_path = EscapeForLog(path);
  WL_RETURN_IF_ERROR(impl->Load());
  return std::unique_ptr<GgufFile>(new GgufFile(std::move(impl)));
}

GgufFile::GgufFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GgufFile::~GgufFile() = default;

const std::string& GgufFile::path() const { return impl_->path; }

const GgufValue* GgufFile::Find(absl::string_view key) const {
  const auto found = impl_->metadata.find(key);
  return found == impl_->metadata.end() ? nullptr : &found->second;
}

absl::StatusOr<int64_t> GgufFile::GetInt(absl::string_view key) const {
  WL_ASSIGN_OR_RETURN(const GgufValue* const value, impl_->Require(key));
  int64_t number = 0;
  if (!AsInt(*value, number)) return impl_->WrongType(key, *value, "a 64-bit signed integer");
  return number;
}

absl::StatusOr<double> GgufFile::GetFloat(absl::string_view key) const {
  WL_ASSIGN_OR_RETURN(const GgufValue* const value, impl_->Require(key));
  const double* const number = absl::get_if<double>(&value->value);
  if (number == nullptr) return impl_->WrongType(key, *value, "a float");
  return *number;
}

absl::StatusOr<bool> GgufFile::GetBool(absl::string_view key) const {
  WL_ASSIGN_OR_RETURN(const GgufValue* const value, impl_->Require(key));
  const bool* const flag = absl::get_if<bool>(&value->value);
  if (flag == nullptr) return impl_->WrongType(key, *value, "a bool");
  return *flag;
}

absl::StatusOr<std::string> GgufFile::GetString(absl::string_view key) const {
  WL_ASSIGN_OR_RETURN(const GgufValue* const value, impl_->Require(key));
  const std::string* const text = absl::get_if<std::string>(&value->value);
  if (text == nullptr) return impl_->WrongType(key, *value, "a string");
  return *text;
}

namespace {

// The elements when `value` is an array of them.
template <typename T>
const std::vector<T>* AsArray(const GgufValue& value) {
  const GgufArray* const array = absl::get_if<GgufArray>(&value.value);
  return array == nullptr ? nullptr : absl::get_if<std::vector<T>>(&array->elements);
}

}  // namespace

absl::StatusOr<absl::Span<const std::string>> GgufFile::GetStrings(absl::string_view key) const {
  WL_ASSIGN_OR_RETURN(const GgufValue* const value, impl_->Require(key));
  const auto* const elements = AsArray<std::string>(*value);
  if (elements == nullptr) return impl_->WrongType(key, *value, "an array of strings");
  return absl::MakeConstSpan(*elements);
}

absl::StatusOr<absl::Span<const int64_t>> GgufFile::GetInts(absl::string_view key) const {
  WL_ASSIGN_OR_RETURN(const GgufValue* const value, impl_->Require(key));
  const auto* const elements = AsArray<int64_t>(*value);
  if (elements == nullptr) return impl_->WrongType(key, *value, "an array of integers");
  return absl::MakeConstSpan(*elements);
}

absl::StatusOr<absl::Span<const double>> GgufFile::GetFloats(absl::string_view key) const {
  WL_ASSIGN_OR_RETURN(const GgufValue* const value, impl_->Require(key));
  const auto* const elements = AsArray<double>(*value);
  if (elements == nullptr) return impl_->WrongType(key, *value, "an array of floats");
  return absl::MakeConstSpan(*elements);
}

absl::Span<const GgufTensor> GgufFile::tensors() const { return impl_->tensors; }

const GgufTensor* GgufFile::FindTensor(absl::string_view name) const {
  const auto found = impl_->tensor_index.find(name);
  return found == impl_->tensor_index.end() ? nullptr : &impl_->tensors[found->second];
}

absl::Span<const uint8_t> GgufFile::Data(const GgufTensor& tensor) const {
  return ShardBytes(tensor.shard).subspan(tensor.offset, tensor.byte_count);
}

void GgufFile::Release(const GgufTensor& tensor) const {
  ReleaseBytes(tensor.shard, tensor.offset, tensor.byte_count);
}

int GgufFile::shard_count() const { return static_cast<int>(impl_->shards.size()); }

const std::string& GgufFile::ShardPath(int shard) const { return impl_->shards[shard].path; }

absl::Span<const uint8_t> GgufFile::ShardBytes(int shard) const {
  return impl_->shards[static_cast<size_t>(shard)].file->bytes();
}

uint64_t GgufFile::HeaderBytes(int shard) const {
  return impl_->shards[static_cast<size_t>(shard)].header_bytes;
}

void GgufFile::ReleaseBytes(int shard, uint64_t begin, uint64_t length) const {
  impl_->shards[static_cast<size_t>(shard)].file->Release(begin, length);
}

absl::Span<const std::string> GgufFile::warnings() const { return impl_->warnings; }

uint64_t GgufFile::total_file_bytes() const {
  uint64_t total = 0;
  for (const Impl::Shard& shard : impl_->shards) total += shard.file->bytes().size();
  return total;
}

}  // namespace warpline
