// The vector decoders as sinks see them: every sixteenth of a block once, in ascending order, with
// the values of the scalar decoder. (Their bits are compared in quant_decode_test.cc.)
#define HWY_BASELINE_TARGETS HWY_AVX2
#define HWY_DISABLED_TARGETS (HWY_SCALAR | HWY_EMU128 | HWY_SSSE3 | HWY_SSE4)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quant_decode_simd_test.cc"
#include "hwy/foreach_target.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/instruction_set.h"
#include "kernels/quant_decode_blocks.h"
#include "kernels/quant_decode_simd-inl.h"
#include "kernels/quant_decode_simd_iq-inl.h"
#include "kernels/quant_decode_simd_k-inl.h"
#include "kernels/quant_grids.h"

HWY_BEFORE_NAMESPACE();
namespace warpline {
namespace HWY_NAMESPACE {

struct RecordingSink {
  void Take(int sixteenth, decode::Floats16 values) {
    sixteenths.push_back(sixteenth);
    out.resize(out.size() + 16);
    decode::StoreFloats(values, out.data() + out.size() - 16);
  }
  std::vector<int> sixteenths;
  std::vector<float> out;
};

struct OrderCheck {
  template <QuantType kType>
  bool Visit() const {
    using Simd = decode::SimdBlock<kType>;
    using Scalar = typename BlockOf<kType>::Type;
    std::vector<uint8_t> block(Simd::kBytes);
    for (int i = 0; i < Simd::kBytes; ++i) block[i] = static_cast<uint8_t>(i * 37 & 0x3B);
    RecordingSink sink;
    Simd::Decode(block.data(), HostQuantGrids(), sink);

    std::vector<int> ascending;
    for (int i = 0; i < Simd::kValues / 16; ++i) ascending.push_back(i);
    std::vector<float> want(Simd::kValues);
    for (int i = 0; i < Simd::kValues / Scalar::kValues; ++i) {
      Scalar::Decode(block.data() + i * Scalar::kBytes, HostQuantGrids(),
                     want.data() + i * Scalar::kValues);
    }
    return sink.sixteenths == ascending && sink.out == want;
  }
  bool NotAWeight() const { return false; }
};

bool TakesInOrder(QuantType type) { return VisitWeightType(type, OrderCheck()); }

}  // namespace HWY_NAMESPACE
}  // namespace warpline
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace warpline {
namespace {

void ExpectInOrder(const char* set_name, bool (*takes_in_order)(QuantType)) {
  const absl::Status detected = DetectInstructionSet(set_name).status();
  if (!detected.ok()) GTEST_SKIP() << detected.message();
  for (const QuantTypeInfo& info : AllQuantTypes()) {
    if (!info.is_weight) continue;
    EXPECT_TRUE(takes_in_order(info.type)) << info.name;
  }
}

TEST(QuantDecodeSimdTest, SinksSeeSixteenthsInOrderWithAvx2) {
  ExpectInOrder("avx2", N_AVX2::TakesInOrder);
}
TEST(QuantDecodeSimdTest, SinksSeeSixteenthsInOrderWithAvx512) {
  ExpectInOrder("avx512", N_AVX3::TakesInOrder);
}

}  // namespace
}  // namespace warpline
#endif  // HWY_ONCE
