// Reads tensors of a model file into a back end: matrices with their scale and bias companions, and
// plain vectors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "model/gguf.h"

namespace warpline {

// A loaded matrix, or the matrices of all experts, with what belongs to it.
struct Matrix {
  std::unique_ptr<Weight> weight;
  std::unique_ptr<Buffer> bias;  // null: none

  // Borrows: lives as long as this matrix.
  LinearWeight linear() const { return {.weight = weight.get(), .bias = bias.get()}; }
};

struct MatrixShape {
  int64_t input_width = 0;
  int64_t output_width = 1;
  int64_t expert_count = 1;
  bool only_multiplied = false;  // see WeightArgs
};

enum class Bias { kNone, kIfPresent };

// Output rows [first, first + count) of a matrix.
struct RowRange {
  int64_t first = 0;
  int64_t count = 0;
};
using RowRanges = std::vector<RowRange>;

// The values of a tensor of `value_count` in any weight type. InvalidArgument when it is absent or
// has more or fewer.
absl::StatusOr<std::vector<float>> ReadVector(const GgufFile& file, absl::string_view name,
                                              int64_t value_count);

// Loads one stage's tensors one after another and reports how far it got. The file's pages are
// given back to the kernel as soon as a tensor is copied, so a model is never in memory twice.
class WeightLoader {
 public:
  // `total_bytes`: what the stage will load, for `progress` (called with 0..1; may be empty).
  WeightLoader(const GgufFile& file, Backend& backend, int64_t total_bytes,
               std::function<void(double)> progress);

  bool Has(absl::string_view tensor_name) const { return file_.FindTensor(tensor_name) != nullptr; }
  // The matrix `name`.weight, with `name`.scale where the file has one. InvalidArgument when the
  // tensor is absent or has another shape.
  absl::StatusOr<Matrix> LoadMatrix(absl::string_view name, const MatrixShape& shape,
                                    Bias bias = Bias::kNone);
  // Matrices of the file with the same input as one whose output rows are theirs, in their order.
  struct Part {
    std::string name;
    int64_t output_width = 0;
  };
  // Whether they can be: of one type, and without scales, which would differ.
  bool CanJoin(const Part& a, const Part& b) const;
  // As LoadMatrix, only to be multiplied; a part without bias, where another has one, gets zeros.
  absl::StatusOr<Matrix> LoadJoined(absl::Span<const Part> parts, int64_t input_width, Bias bias);
  // Several matrices out of the one that the file keeps, each made of the given rows in their
  // order: what some architectures interleave head by head is taken apart here. Each row belongs to
  // one.
  absl::StatusOr<std::vector<Matrix>> LoadParts(absl::string_view name, const MatrixShape& shape,
                                                absl::Span<const RowRanges> parts);
  // The kernel of a depthwise convolution, {taps, channels} in the file, as f32 [taps, channels].
  absl::StatusOr<std::unique_ptr<Buffer>> LoadConvolution(absl::string_view tensor_name, int taps,
                                                          int64_t channels);
  // The vector `tensor_name` (full name) as f32 values, whatever its shape.
  absl::StatusOr<std::unique_ptr<Buffer>> LoadVector(absl::string_view tensor_name,
                                                     int64_t value_count);

  Backend& backend() const { return backend_; }
  int64_t loaded_bytes() const { return loaded_bytes_; }  // as in the file

 private:
  void CountIn(const GgufTensor& tensor);
  absl::StatusOr<std::vector<float>> LoadScales(absl::string_view name, int64_t expert_count);
  absl::StatusOr<std::unique_ptr<Buffer>> UploadFloats(absl::Span<const float> values);

  const GgufFile& file_;
  Backend& backend_;
  const int64_t total_bytes_;
  const std::function<void(double)> progress_;
  int64_t loaded_bytes_ = 0;
};

}  // namespace warpline
