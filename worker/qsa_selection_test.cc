// The blocks that sparse attention chooses in golden models, against those of the reference.
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "kernels/cpu/cpu_backend.h"
#include "worker/forwarding_backend_fakes.h"
#include "worker/golden_pipeline.h"

namespace warpline {
namespace {

using Selections = std::vector<std::vector<int32_t>>;  // of rows; {-1}: all

// The CPU back end, with an ear on what its indexer says.
class ListeningBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;

  // Of each sparse layer, in order, what the rows of all steps chose.
  const std::vector<Selections>& heard() const { return heard_; }

  absl::Status QsaIndexSelect(const QsaIndexSelectArgs& args) override {
    WL_RETURN_IF_ERROR(ForwardingBackend::QsaIndexSelect(args));
    const size_t stride = 1 + static_cast<size_t>(args.most_blocks);
    std::vector<int32_t> values(static_cast<size_t>(args.q.row_count) * stride);
    const absl::Span<uint8_t> bytes(reinterpret_cast<uint8_t*>(values.data()),
                                    values.size() * sizeof(int32_t));
    WL_RETURN_IF_ERROR(Download(*args.selection, 0, bytes));
    if (layer_ == heard_.size()) heard_.emplace_back();
    for (size_t row = 0; row < values.size(); row += stride) {
      const auto begin = values.begin() + static_cast<std::ptrdiff_t>(row);
      if (*begin < 0) {
        heard_[layer_].push_back({-1});
      } else {
        heard_[layer_].emplace_back(begin + 1, begin + 1 + *begin);
      }
    }
    ++layer_;
    return absl::OkStatus();
  }
  absl::Status BeginStep(const StepArgs& args) override {
    layer_ = 0;
    return ForwardingBackend::BeginStep(args);
  }

 private:
  size_t layer_ = 0;
  std::vector<Selections> heard_;
};

// Lines of the golden file: those of all layers, one layer after another.
Selections ReadSelections(const std::string& name) {
  std::ifstream file(std::string(WARPLINE_TEST_DATA "/families/") + name + ".selections.txt");
  WL_CHECK(file.is_open());
  Selections selections;
  std::string line;
  while (std::getline(file, line)) {
    if (line[0] == '#') continue;
    std::vector<int32_t> blocks;
    for (const absl::string_view part : absl::StrSplit(line, ' ')) {
      int32_t block = -1;
      WL_CHECK(part == "all" || absl::SimpleAtoi(part, &block));
      blocks.push_back(block);
    }
    selections.push_back(std::move(blocks));
  }
  return selections;
}

class QsaSelectionTest : public testing::TestWithParam<std::tuple<const char*, int>> {};

TEST_P(QsaSelectionTest, EqualsTheReference) {
  const auto& [name, chunk] = GetParam();
  const GoldenCase golden = ReadGoldenCase(std::string("families/") + name);
  ListeningBackend* backend = nullptr;
  GoldenPipeline pipeline(golden.model_path,
                          {.wrap_backend = [&backend](std::unique_ptr<Backend> inner) {
                            auto made = std::make_unique<ListeningBackend>(std::move(inner));
                            backend = made.get();
                            return made;
                          }});
  const int count = static_cast<int>(golden.tokens.size());
  std::vector<int32_t> pages;
  for (int page = 31; page >= 0; --page) pages.push_back(page);
  const auto logits = pipeline.RunSequence(golden.tokens, ChunksOf(count, chunk), 0, pages);
  ASSERT_TRUE(logits.ok()) << logits.status();
  const Selections expected = ReadSelections(name);
  Selections got;
  for (const Selections& layer : backend->heard()) {
    got.insert(got.end(), layer.begin(), layer.end());
  }
  ASSERT_EQ(got.size(), expected.size());
  for (size_t row = 0; row < expected.size(); ++row) {
    ASSERT_EQ(got[row], expected[row]) << "row " << row % golden.tokens.size() << " of layer "
                                       << row / golden.tokens.size() << " of the sparse ones";
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, QsaSelectionTest,
                         testing::Combine(testing::Values("qwen4exp-qsa-r1", "qwen4exp-qsa-r4",
                                                          "qwen4exp-long"),
                                          testing::Values(1, 7, 600)));

}  // namespace
}  // namespace warpline
