// Writes GGUF files that hold nothing but a vocabulary, for tests.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/gguf.h"
#include "model/tokenizer.h"

namespace warpline {

// A vocabulary under construction. Setting a key again replaces it.
class VocabularyFile {
 public:
  // `model` is gpt2, llama or none.
  explicit VocabularyFile(const std::string& model) {
    Set("model", model);
    values_["general.architecture"] = Tag(kString) + Text("llama");
  }

  void Set(const std::string& name, const std::string& value) {
    Put(name, Tag(kString) + Text(value));
  }
  void Set(const std::string& name, bool value) { Put(name, Tag(kBool) + std::string(1, value)); }
  void Set(const std::string& name, uint32_t value) { Put(name, Tag(kU32) + Number(value)); }
  void Set(const std::string& name, const std::vector<std::string>& values) {
    std::string bytes = ArrayHead(kString, values.size());
    for (const std::string& value : values) bytes += Text(value);
    Put(name, bytes);
  }
  void Set(const std::string& name, const std::vector<int32_t>& values) {
    std::string bytes = ArrayHead(kI32, values.size());
    for (const int32_t value : values) bytes += Number(value);
    Put(name, bytes);
  }
  void Set(const std::string& name, const std::vector<float>& values) {
    std::string bytes = ArrayHead(kF32, values.size());
    for (const float value : values) bytes += Number(value);
    Put(name, bytes);
  }
  void Remove(const std::string& name) { values_.erase("tokenizer.ggml." + name); }

  absl::StatusOr<std::unique_ptr<Tokenizer>> Load() const {
    std::string path = absl::StrCat("/tmp/warpline_vocabulary_", getpid(), ".gguf");
    std::string bytes =
        "GGUF" + Number(uint32_t{3}) + Number(uint64_t{0}) + Number(uint64_t{values_.size()});
    for (const auto& [key, value] : values_) bytes += Text(key) + value;
    std::ofstream(path, std::ios::binary) << bytes;
    absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(path);
    std::remove(path.c_str());
    if (!file.ok()) return file.status();
    return Tokenizer::Create(**file);
  }

 private:
  static constexpr uint32_t kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9;

  template <typename T>
  static std::string Number(T value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  static std::string Tag(uint32_t type) { return Number(type); }
  static std::string Text(const std::string& text) { return Number(uint64_t{text.size()}) + text; }
  static std::string ArrayHead(uint32_t type, size_t count) {
    return Tag(kArray) + Tag(type) + Number(uint64_t{count});
  }
  void Put(const std::string& name, std::string bytes) {
    values_["tokenizer.ggml." + name] = std::move(bytes);
  }

  std::map<std::string, std::string> values_;  // type and value by full key
};

}  // namespace warpline
