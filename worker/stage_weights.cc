#include "worker/stage_weights.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/quant_decode.h"

namespace warpline {
namespace {

absl::StatusOr<const GgufTensor*> FindShaped(const GgufFile& file, absl::string_view name,
                                             const MatrixShape& shape) {
  const GgufTensor* tensor = file.FindTensor(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", name, " is missing"));
  }
  if (tensor->dims[0] != shape.input_width || tensor->dims[1] != shape.output_width ||
      tensor->dims[2] != shape.expert_count || tensor->dims[3] != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        file.path(), ": tensor ", name, " has shape {", tensor->dims[0], ", ", tensor->dims[1],
        ", ", tensor->dims[2], ", ", tensor->dims[3], "}, expected {", shape.input_width, ", ",
        shape.output_width, ", ", shape.expert_count, ", 1}"));
  }
  if (!InfoOf(tensor->type).is_weight) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", name, " has type ",
                                                   InfoOf(tensor->type).name,
                                                   ", which is no weight"));
  }
  return tensor;
}

}  // namespace

absl::StatusOr<std::vector<float>> ReadVector(const GgufFile& file, absl::string_view name,
                                              int64_t value_count) {
  const GgufTensor* const tensor = file.FindTensor(name);
  if (tensor == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", name, " is missing"));
  }
  const int64_t stored = tensor->dims[0] * tensor->dims[1] * tensor->dims[2] * tensor->dims[3];
  if (stored != value_count || !InfoOf(tensor->type).is_weight) {
    return absl::InvalidArgumentError(absl::StrCat(file.path(), ": tensor ", name, " has ", stored,
                                                   " values of type ", InfoOf(tensor->type).name,
                                                   ", expected ", value_count, " weights"));
  }
  std::vector<float> values(value_count);
  DequantizeRow(tensor->type, file.Data(*tensor).data(), value_count, values.data());
  return values;
}

WeightLoader::WeightLoader(const GgufFile& file, Backend& backend, int64_t total_bytes,
                           std::function<void(double)> progress)
    : file_(file), backend_(backend), total_bytes_(total_bytes), progress_(std::move(progress)) {}

absl::StatusOr<Matrix> WeightLoader::LoadMatrix(absl::string_view name, const MatrixShape& shape,
                                                Bias bias) {
  const std::string weight_name = absl::StrCat(name, ".weight");
  WL_ASSIGN_OR_RETURN(const GgufTensor* tensor, FindShaped(file_, weight_name, shape));
  WL_ASSIGN_OR_RETURN(const std::vector<float> scales, LoadScales(name, shape.expert_count));
  Matrix matrix;
  WL_ASSIGN_OR_RETURN(matrix.weight, backend_.LoadWeight({.type = tensor->type,
                                                          .input_width = shape.input_width,
                                                          .output_width = shape.output_width,
                                                          .expert_count = shape.expert_count,
                                                          .data = file_.Data(*tensor),
                                                          .only_multiplied = shape.only_multiplied,
                                                          .scales = scales}));
  CountIn(*tensor);
  const std::string bias_name = absl::StrCat(name, ".bias");
  if (bias == Bias::kIfPresent && Has(bias_name)) {
    WL_ASSIGN_OR_RETURN(matrix.bias, LoadVector(bias_name, shape.output_width));
  }
  return matrix;
}

bool WeightLoader::CanJoin(const Part& a, const Part& b) const {
  const GgufTensor* const first = file_.FindTensor(absl::StrCat(a.name, ".weight"));
  const GgufTensor* const second = file_.FindTensor(absl::StrCat(b.name, ".weight"));
  return first != nullptr && second != nullptr && first->type == second->type &&
         !Has(absl::StrCat(a.name, ".scale")) && !Has(absl::StrCat(b.name, ".scale"));
}

absl::StatusOr<Matrix> WeightLoader::LoadJoined(absl::Span<const Part> parts, int64_t input_width,
                                                Bias bias) {
  if (parts.size() == 1) {
    return LoadMatrix(parts[0].name,
                      {.input_width = input_width,
                       .output_width = parts[0].output_width,
                       .only_multiplied = true},
                      bias);
  }
  std::vector<uint8_t> rows;
  std::vector<float> biases;
  WeightArgs weight{.input_width = input_width, .output_width = 0, .only_multiplied = true};
  bool has_bias = false;
  for (const Part& part : parts) {
    WL_ASSIGN_OR_RETURN(
        const GgufTensor* tensor,
        FindShaped(file_, absl::StrCat(part.name, ".weight"),
                   {.input_width = input_width, .output_width = part.output_width}));
    const absl::Span<const uint8_t> stored = file_.Data(*tensor);
    rows.insert(rows.end(), stored.begin(), stored.end());
    CountIn(*tensor);
    weight.type = tensor->type;
    weight.output_width += part.output_width;
    const std::string bias_name = absl::StrCat(part.name, ".bias");
    if (bias == Bias::kIfPresent && Has(bias_name)) {
      has_bias = true;
      WL_ASSIGN_OR_RETURN(const std::vector<float> values,
                          ReadVector(file_, bias_name, part.output_width));
      CountIn(*file_.FindTensor(bias_name));
      biases.insert(biases.end(), values.begin(), values.end());
    }
    biases.resize(static_cast<size_t>(weight.output_width));
  }
  weight.data = rows;
  Matrix matrix;
  WL_ASSIGN_OR_RETURN(matrix.weight, backend_.LoadWeight(weight));
  if (has_bias) {
    WL_ASSIGN_OR_RETURN(matrix.bias, UploadFloats(biases));
  }
  return matrix;
}

absl::StatusOr<std::vector<float>> WeightLoader::LoadScales(absl::string_view name,
                                                            int64_t expert_count) {
  const std::string scale_name = absl::StrCat(name, ".scale");
  const GgufTensor* const scale = file_.FindTensor(scale_name);
  if (scale == nullptr) return std::vector<float>();
  CountIn(*scale);
  return ReadVector(file_, scale_name, scale->dims[0] == 1 ? 1 : expert_count);
}

absl::StatusOr<std::vector<Matrix>> WeightLoader::LoadParts(absl::string_view name,
                                                            const MatrixShape& shape,
                                                            absl::Span<const RowRanges> parts) {
  WL_ASSIGN_OR_RETURN(const GgufTensor* tensor,
                      FindShaped(file_, absl::StrCat(name, ".weight"), shape));
  WL_ASSIGN_OR_RETURN(const std::vector<float> scales, LoadScales(name, 1));
  const int64_t row_bytes = RowBytes(tensor->type, shape.input_width);
  const absl::Span<const uint8_t> stored = file_.Data(*tensor);
  std::vector<Matrix> matrices(parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<uint8_t> rows;
    for (const RowRange& range : parts[i]) {
      const auto bytes = stored.subspan(range.first * row_bytes, range.count * row_bytes);
      rows.insert(rows.end(), bytes.begin(), bytes.end());
    }
    WL_ASSIGN_OR_RETURN(
        matrices[i].weight,
        backend_.LoadWeight({.type = tensor->type,
                             .input_width = shape.input_width,
                             .output_width = static_cast<int64_t>(rows.size()) / row_bytes,
                             .data = rows,
                             .only_multiplied = shape.only_multiplied,
                             .scales = scales}));
  }
  CountIn(*tensor);
  return matrices;
}

absl::StatusOr<std::unique_ptr<Buffer>> WeightLoader::UploadFloats(absl::Span<const float> values) {
  const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(values.data()),
                                        values.size() * sizeof(float));
  WL_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                      backend_.Allocate(static_cast<int64_t>(bytes.size())));
  WL_RETURN_IF_ERROR(backend_.Upload(bytes, *buffer, 0));
  return buffer;
}

absl::StatusOr<std::unique_ptr<Buffer>> WeightLoader::LoadVector(absl::string_view tensor_name,
                                                                 int64_t value_count) {
  WL_ASSIGN_OR_RETURN(const std::vector<float> values, ReadVector(file_, tensor_name, value_count));
  CountIn(*file_.FindTensor(tensor_name));
  return UploadFloats(values);
}

absl::StatusOr<std::unique_ptr<Buffer>> WeightLoader::LoadConvolution(absl::string_view tensor_name,
                                                                      int taps, int64_t channels) {
  WL_ASSIGN_OR_RETURN(const std::vector<float> stored,
                      ReadVector(file_, tensor_name, taps * channels));
  std::vector<float> values(stored.size());
  for (int64_t channel = 0; channel < channels; ++channel) {
    for (int tap = 0; tap < taps; ++tap) {
      values[tap * channels + channel] = stored[channel * taps + tap];
    }
  }
  CountIn(*file_.FindTensor(tensor_name));
  return UploadFloats(values);
}

void WeightLoader::CountIn(const GgufTensor& tensor) {
  file_.Release(tensor);
  loaded_bytes_ += static_cast<int64_t>(tensor.byte_count);
  if (progress_ && total_bytes_ > 0) {
    progress_(
        std::min(1.0, static_cast<double>(loaded_bytes_) / static_cast<double>(total_bytes_)));
  }
}

}  // namespace warpline
