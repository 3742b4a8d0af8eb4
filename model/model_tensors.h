// Which tensors a model has, with their shapes and the types that they may have. Internal to the
// target `model_spec`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "model/gguf.h"
#include "model/model_spec.h"

namespace warpline {

// What a tensor is used for decides the types it may have.
enum class TensorUse {
  kMatrix,   // any weight type; may have a companion `<base>.scale`
  kVector,   // norms, biases, kernels of convolutions: F32, F16, BF16
  kFactors,  // rotary factors: F32, positive and finite
};

// Where a tensor is needed. kNowhere: the file must have it, but nothing loads it.
enum class TensorPlace { kLayer, kEmbedding, kHead, kEverywhere, kDisk, kNowhere };

struct ExpectedTensor {
  std::string name;
  std::vector<int64_t> dims;        // as in GgufTensor; missing ones are 1
  std::vector<int64_t> other_dims;  // the same values in another shape, or empty
  TensorUse use = TensorUse::kMatrix;
  TensorPlace place = TensorPlace::kLayer;
  int layer = 0;  // of kLayer
  bool required = true;
};

// All tensors that this model may use, without the companions. `spec` is complete but for warnings;
// whether the head is tied and whether q, k and v are fused is seen from `file`.
std::vector<ExpectedTensor> ExpectedTensorsOf(const ModelSpec& spec, const GgufFile& file);

// "blk.0.attn_q.scale" for "blk.0.attn_q.weight".
std::string CompanionName(const std::string& weight_name);

// Checks presence, shape, type and place of every tensor; adds a warning for those that are not
// used. Errors: InvalidArgument naming the tensor and both values.
absl::Status CheckTensors(const ModelSpec& spec, const GgufFile& file,
                          std::vector<std::string>& warnings);

}  // namespace warpline
