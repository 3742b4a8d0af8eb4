// Fuzz target: opens a GGUF file, reads the model's dimensions and touches what a stage would.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "model/gguf.h"
#include "model/model_spec.h"

namespace warpline {
namespace {

// A file that passed every check must be readable wherever its tensors say.
void ReadEverything(const GgufFile& file) {
  uint64_t sum = 0;
  for (const GgufTensor& tensor : file.tensors()) {
    const absl::Span<const uint8_t> data = file.Data(tensor);
    WL_CHECK(!data.empty());
    sum += data.front() + data.back();
    WL_CHECK(file.FindTensor(tensor.name) != nullptr);
  }
  WL_CHECK(FingerprintOf(file).ok());
  volatile uint64_t sink = sum;  // Keeps the reads.
  (void)sink;
}

void ReadModel(const GgufFile& file) {
  const absl::StatusOr<ModelSpec> spec = ModelSpec::FromGguf(file);
  if (!spec.ok()) {
    WL_CHECK(absl::IsInvalidArgument(spec.status()));
    return;
  }
  const ModelBytes bytes = BytesOf(*spec, file);
  int64_t sum = bytes.embedding + (spec->tied_embeddings ? 0 : bytes.head);
  for (const int64_t layer : bytes.layers) sum += layer;
  WL_CHECK(sum > 0 && sum <= static_cast<int64_t>(file.total_file_bytes()));
}

}  // namespace
}  // namespace warpline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const warpline::UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC));
  WL_CHECK(fd.valid() && write(fd.get(), data, size) == static_cast<ssize_t>(size));
  const auto file = warpline::GgufFile::Open(absl::StrCat("/proc/self/fd/", fd.get()));
  if (!file.ok()) {
    WL_CHECK(absl::IsInvalidArgument(file.status()));
    WL_CHECK(file.status().message().find('\n') == absl::string_view::npos);
    return 0;
  }
  warpline::ReadEverything(**file);
  warpline::ReadModel(**file);
  return 0;
}
