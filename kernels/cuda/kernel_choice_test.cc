#include "kernels/cuda/kernel_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace warpline::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kDefaultShared = 48 << 10;

// A machine of invented devices in one process. Each keeps its own limits, as a driver does: they
// are of (kernel, device), and a launch beyond them fails.
class FakeMachine {
 public:
  struct DeviceTable {
    DeviceLimits limits;
    bool refuses_optin = false;  // the driver answers with an error
    bool ignores_optin = false;  // the driver answers OK and changes nothing
    int max_threads = 1024;
    int static_shared_bytes = 0;               // of every kernel
    std::map<const void*, int> shared_limits;  // of the kernels that have been raised
  };

  explicit FakeMachine(std::vector<DeviceTable> devices) : devices_(std::move(devices)) {}
  DeviceTable& device(int ordinal) { return devices_[static_cast<size_t>(ordinal)]; }

  int SharedLimit(int ordinal, const void* function) {
    const auto& limits = device(ordinal).shared_limits;
    const auto limit = limits.find(function);
    return limit == limits.end() ? kDefaultShared : limit->second;
  }
  // What a launch there would say.
  bool Launches(int ordinal, const KernelRow& row) {
    const int capability = device(ordinal).limits.capability;
    return capability >= row.min_capability && capability <= row.max_capability &&
           row.shared_bytes <= SharedLimit(ordinal, row.function);
  }

 private:
  std::vector<DeviceTable> devices_;
};

class FakeDriver final : public KernelDriver {
 public:
  FakeDriver(FakeMachine& machine, int ordinal) : machine_(machine), ordinal_(ordinal) {}

  absl::Status SetSharedLimit(const void* function, int bytes) override {
    FakeMachine::DeviceTable& device = machine_.device(ordinal_);
    if (device.refuses_optin) return absl::InternalError("invalid argument");
    if (bytes > device.limits.shared_bytes_optin) return absl::InternalError("invalid argument");
    if (!device.ignores_optin) device.shared_limits[function] = bytes;
    return absl::OkStatus();
  }
  absl::StatusOr<FunctionFacts> Facts(const void* function) override {
    return FunctionFacts{.max_dynamic_shared_bytes = machine_.SharedLimit(ordinal_, function),
                         .max_threads = machine_.device(ordinal_).max_threads};
  }
  absl::StatusOr<int> ResidentBlocks(const void*, int threads, int shared_bytes) override {
    const int by_memory = shared_bytes == 0 ? 32 : (228 << 10) / shared_bytes;
    return std::min(by_memory, 2048 / threads);
  }

 private:
  FakeMachine& machine_;
  int ordinal_;
};

// Addresses stand for kernels.
const char kFunctions[8] = {};

KernelRow Row(int index, Policy policy, int n, int shared_bytes, int min_capability,
              int max_capability = 10000) {
  return {.name = "tile",
          .policy = policy,
          .op = Op::kGateUp,
          .type = QuantType::kIQ3XXS,
          .n = n,
          .m = 128,
          .shared_bytes = shared_bytes,
          .threads = 256,
          .min_capability = min_capability,
          .max_capability = max_capability,
          .function = &kFunctions[index]};
}

// What needs nothing of the driver.
KernelRow Off() {
  KernelRow row = Row(0, Policy::kOff, 0, 0, 50);
  row.function = nullptr;
  return row;
}

// Tiles of four policies, of which the first needs most.
std::vector<KernelRow> Rows() {
  return {
      Row(0, Policy::kWgmma, 64, 120 << 10, 90, 90), Row(1, Policy::kWgmma, 256, 200 << 10, 90, 90),
      Row(2, Policy::kMmaSync, 128, 90 << 10, 75), Row(3, Policy::kWmma, 64, 40 << 10, 70), Off()};
}

FakeMachine::DeviceTable Card(int ordinal, int capability, int optin) {
  return {.limits = {.ordinal = ordinal,
                     .capability = capability,
                     .shared_bytes_optin = optin,
                     .processors = 132}};
}

KernelChoices Prepare(FakeMachine& machine, int ordinal) {
  FakeDriver driver(machine, ordinal);
  return KernelChoices::Prepare(driver, machine.device(ordinal).limits, Rows());
}

Policy Chosen(const KernelChoices& choices) {
  return (*choices.For(Op::kGateUp, QuantType::kIQ3XXS))->policy;
}

TEST(KernelChoiceTest, ACardThatCanDoAllTakesTheBestPolicyWithItsLargestTileFirst) {
  FakeMachine machine({Card(0, 90, 227 << 10)});
  const KernelChoices choices = Prepare(machine, 0);
  const absl::StatusOr<const KernelSet*> set = choices.For(Op::kGateUp, QuantType::kIQ3XXS);
  ASSERT_TRUE(set.ok());
  EXPECT_EQ((*set)->policy, Policy::kWgmma);
  ASSERT_EQ((*set)->kernels.size(), 2U);
  EXPECT_EQ((*set)->kernels[0].row.n, 256);
  EXPECT_EQ((*set)->kernels[0].resident_blocks, 1);
  EXPECT_EQ((*set)->kernels[1].row.n, 64);
  EXPECT_THAT(choices.Fallbacks(), IsEmpty());
  EXPECT_EQ(choices.Summary(), "IQ3_XXS: wgmma");
}

// The fault that this object makes impossible: a flag of the process says "raised", the second card
// has never been told.
TEST(KernelChoiceTest, EveryDeviceOfAProcessIsReallyPrepared) {
  FakeMachine machine({Card(0, 90, 227 << 10), Card(1, 90, 227 << 10), Card(2, 90, 227 << 10)});
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    const KernelChoices choices = Prepare(machine, ordinal);
    for (const KernelRow& row : Rows()) {
      EXPECT_TRUE(machine.Launches(ordinal, row)) << "device " << ordinal << " n " << row.n;
      EXPECT_EQ(machine.SharedLimit(ordinal, row.function),
                std::max(row.shared_bytes, kDefaultShared));
    }
  }
  // The third has been told nothing, so the launches that need an opt-in fail there.
  EXPECT_FALSE(machine.Launches(2, Rows()[0]));
  EXPECT_TRUE(machine.Launches(2, Rows()[3]));
}

TEST(KernelChoiceTest, DevicesKeepLimitsAndChoicesOfTheirOwn) {
  FakeMachine machine({Card(0, 90, 227 << 10), Card(1, 86, 99 << 10), Card(2, 70, 96 << 10)});
  const KernelChoices h200 = Prepare(machine, 0);
  const KernelChoices rtx = Prepare(machine, 1);
  const KernelChoices v100 = Prepare(machine, 2);
  EXPECT_EQ(Chosen(h200), Policy::kWgmma);
  EXPECT_EQ(Chosen(rtx), Policy::kMmaSync);
  EXPECT_EQ(Chosen(v100), Policy::kWmma);
  EXPECT_EQ(machine.SharedLimit(0, &kFunctions[1]), 200 << 10);
  EXPECT_EQ(machine.SharedLimit(1, &kFunctions[1]), kDefaultShared);
  EXPECT_EQ(machine.SharedLimit(1, &kFunctions[2]), 90 << 10);
  EXPECT_THAT(rtx.Fallbacks(),
              ElementsAre("gate_up IQ3_XXS: wgmma is code for sm_90, device 1 is sm_86; mma_sync "
                          "instead"));
  EXPECT_THAT(v100.Fallbacks(),
              ElementsAre("gate_up IQ3_XXS: mma_sync is code for sm_75 and newer, device 2 is "
                          "sm_70; wmma instead",
                          "gate_up IQ3_XXS: wgmma is code for sm_90, device 2 is sm_70; wmma "
                          "instead"));
}

TEST(KernelChoiceTest, ADriverThatRefusesTheOptInGetsTheFallbackByNameAndTheOthersDoNot) {
  FakeMachine machine({Card(0, 90, 227 << 10), Card(1, 90, 227 << 10)});
  machine.device(1).refuses_optin = true;
  const KernelChoices first = Prepare(machine, 0);
  const KernelChoices second = Prepare(machine, 1);
  EXPECT_EQ(Chosen(first), Policy::kWgmma);
  EXPECT_EQ(Chosen(second), Policy::kWmma);
  EXPECT_THAT(
      second.Fallbacks(),
      ElementsAre("gate_up IQ3_XXS: mma_sync cannot have 92160 B of shared memory on device "
                  "1 (invalid argument); wmma instead",
                  "gate_up IQ3_XXS: wgmma cannot have 122880 B of shared memory on device 1 "
                  "(invalid argument); wmma instead"));
  for (const KernelRow& row : Rows()) EXPECT_TRUE(machine.Launches(0, row));
}

TEST(KernelChoiceTest, AnOptInThatDidNotTakeIsFoundByReadingBack) {
  FakeMachine machine({Card(0, 90, 227 << 10)});
  machine.device(0).ignores_optin = true;
  const KernelChoices choices = Prepare(machine, 0);
  EXPECT_EQ(Chosen(choices), Policy::kWmma);
  EXPECT_THAT(choices.Fallbacks(),
              ElementsAre("gate_up IQ3_XXS: mma_sync asked for 92160 B of shared memory, device 0 "
                          "granted 49152 B; wmma instead",
                          "gate_up IQ3_XXS: wgmma asked for 122880 B of shared memory, device 0 "
                          "granted 49152 B; wmma instead"));
}

TEST(KernelChoiceTest, OneTileThatDoesNotFitTakesItsWholePolicyOut) {
  FakeMachine machine({Card(0, 90, 163 << 10)});  // room for n 64, not for n 256
  const KernelChoices choices = Prepare(machine, 0);
  EXPECT_EQ(Chosen(choices), Policy::kMmaSync);
  EXPECT_FALSE(choices.For(Op::kGateUp, QuantType::kIQ3XXS, Policy::kWgmma).ok());
  EXPECT_THAT(choices.Fallbacks(),
              ElementsAre("gate_up IQ3_XXS: wgmma needs 204800 B of shared memory, device 0 allows "
                          "166912 B; mma_sync instead"));
}

TEST(KernelChoiceTest, ABlockOfTooManyThreadsIsLeftOut) {
  FakeMachine machine({Card(0, 90, 227 << 10)});
  machine.device(0).max_threads = 128;
  const KernelChoices choices = Prepare(machine, 0);
  EXPECT_EQ(Chosen(choices), Policy::kOff);
  EXPECT_THAT(choices.Fallbacks().front(),
              HasSubstr("needs 256 threads a block, device 0 allows 128; off instead"));
}

TEST(KernelChoiceTest, VariantsForOtherCardsDoNotCountAgainstAPolicy) {
  FakeMachine machine({Card(0, 80, 163 << 10), Card(1, 75, 64 << 10)});
  std::vector<KernelRow> rows = {Row(0, Policy::kMmaSync, 128, 90 << 10, 80),
                                 Row(1, Policy::kMmaSync, 64, 60 << 10, 75, 79)};
  for (int ordinal = 0; ordinal < 2; ++ordinal) {
    FakeDriver driver(machine, ordinal);
    const KernelChoices choices =
        KernelChoices::Prepare(driver, machine.device(ordinal).limits, rows);
    const KernelSet* const set = *choices.For(Op::kGateUp, QuantType::kIQ3XXS);
    ASSERT_EQ(set->kernels.size(), 1U);
    EXPECT_EQ(set->kernels[0].row.n, ordinal == 0 ? 128 : 64);
    EXPECT_THAT(choices.Fallbacks(), IsEmpty());
  }
}

TEST(KernelChoiceTest, AKernelThatFailsItsCheckIsReplacedWithTheReason) {
  FakeMachine machine({Card(0, 90, 227 << 10)});
  KernelChoices choices = Prepare(machine, 0);
  choices.Refuse(Op::kGateUp, QuantType::kIQ3XXS, Policy::kWgmma, "gave wrong sums in its check");
  EXPECT_EQ(Chosen(choices), Policy::kMmaSync);
  EXPECT_THAT(choices.Fallbacks(),
              ElementsAre("gate_up IQ3_XXS: wgmma gave wrong sums in its check; mma_sync instead"));
  for (const Policy policy : {Policy::kMmaSync, Policy::kWmma, Policy::kOff}) {
    choices.Refuse(Op::kGateUp, QuantType::kIQ3XXS, policy, "failed too");
  }
  const absl::StatusOr<const KernelSet*> none = choices.For(Op::kGateUp, QuantType::kIQ3XXS);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("off failed too"));
}

TEST(KernelChoiceTest, AForcedPolicyIsNeverReplaced) {
  FakeMachine machine({Card(0, 86, 99 << 10)});
  const KernelChoices choices = Prepare(machine, 0);
  const auto forced = choices.For(Op::kGateUp, QuantType::kIQ3XXS, Policy::kWgmma);
  ASSERT_FALSE(forced.ok());
  EXPECT_THAT(std::string(forced.status().message()),
              HasSubstr("wgmma is code for sm_90, device 0 is sm_86"));
  EXPECT_EQ((*choices.For(Op::kGateUp, QuantType::kIQ3XXS, Policy::kWmma))->policy, Policy::kWmma);
  EXPECT_FALSE(choices.For(Op::kPlain, QuantType::kIQ3XXS).ok());  // The table has no such row.
}

KernelRow FewRow() {
  KernelRow row = Row(4, Policy::kMmaSync, 8, 0, 75);
  row.op = Op::kFewGateUp;
  return row;
}

TEST(KernelChoiceTest, ARestrictedChoiceTakesOnePolicyOrIsRefused) {
  FakeMachine machine({Card(0, 90, 227 << 10), Card(1, 86, 99 << 10)});
  std::vector<KernelRow> rows = Rows();
  rows.push_back(FewRow());
  KernelRow off = Off();
  off.op = Op::kFewGateUp;
  rows.push_back(off);
  const auto prepare = [&](int ordinal) {
    FakeDriver driver(machine, ordinal);
    return KernelChoices::Prepare(driver, machine.device(ordinal).limits, rows);
  };
  for (int i = 0; i < kPolicyCount; ++i) {
    const Policy policy = static_cast<Policy>(i);
    KernelChoices choices = prepare(0);
    ASSERT_TRUE(choices.Restrict(policy).ok()) << PolicyName(policy);
    EXPECT_EQ(Chosen(choices), policy);
    EXPECT_THAT(choices.Fallbacks(), IsEmpty());
    const KernelSet* const few = *choices.For(Op::kFewGateUp, QuantType::kIQ3XXS);
    EXPECT_EQ(few->policy, policy == Policy::kOff ? Policy::kOff : Policy::kMmaSync);
  }
  KernelChoices choices = prepare(1);
  const absl::Status refused = choices.Restrict(Policy::kWgmma);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.message(),
            "device 1 cannot run tiles of policy wgmma: is code for sm_90, device 1 is sm_86");
}

TEST(KernelChoiceTest, WhatFailedItsCheckIsNotReplacedByWhatIsNotAllowed) {
  FakeMachine machine({Card(0, 90, 227 << 10)});
  KernelChoices choices = Prepare(machine, 0);
  ASSERT_TRUE(choices.Restrict(Policy::kMmaSync).ok());
  choices.Refuse(Op::kGateUp, QuantType::kIQ3XXS, Policy::kMmaSync, "gave wrong sums");
  const absl::StatusOr<const KernelSet*> none = choices.For(Op::kGateUp, QuantType::kIQ3XXS);
  ASSERT_FALSE(none.ok());
  EXPECT_THAT(std::string(none.status().message()),
              HasSubstr("mma_sync gave wrong sums; only mma_sync is allowed"));
  EXPECT_THAT(
      std::string(choices.For(Op::kGateUp, QuantType::kIQ3XXS, Policy::kWgmma).status().message()),
      HasSubstr("wgmma is not allowed"));
}

TEST(KernelChoiceTest, TilesHaveTheNamesOfTheOption) {
  EXPECT_EQ(*ParseTiles("auto"), absl::nullopt);
  EXPECT_EQ(*ParseTiles("wgmma"), Policy::kWgmma);
  EXPECT_EQ(*ParseTiles("mma"), Policy::kMmaSync);
  EXPECT_EQ(*ParseTiles("wmma"), Policy::kWmma);
  EXPECT_EQ(*ParseTiles("off"), Policy::kOff);
  EXPECT_FALSE(ParseTiles("mosaic").ok());
}

TEST(KernelChoiceTest, TheSummaryGroupsTypesThatAreDoneAlike) {
  FakeMachine machine({Card(0, 90, 227 << 10)});
  std::vector<KernelRow> rows = {
      Row(0, Policy::kWgmma, 64, 0, 90), Row(1, Policy::kWgmma, 64, 0, 90),
      Row(2, Policy::kWgmma, 64, 0, 90), Row(3, Policy::kMmaSync, 8, 0, 75)};
  rows[1].type = QuantType::kQ4K;
  rows[2].type = QuantType::kQ6K;
  rows[3].type = QuantType::kQ6K;
  rows[3].op = Op::kFewPlain;
  FakeDriver driver(machine, 0);
  const KernelChoices choices = KernelChoices::Prepare(driver, machine.device(0).limits, rows);
  EXPECT_THAT(choices.Types(), ElementsAre(QuantType::kQ4K, QuantType::kQ6K, QuantType::kIQ3XXS));
  EXPECT_EQ(choices.Summary(), "Q6_K: gate_up wgmma, few_plain mma_sync; Q4_K IQ3_XXS: wgmma");
}

TEST(KernelChoiceTest, PolicyNamesReadBack) {
  for (int i = 0; i < kPolicyCount; ++i) {
    const Policy policy = static_cast<Policy>(i);
    EXPECT_EQ(*ParsePolicy(PolicyName(policy)), policy);
  }
  EXPECT_FALSE(ParsePolicy("tensor").ok());
}

}  // namespace
}  // namespace warpline::cuda
