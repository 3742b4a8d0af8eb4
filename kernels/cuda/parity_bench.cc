#include "kernels/cuda/parity_bench.h"

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/bench_rig.h"
#include "kernels/cuda/combine.h"
#include "kernels/cuda/dense_product.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/few_routing.h"
#include "kernels/cuda/gather_tiles.h"
#include "kernels/cuda/routing.h"

namespace warpline::cuda {
namespace {

constexpr int kRuns = 11;
constexpr int kLayers = 48;  // of the graph of decode steps

// One operation of the layer.
struct Product {
  const char* name;
  Op op;
  const PackedExperts* weights;
  int m;  // weight rows
  int k;
};

class Bench {
 public:
  Bench(const ExpertKernels& kernels, const ParitySelection& selection)
      : kernels_(kernels), selection_(selection) {}

  absl::Status Run(bool has_all_types) {
    WL_ASSIGN_OR_RETURN(stream_, Stream::Create());
    WL_ASSIGN_OR_RETURN(buffers_, BenchBuffers::Create());
    if (const absl::Status status = dense_.Open(); !status.ok()) {
      std::printf("no cuBLAS to compare with: %s\n", std::string(status.message()).c_str());
    }
    for (const QuantType type : selection_.types) {
      WL_ASSIGN_OR_RETURN(layer_, MakeBenchLayer(type, stream_.get()));
      type_ = type;
      // One type is measured whole; the others are compared with it.
      const bool is_whole = !has_all_types || type == QuantType::kIQ3XXS;
      WL_RETURN_IF_ERROR(RunUniform(is_whole));
      if (!is_whole) continue;
      WL_RETURN_IF_ERROR(RunRandom());
      WL_RETURN_IF_ERROR(RunFew());
    }
    return absl::OkStatus();
  }

 private:
  std::vector<Product> PromptProducts() const {
    return {{"gate+up", Op::kGateUp, &layer_.gate_up, 2 * kBenchFf, kBenchWidth},
            {"down", Op::kPlain, &layer_.down, kBenchWidth, kBenchFf}};
  }

  absl::Status Gather(int tokens, Op op) const {
    const bool is_x = op == Op::kGateUp;
    // Halves row by row, as the norm before would leave them. `down` reads what gate and up wrote;
    // for its time any finite halves do.
    return GatherTiles({.x = buffers_.x.as(),
                        .x_is_float = false,
                        .tokens = tokens,
                        .k = is_x ? kBenchWidth : kBenchFf,
                        .slot_row = buffers_.slot_row.as<int32_t>(),
                        .slots = kBenchSlots,
                        .tiles = is_x ? buffers_.x_tiles.as() : buffers_.h_tiles.as(),
                        .row_groups = buffers_.row_groups,
                        .row_token = buffers_.row_token.as<int32_t>(),
                        .row_end = buffers_.start.as<int32_t>() + kBenchExperts,
                        .row_scale = is_x ? buffers_.row_scale.as<float>() : nullptr},
                       stream_.get());
  }

  GroupedArgs ArgsOf(const Product& product) const {
    GroupedArgs args;
    args.x_row_groups = buffers_.row_groups;
    if (product.op == Op::kGateUp) {
      args.x_tiles = buffers_.x_tiles.as();
      args.row_scale = buffers_.row_scale.as<float>();
      args.h_tiles = buffers_.h_tiles.as();
      args.h_row_groups = buffers_.row_groups;
      args.output_scale = 1.0f / 16;
    } else {
      args.x_tiles = buffers_.h_tiles.as();
      args.y = buffers_.y.as();
      args.row_weight = buffers_.row_weight.as<float>();
    }
    return args;
  }

  ExpertRows Rows() const {
    return {buffers_.start.as<int32_t>(), buffers_.count.as<int32_t>(), kBenchExperts};
  }

  // Kernels alone, and with what has to be done for them: tiles cut, activations gathered.
  struct Times {
    double kernels_us = 0;
    double whole_us = 0;
    double dense_us = 0;
  };
  absl::StatusOr<Times> Measure(const Product& product, const KernelSet& set, int tokens) {
    Times times;
    WL_ASSIGN_OR_RETURN(const ItemLists items,
                        ItemLists::Create(set, *product.weights, kBenchPairs));
    WL_RETURN_IF_ERROR(Gather(tokens, product.op));
    WL_RETURN_IF_ERROR(items.Fill(Rows(), stream_.get()));
    const auto multiply = [&] {
      return kernels_.Multiply(set, *product.weights, items, ArgsOf(product), stream_.get());
    };
    WL_ASSIGN_OR_RETURN(times.kernels_us, TimeUs(stream_.get(), kRuns, multiply));
    WL_ASSIGN_OR_RETURN(times.whole_us, TimeUs(stream_.get(), kRuns, [&]() -> absl::Status {
                          WL_RETURN_IF_ERROR(items.Fill(Rows(), stream_.get()));
                          if (product.op == Op::kGateUp) {
                            WL_RETURN_IF_ERROR(Gather(tokens, product.op));
                          }
                          return multiply();
                        }));
    if (dense_.is_open()) {
      WL_ASSIGN_OR_RETURN(times.dense_us, TimeUs(stream_.get(), kRuns, [&] {
                            return dense_.Multiply({.weights = buffers_.x.as<uint16_t>(),
                                                    .x = buffers_.x_tiles.as<uint16_t>(),
                                                    .y = buffers_.y.as(),
                                                    .m = product.m,
                                                    .rows = tokens * kBenchSlots,
                                                    .k = product.k},
                                                   stream_.get());
                          }));
    }
    return times;
  }

  void Print(const std::string& name, const Product& product, Policy policy, int tokens,
             const Times& times) const {
    const double operations = 2.0 * tokens * kBenchSlots * product.m * product.k;
    const auto rate = [operations](double us) { return us > 0 ? operations / us * 1e-6 : 0; };
    std::printf(
        "%-8s %-18s %-8s %-9s %8.1f us %6.1f TFLOP/s %5.0f GB/s  with tiles %8.1f us %6.1f "
        "TFLOP/s  cuBLAS dense %6.1f TFLOP/s (%.0f %%)\n",
        InfoOf(type_).name, name.c_str(), product.name, std::string(PolicyName(policy)).c_str(),
        times.kernels_us, rate(times.kernels_us),
        static_cast<double>(product.weights->data.bytes()) / times.kernels_us * 1e-3,
        times.whole_us, rate(times.whole_us), rate(times.dense_us),
        times.dense_us > 0 ? 100 * times.dense_us / times.kernels_us : 0);
    std::fflush(stdout);
  }

  absl::Status RunRows(const std::string& name, const BenchRouting& routing) {
    WL_RETURN_IF_ERROR(ApplyRouting(routing, buffers_, stream_.get()));
    for (const Product& product : PromptProducts()) {
      for (const Policy policy : selection_.policies) {
        const auto set = kernels_.choices().For(product.op, type_, policy);
        if (!set.ok()) continue;
        WL_ASSIGN_OR_RETURN(const Times times, Measure(product, **set, routing.tokens));
        Print(name, product, policy, routing.tokens, times);
      }
    }
    return absl::OkStatus();
  }

  absl::Status RunUniform(bool is_whole) {
    const std::vector<int> counts =
        is_whole ? std::vector<int>{8, 16, 32, 64, 128, 192, 256, 512} : std::vector<int>{64, 256};
    for (const int rows : counts) {
      WL_RETURN_IF_ERROR(RunRows(absl::StrCat("uniform ", rows), UniformRouting(rows)));
    }
    return absl::OkStatus();
  }

  absl::Status RunRandom() {
    for (const int tokens : {512, 2048, 4096, 8192}) {
      WL_RETURN_IF_ERROR(
          RunRows(absl::StrCat("random ", tokens, " tok"), RandomRouting(tokens, 0, 7)));
    }
    return RunRows("zipf .7 8192 tok", RandomRouting(8192, 0.7, 7));
  }

  // A graph of 48 layers with weights of their own.
  absl::Status RunFew() {
    const auto gate_up = kernels_.choices().For(Op::kFewGateUp, type_);
    const auto down = kernels_.choices().For(Op::kFewPlain, type_);
    if (!gate_up.ok() || !down.ok()) return absl::OkStatus();
    std::vector<BenchLayer> layers;
    for (int i = 0; i < kLayers; ++i) {
      WL_ASSIGN_OR_RETURN(BenchLayer copy, CopyLayer(layer_, stream_.get()));
      layers.push_back(std::move(copy));
    }
    for (const int tokens : {1, 2, 4, 8, 16, 32}) {
      WL_RETURN_IF_ERROR(RunFewTokens(layers, **gate_up, **down, tokens));
    }
    return absl::OkStatus();
  }

  absl::Status FewLayer(const BenchLayer& layer, const KernelSet& gate_up, const KernelSet& down,
                        const ItemLists& items) const {
    GroupedArgs args;
    args.x_rows = buffers_.x.as<uint16_t>();
    args.ids = buffers_.row_token.as<int32_t>();
    args.h_rows = buffers_.h_tiles.as<uint16_t>();
    args.output_scale = 1.0f / 16;
    WL_RETURN_IF_ERROR(kernels_.Multiply(gate_up, layer.gate_up, items, args, stream_.get()));
    args = {};
    args.x_rows = buffers_.h_tiles.as<uint16_t>();
    args.y = buffers_.y.as();
    args.row_weight = buffers_.row_weight.as<float>();
    return kernels_.Multiply(down, layer.down, items, args, stream_.get());
  }

  absl::Status RunFewTokens(const std::vector<BenchLayer>& layers, const KernelSet& gate_up,
                            const KernelSet& down, int tokens) {
    const BenchRouting routing = RandomRouting(tokens, 0, 3);
    WL_RETURN_IF_ERROR(ApplyRouting(routing, buffers_, stream_.get()));
    // The tiles of both products are the same: items of up to eight rows over all weight rows.
    WL_ASSIGN_OR_RETURN(const ItemLists items,
                        ItemLists::Create(gate_up, layer_.gate_up, int64_t{tokens} * kBenchSlots));
    WL_RETURN_IF_ERROR(items.Fill(Rows(), stream_.get()));
    WL_ASSIGN_OR_RETURN(const Graph products, Graph::Capture(stream_.get(), [&] {
                          for (const BenchLayer& layer : layers) {
                            WL_RETURN_IF_ERROR(FewLayer(layer, gate_up, down, items));
                          }
                          return absl::OkStatus();
                        }));
    WL_ASSIGN_OR_RETURN(
        const Graph whole, Graph::Capture(stream_.get(), [&]() -> absl::Status {
          for (const BenchLayer& layer : layers) {
            WL_RETURN_IF_ERROR(RouteFew({.routing = RoutingOf(tokens),
                                         .tiles = items.few_tiles(nullptr),
                                         .is_early = kernels_.device().starts_early()},
                                        stream_.get()));
            WL_RETURN_IF_ERROR(FewLayer(layer, gate_up, down, items));
            WL_RETURN_IF_ERROR(CombineFew(tokens));
          }
          return absl::OkStatus();
        }));
    WL_ASSIGN_OR_RETURN(const double products_us, TimeUs(stream_.get(), kRuns, [&] {
                          return products.Launch(stream_.get());
                        }));
    WL_ASSIGN_OR_RETURN(const double whole_us,
                        TimeUs(stream_.get(), kRuns, [&] { return whole.Launch(stream_.get()); }));
    int touched = 0;
    std::vector<bool> is_touched(kBenchExperts, false);
    for (const int32_t expert : routing.expert_ids) is_touched[static_cast<size_t>(expert)] = true;
    for (const bool is_one : is_touched) touched += is_one ? 1 : 0;
    const double bytes =
        static_cast<double>(touched) *
        static_cast<double>(layer_.gate_up.expert_bytes + layer_.down.expert_bytes);
    std::printf(
        "%-8s decode %2d tokens  gate+up and down %6.1f us a layer, %5.0f GB/s; with routing, "
        "tiles "
        "and combine %6.1f us\n",
        InfoOf(type_).name, tokens, products_us / kLayers, bytes * kLayers / products_us * 1e-3,
        whole_us / kLayers);
    std::fflush(stdout);
    return absl::OkStatus();
  }

  RoutingArgs RoutingOf(int tokens) const {
    return {.expert_ids = buffers_.expert_ids.as<int32_t>(),
            .weights = buffers_.weights.as<float>(),
            .tokens = tokens,
            .slots = kBenchSlots,
            .experts = kBenchExperts,
            .start = buffers_.start.as<int32_t>(),
            .count = buffers_.count.as<int32_t>(),
            .row_token = buffers_.row_token.as<int32_t>(),
            .slot_row = buffers_.slot_row.as<int32_t>(),
            .row_weight = buffers_.row_weight.as<float>(),
            .bad_ids = buffers_.bad_ids.as<int32_t>(),
            .scratch = buffers_.scratch.as<int32_t>()};
  }

  absl::Status CombineFew(int tokens) const {
    return Combine({.y = buffers_.y.as(),
                    .slot_row = buffers_.slot_row.as<int32_t>(),
                    .tokens = tokens,
                    .slots = kBenchSlots,
                    .columns = kBenchWidth,
                    .out = buffers_.out.as<float>(),
                    .is_early = kernels_.device().starts_early()},
                   stream_.get());
  }

  const ExpertKernels& kernels_;
  const ParitySelection& selection_;
  QuantType type_ = QuantType::kIQ3XXS;
  Stream stream_;
  BenchBuffers buffers_;
  BenchLayer layer_;
  DenseProduct dense_;
};

}  // namespace

absl::Status RunBench(int ordinal, const ParityOptions& options, const ParitySelection& selection) {
  WL_ASSIGN_OR_RETURN(const Device device, Device::Open(ordinal));
  WL_ASSIGN_OR_RETURN(const ExpertKernels kernels, ExpertKernels::Create(device));
  std::printf("device %d %s\n", ordinal, device.facts().name.c_str());
  return Bench(kernels, selection).Run(options.types.empty());
}

}  // namespace warpline::cuda
