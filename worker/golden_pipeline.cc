#include "worker/golden_pipeline.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "kernels/cpu/cpu_backend.h"

namespace warpline {
namespace {

constexpr int kLogitRows = 32;

std::string DataFolder() { return WARPLINE_TEST_DATA "/"; }

std::string ReadFile(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  WL_CHECK(stream.is_open());
  return std::string(std::istreambuf_iterator<char>(stream), {});
}

// The value of a key of the top object, as text.
std::string FieldOf(const std::string& json, absl::string_view key) {
  const std::string mark = absl::StrCat("\"", key, "\": ");
  const size_t found = json.find(mark);
  WL_CHECK(found != std::string::npos);
  const size_t begin = found + mark.size();
  int depth = 0;
  bool in_string = false;
  size_t end = begin;
  for (; end < json.size(); ++end) {
    const char c = json[end];
    if (c == '"') in_string = !in_string;
    if (in_string) continue;
    if (depth == 0 && (c == ',' || c == '}')) break;
    if (c == '[' || c == '{') ++depth;
    if (c == ']' || c == '}') --depth;
  }
  return json.substr(begin, end - begin);
}

std::string TextOf(const std::string& json, absl::string_view key) {
  const std::string field = FieldOf(json, key);
  const size_t begin = field.find('"') + 1;
  return field.substr(begin, field.find('"', begin) - begin);
}

// Integers of "[1, 2, 3]".
std::vector<int32_t> IntsOf(absl::string_view text) {
  std::vector<int32_t> values;
  for (const absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar("[], "), absl::SkipEmpty())) {
    int32_t value = 0;
    WL_CHECK(absl::SimpleAtoi(part, &value));
    values.push_back(value);
  }
  return values;
}

double NumberAfter(absl::string_view text, absl::string_view mark) {
  const size_t begin = text.find(mark);
  WL_CHECK(begin != absl::string_view::npos);
  const absl::string_view rest = text.substr(begin + mark.size());
  double value = 0;
  WL_CHECK(absl::SimpleAtod(rest.substr(0, rest.find_first_of(",}")), &value));
  return value;
}

}  // namespace

std::vector<std::string> GoldenCaseNames() {
  std::vector<std::string> names;
  for (const char* folder : {"families", "stages"}) {
    for (const auto& entry : std::filesystem::directory_iterator(DataFolder() + folder)) {
      if (entry.path().extension() != ".json" || entry.path().stem() == "index") continue;
      names.push_back(absl::StrCat(folder, "/", entry.path().stem().string()));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

GoldenCase ReadGoldenCase(const std::string& name) {
  const std::string json = ReadFile(absl::StrCat(DataFolder(), name, ".json"));
  const std::string folder = DataFolder() + name.substr(0, name.find('/') + 1);
  GoldenCase golden;
  golden.model_path = folder + TextOf(json, "model");
  golden.tokens = IntsOf(FieldOf(json, "tokens"));
  const std::string chunkings = FieldOf(json, "chunks");
  for (const absl::string_view chunking : absl::StrSplit(chunkings, "], [")) {
    golden.chunkings.push_back(IntsOf(chunking));
  }
  // The peer's GELU is rounded to halves; the second opinion is the exact one.
  const bool is_gemma = TextOf(json, "arch") == "gemma3";
  const std::string bytes = ReadFile(folder + TextOf(json, is_gemma ? "second_logits" : "logits"));
  golden.logits.resize(bytes.size() / sizeof(float));
  std::copy(bytes.begin(), bytes.end(), reinterpret_cast<char*>(golden.logits.data()));
  golden.is_f32 = absl::StartsWith(FieldOf(json, "tensor_types"), "[\"F32\"]");
  const std::string tolerances = FieldOf(json, "tolerances");
  golden.tolerance_nmse = NumberAfter(tolerances, "\"f32\": ");
  golden.tolerance_f16 = NumberAfter(tolerances, "\"f16\": ");
  golden.tolerance_kv_int8 = NumberAfter(tolerances, "\"kv_int8\": ");
  return golden;
}

double Nmse(absl::Span<const float> got, absl::Span<const float> expected) {
  WL_CHECK(got.size() == expected.size());
  double error = 0;
  double power = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double difference = static_cast<double>(got[i]) - expected[i];
    error += difference * difference;
    power += static_cast<double>(expected[i]) * expected[i];
  }
  return error / power;
}

std::vector<int> ChunksOf(int count, int length) {
  std::vector<int> chunks(count / length, length);
  if (count % length != 0) chunks.push_back(count % length);
  return chunks;
}

GoldenPipeline::GoldenPipeline(const std::string& model_path, const PipelineOptions& options) {
  absl::StatusOr<std::unique_ptr<GgufFile>> file = GgufFile::Open(model_path);
  if (!file.ok()) std::fprintf(stderr, "%s\n", file.status().ToString().c_str());
  WL_CHECK(file.ok());
  file_ = *std::move(file);
  absl::StatusOr<ModelSpec> spec = ModelSpec::FromGguf(*file_);
  if (!spec.ok()) std::fprintf(stderr, "%s\n", spec.status().ToString().c_str());
  WL_CHECK(spec.ok());
  spec_ = *std::move(spec);
  if (spec_.ple.present()) {
    const absl::StatusOr<NgramTable> table = FindNgramTable(*file_, spec_.ple);
    WL_CHECK(table.ok());
    absl::StatusOr<std::unique_ptr<NgramReader>> reader =
        OpenNgramReader(*table, {.io = PleIo::kMmap});
    WL_CHECK(reader.ok());
    ngram_reader_ = *std::move(reader);
  }
  std::vector<int> borders = options.split;
  borders.insert(borders.begin(), 0);
  borders.push_back(spec_.n_layer);
  for (size_t i = 0; i + 1 < borders.size(); ++i) {
    absl::StatusOr<std::unique_ptr<Backend>> backend =
        CreateCpuBackend({.thread_count = options.thread_count});
    WL_CHECK(backend.ok());
    backends_.push_back(options.wrap_backend ? options.wrap_backend(*std::move(backend))
                                             : *std::move(backend));
    absl::StatusOr<std::unique_ptr<StageModel>> stage =
        StageModel::Load(*file_, spec_,
                         {.layers = {.begin = borders[i], .end = borders[i + 1]},
                          .kv_type = options.kv_type,
                          .slot_count = options.slot_count,
                          .page_count = options.page_count,
                          .max_context = 1024,
                          .configured_context = spec_.context_length,
                          .max_rows = options.max_rows,
                          .max_logit_rows = kLogitRows,
                          .ngram_reader = ngram_reader_.get()},
                         *backends_.back(), nullptr);
    if (!stage.ok()) std::fprintf(stderr, "%s\n", stage.status().ToString().c_str());
    WL_CHECK(stage.ok());
    stages_.push_back(*std::move(stage));
  }
}

absl::StatusOr<std::vector<float>> GoldenPipeline::Run(const Step& step) {
  const int row_count = step.RowCount();
  std::vector<float> in;
  for (const std::unique_ptr<StageModel>& stage : stages_) {
    std::vector<float> out(
        stage->is_last() ? 0 : static_cast<size_t>(row_count) * spec_.residual_width);
    WL_RETURN_IF_ERROR(stage->Forward(step, in, absl::MakeSpan(out)));
    in = std::move(out);
  }
  std::vector<float> logits(static_cast<size_t>(row_count) * spec_.n_vocab);
  for (int first = 0; first < row_count; first += kLogitRows) {
    std::vector<int32_t> rows;
    for (int row = first; row < std::min(first + kLogitRows, row_count); ++row) rows.push_back(row);
    const absl::Span<float> out = absl::MakeSpan(logits).subspan(
        static_cast<size_t>(first) * spec_.n_vocab, rows.size() * spec_.n_vocab);
    WL_RETURN_IF_ERROR(stages_.back()->Logits(rows, out));
  }
  return logits;
}

absl::StatusOr<std::vector<float>> GoldenPipeline::RunSequence(absl::Span<const int32_t> tokens,
                                                               absl::Span<const int> chunks,
                                                               int kv_slot,
                                                               absl::Span<const int32_t> pages) {
  for (const std::unique_ptr<StageModel>& stage : stages_)
    WL_RETURN_IF_ERROR(stage->ResetSlot(kv_slot));
  std::vector<float> logits;
  size_t position = 0;
  size_t page_count = 0;
  for (const int chunk : chunks) {
    const size_t end = position + chunk;
    const size_t needed = (end + kPageTokens - 1) / kPageTokens;
    Step step;
    step.kind = StepKind::kPrompt;
    step.entries.push_back({.kv_slot = kv_slot,
                            .position = static_cast<int64_t>(position),
                            .token_ids = {tokens.begin() + position, tokens.begin() + end},
                            .new_pages = {pages.begin() + page_count, pages.begin() + needed}});
    WL_ASSIGN_OR_RETURN(const std::vector<float> rows, Run(step));
    logits.insert(logits.end(), rows.begin(), rows.end());
    position = end;
    page_count = needed;
  }
  return logits;
}

}  // namespace warpline
