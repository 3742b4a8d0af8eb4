// A back end that hands every call on to another one: tests override what they want to see.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "kernels/backend.h"

namespace warpline {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> inner) : inner_(std::move(inner)) {}

  std::string Describe() const override { return inner_->Describe(); }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t byte_count) override {
    return inner_->Allocate(byte_count);
  }
  absl::Status Upload(absl::Span<const uint8_t> bytes, Buffer& buffer, int64_t offset) override {
    return inner_->Upload(bytes, buffer, offset);
  }
  absl::Status Download(const Buffer& buffer, int64_t offset, absl::Span<uint8_t> bytes) override {
    return inner_->Download(buffer, offset, bytes);
  }
  absl::StatusOr<std::unique_ptr<Weight>> LoadWeight(const WeightArgs& args) override {
    return inner_->LoadWeight(args);
  }
  absl::StatusOr<std::unique_ptr<KvCache>> CreateKvCache(const KvCacheArgs& args) override {
    return inner_->CreateKvCache(args);
  }
  absl::StatusOr<std::unique_ptr<SlotState>> CreateSlotState(const SlotStateArgs& args) override {
    return inner_->CreateSlotState(args);
  }
  absl::Status PrepareMoe(const MoeFfnArgs& args) override { return inner_->PrepareMoe(args); }
  absl::Status Reserve(int64_t max_rows, int64_t max_context) override {
    return inner_->Reserve(max_rows, max_context);
  }
  absl::StatusOr<std::optional<DeviceMemory>> Memory() const override { return inner_->Memory(); }
  absl::Status BeginStep(const StepArgs& args) override { return inner_->BeginStep(args); }
  absl::Status EndStep() override { return inner_->EndStep(); }
  absl::Status Embed(const EmbedArgs& args) override { return inner_->Embed(args); }
  absl::Status NormConvert(const NormConvertArgs& args) override {
    return inner_->NormConvert(args);
  }
  absl::Status Linear(const LinearArgs& args) override { return inner_->Linear(args); }
  absl::Status QkvRopeStore(const QkvRopeStoreArgs& args) override {
    return inner_->QkvRopeStore(args);
  }
  absl::Status Attention(const AttentionArgs& args) override { return inner_->Attention(args); }
  absl::Status QsaIndexSelect(const QsaIndexSelectArgs& args) override {
    return inner_->QsaIndexSelect(args);
  }
  absl::Status QsaAttend(const QsaAttendArgs& args) override { return inner_->QsaAttend(args); }
  absl::Status DenseFfn(const DenseFfnArgs& args) override { return inner_->DenseFfn(args); }
  absl::Status MoeFfn(const MoeFfnArgs& args) override { return inner_->MoeFfn(args); }
  absl::Status HyperMix(const HyperMixArgs& args) override { return inner_->HyperMix(args); }
  absl::Status HyperCombine(const HyperCombineArgs& args) override {
    return inner_->HyperCombine(args);
  }
  absl::Status Ple(const PleArgs& args) override { return inner_->Ple(args); }
  absl::Status DeltaPrep(const DeltaPrepArgs& args) override { return inner_->DeltaPrep(args); }
  absl::Status DeltaRun(const DeltaRunArgs& args) override { return inner_->DeltaRun(args); }
  absl::Status Head(const HeadArgs& args) override { return inner_->Head(args); }
  absl::Status TopCandidates(const TopCandidatesArgs& args) override {
    return inner_->TopCandidates(args);
  }

 private:
  const std::unique_ptr<Backend> inner_;
};

}  // namespace warpline
