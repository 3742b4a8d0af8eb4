// The tables of op cases.
#include "absl/strings/str_cat.h"
#include "kernels/cpu/op_cases.h"

namespace warpline {
namespace {

constexpr auto kF32 = QuantType::kF32;
constexpr auto kF16 = QuantType::kF16;
constexpr auto kQ41 = QuantType::kQ4_1;
constexpr auto kQ80 = QuantType::kQ8_0;

const char* OpName(CaseOp op) {
  switch (op) {
    case CaseOp::kLinear:
      return "linear";
    case CaseOp::kDenseFfn:
      return "ffn";
    case CaseOp::kMoe:
      return "moe";
    case CaseOp::kNorm:
      return "norm";
    case CaseOp::kEmbed:
      return "embed";
    case CaseOp::kHead:
      return "head";
    case CaseOp::kCandidates:
      return "candidates";
    case CaseOp::kAttention:
      return "attention";
    case CaseOp::kDeltaNet:
      return "delta_net";
    case CaseOp::kHyper:
      return "hyper";
    case CaseOp::kPle:
      return "ple";
    case CaseOp::kQsa:
      return "qsa";
  }
  return "";
}

const char* KvName(KvType type) {
  return type == KvType::kF32 ? "f32" : type == KvType::kF16 ? "f16" : "q8_0";
}

OpCase Attention(KvType type, int64_t rows, int64_t context, int n_head, int n_head_kv,
                 int head_dim, int n_rot) {
  // Storing keys and values rounds them; the bounds are a few times what that rounding gives.
  const double bound = type == KvType::kF32 ? 1e-12 : type == KvType::kF16 ? 1e-6 : 2e-4;
  return {.op = CaseOp::kAttention,
          .rows = rows,
          .kv_type = type,
          .n_head = n_head,
          .n_head_kv = n_head_kv,
          .head_dim = head_dim,
          .n_rot = n_rot,
          .context = context,
          .bound = bound};
}

void AddMatrixCases(std::vector<OpCase>& cases) {
  for (const QuantTypeInfo& info : AllQuantTypes()) {
    if (!info.is_weight) continue;
    for (const int64_t rows : {1, 3, 7})
      cases.push_back({.type = info.type, .rows = rows, .k = 256, .n = 61});
  }
  for (const QuantType type : {kF32, kF16}) {
    for (const int64_t k : {1, 15, 17, 40, 100}) {
      for (const int64_t rows : {0, 1, 2, 5, 70})
        cases.push_back({.type = type, .rows = rows, .k = k, .n = 13});
    }
  }
  for (const QuantType type : {kF32, kQ41, kQ80, QuantType::kQ4_0}) {
    for (const int64_t rows : {1, 2, 4, 5, 130}) {
      cases.push_back({.type = type,
                       .rows = rows,
                       .k = 96,
                       .n = 200,
                       .bias = true,
                       .scale = true,
                       .accumulate = true});
    }
    cases.push_back({.type = type, .rows = 6, .k = 18432, .n = 14});
  }
  // Routers of long prompts: tiles of all sizes, of rows on 16-byte borders and of others.
  for (const int64_t rows : {33, 250, 500, 1000}) {
    const int64_t padding = rows == 500 ? 3 : 4;
    cases.push_back({.type = kF32, .rows = rows, .k = 100, .n = 400, .padding = padding});
  }
  for (const int64_t rows : {0, 1, 9, 66}) {
    cases.push_back({.op = CaseOp::kDenseFfn, .type = kQ41, .rows = rows, .k = 64, .n = 160});
    cases.push_back({.op = CaseOp::kDenseFfn,
                     .type = kQ80,
                     .rows = rows,
                     .k = 96,
                     .n = 32,
                     .bias = true,
                     .scale = true,
                     .accumulate = true,
                     .activation = Activation::kGeluTanh});
    cases.push_back(
        {.op = CaseOp::kHead, .type = kQ80, .rows = rows, .k = 64, .n = 300, .bias = true});
    cases.push_back(
        {.op = CaseOp::kHead, .type = kF32, .rows = rows, .k = 40, .n = 300, .soft_cap = 0.5f});
    cases.push_back({.op = CaseOp::kNorm, .rows = rows, .k = 576});
    cases.push_back({.op = CaseOp::kNorm, .rows = rows, .k = 37});
    cases.push_back(
        {.op = CaseOp::kEmbed, .type = kQ80, .rows = rows, .k = 64, .n = 50, .scale = true});
    cases.push_back({.op = CaseOp::kEmbed, .type = kF16, .rows = rows, .k = 33, .n = 50});
    cases.push_back({.op = CaseOp::kMoe,
                     .type = kF32,
                     .rows = rows,
                     .k = 40,
                     .n = 24,
                     .experts = 8,
                     .used = 2});
    cases.push_back({.op = CaseOp::kMoe,
                     .type = kQ41,
                     .rows = rows,
                     .k = 64,
                     .n = 96,
                     .accumulate = true,
                     .renormalise = true,
                     .shared = true,
                     .experts = 16,
                     .used = 4});
    cases.push_back({.op = CaseOp::kMoe,
                     .type = kQ80,
                     .rows = rows,
                     .k = 64,
                     .n = 32,
                     .scale = true,
                     .renormalise = true,
                     .fused = true,
                     .experts = 5,
                     .used = 5});
  }
}

// Rows are independent, so few of them do; vocabularies around the borders of blocks and groups.
void AddCandidateCases(std::vector<OpCase>& cases) {
  constexpr double kBound = 1e-13;
  for (const int64_t n : {1, 7, 300, 2048, 2049, 5000, 49152}) {
    cases.push_back(
        {.op = CaseOp::kCandidates, .rows = 3, .n = n, .scale = true, .used = 1, .bound = kBound});
    for (const bool edited : {false, true}) {
      cases.push_back({.op = CaseOp::kCandidates,
                       .rows = 9,
                       .n = n,
                       .bias = edited,
                       .scale = true,
                       .used = kMaxCandidates,
                       .bound = kBound});
    }
  }
  cases.push_back({.op = CaseOp::kCandidates, .rows = 0, .n = 300, .used = 3, .bound = kBound});
  cases.push_back({.op = CaseOp::kCandidates,
                   .rows = 35,
                   .n = 9000,
                   .bias = true,
                   .used = 40,
                   .bound = kBound});
  for (const int64_t n : {40000, 151936, 262144}) {
    cases.push_back(
        {.op = CaseOp::kCandidates, .rows = 2, .n = n, .bias = true, .used = 200, .bound = kBound});
  }
  // Ties: of all tokens, of half, of a few.
  for (const int64_t values : {1, 10, 100}) {
    cases.push_back({.op = CaseOp::kCandidates,
                     .rows = 2,
                     .n = 30000,
                     .used = kMaxCandidates,
                     .blocks = values,
                     .bound = kBound});
  }
}

// Experts whose outputs (40), hidden values too (1000), inputs too (1e5) are beyond halves.
void AddHugeCases(std::vector<OpCase>& cases) {
  for (const int64_t rows : {1, 20}) {
    for (const float magnitude : {40.0f, 1000.0f, 1e5f}) {
      for (const bool fused : {false, true}) {
        cases.push_back({.op = CaseOp::kMoe,
                         .type = QuantType::kF16,
                         .rows = rows,
                         .k = 256,
                         .n = 128,
                         .accumulate = fused,
                         .renormalise = true,
                         .fused = fused,
                         .shared = !fused,
                         .magnitude = magnitude,
                         .experts = 8,
                         .used = 3});
      }
    }
    cases.push_back({.op = CaseOp::kMoe,
                     .type = QuantType::kF16,
                     .rows = rows,
                     .k = 60,
                     .n = 90,
                     .magnitude = 1e5f,
                     .experts = 4,
                     .used = 2});
  }
}

void AddHybridCases(std::vector<OpCase>& cases) {
  for (const int64_t rows : {1, 2, 9, 70}) {
    for (const int head_dim : {1, 6, 16, 20, 64, 128}) {
      cases.push_back({.op = CaseOp::kDeltaNet,
                       .rows = rows,
                       .n_head = 6,
                       .n_head_kv = 2,
                       .head_dim = head_dim,
                       .taps = 1 + head_dim % 5,
                       .grouped = head_dim % 3 == 0,
                       .sigmoid_gate = head_dim % 4 == 0,
                       .bound = 1e-11});
    }
    for (const int streams : {2, 3, 4}) {
      cases.push_back(
          {.op = CaseOp::kHyper, .rows = rows, .k = 20 + 4 * streams, .n = 6, .streams = streams});
      cases.push_back({.op = CaseOp::kPle,
                       .rows = rows,
                       .k = 18 + 7 * streams,
                       .taps = streams,
                       .streams = streams,
                       .bound = 1e-11});
    }
  }
  // More rows than are worked on at a time.
  cases.push_back({.op = CaseOp::kHyper, .rows = 300, .k = 16, .n = 8, .streams = 2});
  cases.push_back({.op = CaseOp::kPle, .rows = 300, .k = 16, .streams = 2, .bound = 1e-11});
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8_0}) {
    for (const int ratio : {1, 3, 4, 64, 100}) {
      cases.push_back(Attention(type, 150, 61, 6, 2, 32, 16));
      cases.back().op = CaseOp::kQsa;
      cases.back().ratio = ratio;
      cases.back().blocks = ratio < 10 ? 20 / ratio : 1;
    }
  }
  cases.push_back(Attention(KvType::kF32, 3, 3000, 100, 1, 16, 8));  // more heads than a task holds
  cases.back().op = CaseOp::kQsa;
  cases.back().ratio = 4;
  cases.back().blocks = 40;
}

}  // namespace

std::string CaseName(const OpCase& c) {
  if (c.op == CaseOp::kDeltaNet) {
    return absl::StrCat("delta_net rows=", c.rows, " heads=", c.n_head, "/", c.n_head_kv, "x",
                        c.head_dim, " taps=", c.taps);
  }
  if (c.op == CaseOp::kHyper || c.op == CaseOp::kPle) {
    return absl::StrCat(OpName(c.op), " rows=", c.rows, " streams=", c.streams, "x", c.k,
                        " n=", c.n, " taps=", c.taps);
  }
  if (c.op == CaseOp::kAttention || c.op == CaseOp::kQsa) {
    return absl::StrCat(OpName(c.op), " ratio=", c.ratio, " blocks=", c.blocks,
                        " kv=", KvName(c.kv_type), " rows=", c.rows, " context=", c.context,
                        " heads=", c.n_head, "/", c.n_head_kv, "x", c.head_dim,
                        " window=", c.window);
  }
  return absl::StrCat(OpName(c.op), " ", InfoOf(c.type).name, " rows=", c.rows, " k=", c.k,
                      " n=", c.n,
                      c.op == CaseOp::kMoe ? absl::StrCat(" experts=", c.used, "/", c.experts) : "",
                      c.magnitude == 1 ? "" : absl::StrCat(" magnitude=", c.magnitude));
}

std::vector<OpCase> TestCases() {
  std::vector<OpCase> cases;
  AddMatrixCases(cases);
  AddHugeCases(cases);
  AddCandidateCases(cases);
  AddHybridCases(cases);
  for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kQ8_0}) {
    for (const int head_dim : {16, 32, 64, 80, 128, 256}) {
      cases.push_back(Attention(type, 5, 130, 6, 2, head_dim, 0));
    }
    for (const int64_t rows : {1, 64, 65, 150}) {
      cases.push_back(Attention(type, rows, 0, 3, 1, 32, 32));
      cases.back().interleaved = true;
      cases.push_back(Attention(type, rows, 61, 8, 8, 24, 12));
      cases.back().head_norm = true;
      cases.push_back(Attention(type, rows, 100, 9, 3, 64, 64));
      cases.back().window = 70;
    }
    cases.push_back(Attention(type, 0, 10, 2, 1, 16, 16));
  }
  cases.push_back(Attention(KvType::kF32, 1, 3000, 4, 1, 64, 64));
  cases.push_back(Attention(KvType::kF32, 3, 70, 100, 1, 20, 10));  // more heads than a task holds
  return cases;
}

std::vector<OpCase> BenchCases() {
  std::vector<OpCase> cases;
  for (const int64_t rows : {1, 4, 8, 512}) {
    for (const QuantType type : {kQ41, kQ80, QuantType::kQ4K, kF32}) {
      cases.push_back({.type = type,
                       .rows = rows,
                       .k = 576 / 256 * 256 + (type == QuantType::kQ4K ? 0 : 64),
                       .n = 576});
    }
    cases.push_back({.type = kQ41, .rows = rows, .k = 576, .n = 192});
    cases.push_back({.type = kQ41, .rows = rows, .k = 1536, .n = 576});
    cases.push_back({.type = kQ41, .rows = rows, .k = 4096, .n = 4096});
    cases.push_back({.op = CaseOp::kDenseFfn, .type = kQ41, .rows = rows, .k = 576, .n = 1536});
    cases.push_back({.op = CaseOp::kMoe,
                     .type = kQ41,
                     .rows = rows,
                     .k = 1024,
                     .n = 512,
                     .experts = 32,
                     .used = 4});
    cases.push_back({.op = CaseOp::kNorm, .rows = rows, .k = 576});
    for (const KvType type : {KvType::kF16, KvType::kQ8_0}) {
      cases.push_back(Attention(type, rows, rows == 512 ? 0 : 600, 9, 3, 64, 64));
      cases.back().interleaved = true;
    }
  }
  cases.push_back({.op = CaseOp::kHead, .type = kQ80, .rows = 1, .k = 576, .n = 49152});
  for (const int64_t rows : {1, 32}) {
    for (const int used : {1, 40, kMaxCandidates}) {
      cases.push_back({.op = CaseOp::kCandidates,
                       .rows = rows,
                       .n = 151936,
                       .scale = used == kMaxCandidates,
                       .used = used});
    }
  }
  for (const int64_t rows : {1, 512}) {
    cases.push_back(
        {.op = CaseOp::kDeltaNet, .rows = rows, .n_head = 48, .n_head_kv = 16, .head_dim = 128});
    cases.push_back({.op = CaseOp::kHyper, .rows = rows, .k = 2560, .n = 320, .streams = 4});
    cases.push_back({.op = CaseOp::kPle, .rows = rows, .k = 2560, .streams = 4});
    cases.push_back(Attention(KvType::kQ8_0, rows, 3000, 12, 1, 256, 24));
    cases.back().op = CaseOp::kQsa;
    cases.back().ratio = 4;
    cases.back().blocks = 512;
  }
  for (const int64_t rows : {64, 4096}) {
    cases.push_back({.type = kF32, .rows = rows, .k = 2048, .n = 128});
  }
  for (OpCase& c : cases) c.padding = 0;
  return cases;
}

}  // namespace warpline
