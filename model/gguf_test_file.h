// Makes GGUF files byte by byte for tests, good ones and broken ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "model/quant.h"

namespace warpline {

template <typename T>
std::string Bytes(T value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(T));
}
inline std::string GgufText(absl::string_view text) {
  return absl::StrCat(Bytes(uint64_t{text.size()}), text);
}

// A value with its type number, as it follows the key.
inline std::string GgufString(absl::string_view text) {
  return Bytes(uint32_t{8}) + GgufText(text);
}
inline std::string GgufU32(uint32_t value) { return Bytes(uint32_t{4}) + Bytes(value); }
inline std::string GgufI32(int32_t value) { return Bytes(uint32_t{5}) + Bytes(value); }
inline std::string GgufU16(uint16_t value) { return Bytes(uint32_t{2}) + Bytes(value); }
inline std::string GgufF32(float value) { return Bytes(uint32_t{6}) + Bytes(value); }
inline std::string GgufBool(uint8_t value) { return Bytes(uint32_t{7}) + Bytes(value); }
inline std::string GgufArrayOf(uint32_t type, uint64_t count, absl::string_view elements) {
  return absl::StrCat(Bytes(uint32_t{9}), Bytes(type), Bytes(count), elements);
}
inline std::string GgufStrings(const std::vector<std::string>& texts) {
  std::string elements;
  for (const std::string& text : texts) elements += GgufText(text);
  return GgufArrayOf(8, texts.size(), elements);
}
inline std::string GgufU32s(const std::vector<uint32_t>& values) {
  std::string elements;
  for (const uint32_t value : values) elements += Bytes(value);
  return GgufArrayOf(4, values.size(), elements);
}

struct TestTensor {
  std::string name;
  std::vector<int64_t> dims;
  int32_t type = 0;
  std::string data;   // its length is the size that the layout goes by
  int64_t shift = 0;  // added to the right offset
};

// The parts of a file. Counts are right unless set.
struct TestGguf {
  std::string magic = "GGUF";
  uint32_t version = 3;
  int64_t extra_tensors = 0;  // added to the tensor count
  int64_t extra_keys = 0;
  uint64_t alignment = 32;  // of the layout; the key is not written
  std::vector<std::pair<std::string, std::string>> keys;
  std::vector<TestTensor> tensors;

  void Set(absl::string_view key, std::string value) {
    for (auto& [name, old] : keys) {
      if (name == key) {
        old = std::move(value);
        return;
      }
    }
    keys.emplace_back(std::string(key), std::move(value));
  }
  void Remove(absl::string_view key) {
    keys.erase(std::remove_if(keys.begin(), keys.end(),
                              [key](const auto& entry) { return entry.first == key; }),
               keys.end());
  }
  // Values are 1.0 in F32 and zero bytes in other types.
  TestTensor& AddTensor(std::string name, std::vector<int64_t> dims,
                        QuantType type = QuantType::kF32) {
    int64_t rows = 1;
    for (size_t i = 1; i < dims.size(); ++i) rows *= dims[i];
    std::string data(static_cast<size_t>(RowBytes(type, dims[0]) * rows), '\0');
    for (size_t i = 0; type == QuantType::kF32 && i < data.size(); i += sizeof(float)) {
      data.replace(i, sizeof(float), Bytes(1.0f));
    }
    tensors.push_back(
        {std::move(name), std::move(dims), static_cast<int32_t>(type), std::move(data)});
    return tensors.back();
  }
  TestTensor& Tensor(absl::string_view name) {
    return *std::find_if(tensors.begin(), tensors.end(),
                         [name](const TestTensor& t) { return t.name == name; });
  }
  void RemoveTensor(absl::string_view name) {
    tensors.erase(std::remove_if(tensors.begin(), tensors.end(),
                                 [name](const TestTensor& t) { return t.name == name; }),
                  tensors.end());
  }
  void ReplaceTensor(const std::string& name, std::vector<int64_t> dims,
                     QuantType type = QuantType::kF32) {
    RemoveTensor(name);
    AddTensor(name, std::move(dims), type);
  }

  // Header, metadata and infos.
  std::string Head() const {
    std::string out = magic + Bytes(version) +
                      Bytes(static_cast<int64_t>(tensors.size()) + extra_tensors) +
                      Bytes(static_cast<int64_t>(keys.size()) + extra_keys);
    for (const auto& [key, value] : keys) out += GgufText(key) + value;
    uint64_t offset = 0;
    for (const TestTensor& tensor : tensors) {
      out += GgufText(tensor.name) + Bytes(static_cast<uint32_t>(tensor.dims.size()));
      for (const int64_t dim : tensor.dims) out += Bytes(dim);
      out += Bytes(tensor.type) + Bytes(offset + static_cast<uint64_t>(tensor.shift));
      offset = Pad(offset + tensor.data.size());
    }
    return out;
  }
  std::string Build() const {
    std::string out = Head();
    for (const TestTensor& tensor : tensors) {
      out.resize(Pad(out.size()));
      out += tensor.data;
    }
    return out;
  }

 private:
  uint64_t Pad(uint64_t value) const { return (value + alignment - 1) / alignment * alignment; }
};

// A folder of this process that goes away with the object.
class TestFolder {
 public:
  TestFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "warpline_gguf_XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;

  std::string Path(const std::string& name) const { return absl::StrCat(path_, "/", name); }
  std::string Write(const std::string& name, absl::string_view bytes) const {
    std::ofstream(Path(name), std::ios::binary)
        .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    return Path(name);
  }

 private:
  std::string path_;
};

// A whole model: one layer, width 32, two heads of 16 over one key head, vocabulary of 4. Experts,
// when the architecture has them: 4, of which 2 are used, of width 32, and a shared one of
// width 64.
inline TestGguf TestModel(const std::string& arch) {
  const bool has_experts = arch == "qwen2moe" || arch == "qwen3moe";
  TestGguf file;
  file.Set("general.architecture", GgufString(arch));
  file.Set(arch + ".context_length", GgufU32(128));
  file.Set(arch + ".embedding_length", GgufU32(32));
  file.Set(arch + ".block_count", GgufU32(1));
  file.Set(arch + ".feed_forward_length", GgufU32(64));
  file.Set(arch + ".attention.head_count", GgufU32(2));
  file.Set(arch + ".attention.head_count_kv", GgufU32(1));
  file.Set(arch + ".attention.layer_norm_rms_epsilon", GgufF32(1e-5f));
  file.Set("tokenizer.ggml.tokens", GgufStrings({"a", "b", "c", "d"}));
  file.AddTensor("token_embd.weight", {32, 4});
  file.AddTensor("output_norm.weight", {32});
  file.AddTensor("output.weight", {32, 4});
  file.AddTensor("blk.0.attn_norm.weight", {32});
  file.AddTensor("blk.0.ffn_norm.weight", {32});
  file.AddTensor("blk.0.attn_q.weight", {32, 32});
  file.AddTensor("blk.0.attn_k.weight", {32, 16});
  file.AddTensor("blk.0.attn_v.weight", {32, 16});
  file.AddTensor("blk.0.attn_output.weight", {32, 32});
  if (arch == "qwen3" || arch == "qwen3moe") {
    file.AddTensor("blk.0.attn_q_norm.weight", {16});
    file.AddTensor("blk.0.attn_k_norm.weight", {16});
  }
  if (!has_experts) {
    file.AddTensor("blk.0.ffn_gate.weight", {32, 64});
    file.AddTensor("blk.0.ffn_up.weight", {32, 64});
    file.AddTensor("blk.0.ffn_down.weight", {64, 32});
    return file;
  }
  file.Set(arch + ".expert_count", GgufU32(4));
  file.Set(arch + ".expert_used_count", GgufU32(2));
  file.AddTensor("blk.0.ffn_gate_inp.weight", {32, 4});
  file.AddTensor("blk.0.ffn_gate_exps.weight", {32, 32, 4});
  file.AddTensor("blk.0.ffn_up_exps.weight", {32, 32, 4});
  file.AddTensor("blk.0.ffn_down_exps.weight", {32, 32, 4});
  if (arch == "qwen2moe") {
    file.AddTensor("blk.0.ffn_gate_inp_shexp.weight", {32});
    file.AddTensor("blk.0.ffn_gate_shexp.weight", {32, 64});
    file.AddTensor("blk.0.ffn_up_shexp.weight", {32, 64});
    file.AddTensor("blk.0.ffn_down_shexp.weight", {64, 32});
  }
  return file;
}

}  // namespace warpline
