// Compares every decoder with golden values: blocks and what they mean, for all types.
// WARPLINE_GOLDEN_DIR names another folder that holds dequant/.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "kernels/quant_decode.h"

namespace warpline {
namespace {

std::string GoldenFolder() {
  const char* const folder = std::getenv("WARPLINE_GOLDEN_DIR");
  return std::string(folder != nullptr ? folder : WARPLINE_TEST_DATA) + "/dequant/";
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

// The values of "type" in the folder's index.
std::vector<std::string> IndexedTypes() {
  const std::string index = ReadFile(GoldenFolder() + "index.json");
  const std::string key = "\"type\"";
  std::vector<std::string> names;
  for (size_t at = index.find(key); at != std::string::npos; at = index.find(key, at + 1)) {
    const size_t begin = index.find('"', at + key.size()) + 1;
    names.push_back(index.substr(begin, index.find('"', begin) - begin));
  }
  return names;
}

const QuantTypeInfo* FindByName(const std::string& name) {
  for (const QuantTypeInfo& info : AllQuantTypes()) {
    if (name == info.name) return &info;
  }
  return nullptr;
}

// Bit-equal, except that the two zeros count as one.
void ExpectSameBits(const std::vector<float>& got, const std::vector<float>& want,
                    const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < want.size(); ++i) {
    uint32_t got_bits, want_bits;
    std::memcpy(&got_bits, &got[i], sizeof(got_bits));
    std::memcpy(&want_bits, &want[i], sizeof(want_bits));
    const bool both_zero = got[i] == 0 && want[i] == 0;
    ASSERT_TRUE(got_bits == want_bits || both_zero)
        << what << " value " << i << ": got " << got[i] << ", want " << want[i];
  }
}

TEST(GoldenDequantTest, TheIndexNamesEveryWeightType) {
  const std::vector<std::string> names = IndexedTypes();
  ASSERT_FALSE(names.empty());
  if (std::getenv("WARPLINE_GOLDEN_DIR") != nullptr) return;  // Another folder may hold fewer.
  for (const QuantTypeInfo& info : AllQuantTypes()) {
    const bool is_named = std::find(names.begin(), names.end(), info.name) != names.end();
    EXPECT_EQ(is_named, info.is_weight) << info.name;
  }
}

TEST(GoldenDequantTest, AllDecodersGiveTheGoldenBits) {
  for (const std::string& name : IndexedTypes()) {
    const QuantTypeInfo* const info = FindByName(name);
    ASSERT_NE(info, nullptr) << name;
    const std::string blocks = ReadFile(GoldenFolder() + name + ".blocks.bin");
    const std::string values = ReadFile(GoldenFolder() + name + ".f32");
    ASSERT_GT(blocks.size(), 0u) << name;
    ASSERT_EQ(blocks.size() % info->block_bytes, 0u) << name;
    const size_t count = blocks.size() / info->block_bytes * info->block_values;
    ASSERT_EQ(values.size(), count * sizeof(float)) << name;
    std::vector<float> want(count), got(count);
    std::memcpy(want.data(), values.data(), values.size());
    const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(blocks.data());

    DequantizeRow(info->type, bytes, static_cast<int64_t>(count), got.data());
    ExpectSameBits(got, want, name + " scalar");
    for (const char* set_name : {"avx2", "avx512"}) {
      const absl::StatusOr<InstructionSet> set = DetectInstructionSet(set_name);
      if (!set.ok()) continue;  // Not on this processor; the scalar decoder was compared.
      std::fill(got.begin(), got.end(), -1.0f);
      FastDequantizer(info->type, *set)(bytes, static_cast<int64_t>(count), got.data());
      ExpectSameBits(got, want, name + " " + set_name);
    }
  }
}

}  // namespace
}  // namespace warpline
