#include "kernels/cuda/expert_kernels.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/few_rows.h"
#include "kernels/cuda/repack.h"
#include "kernels/cuda/tile_tables.h"

namespace warpline::cuda {
namespace {

// What a tile of `n` tokens costs over all weight rows, measured on an H200 with IQ3_XXS, in units
// of 128 us: decoding makes small tiles dear.
float TileCost(int n) {
  constexpr std::pair<int, float> kCosts[] = {{256, 2.5f}, {192, 2.02f}, {128, 1.41f},
                                              {64, 0.98f}, {32, 0.82f},  {16, 0.75f}};
  for (const auto& [tokens, cost] : kCosts) {
    if (n >= tokens) return cost;
  }
  return 0.7f;
}

bool IsFew(Op op) { return op == Op::kFewGateUp || op == Op::kFewPlain; }

// The tiles of this build, and `off` for every type that has some.
std::vector<KernelRow> AllRows() {
  std::vector<KernelRow> rows = TileRows();
  std::set<QuantType> types;
  for (const KernelRow& row : rows) types.insert(row.type);
  for (const QuantType type : types) {
    for (int op = 0; op < kOpCount; ++op) {
      rows.push_back({.name = "off",
                      .policy = Policy::kOff,
                      .op = static_cast<Op>(op),
                      .type = type,
                      .n = kOffItemRows});
    }
  }
  return rows;
}

}  // namespace

absl::StatusOr<ItemLists> ItemLists::Create(const KernelSet& kernels, const PackedExperts& weights,
                                            int64_t max_pairs) {
  ItemLists lists;
  TileItemsArgs& args = lists.args_;
  if (kernels.kernels.size() > kMaxTileClasses) {
    return absl::InternalError(
        absl::StrCat("a kernel set of ", kernels.kernels.size(), " tile sizes"));
  }
  for (const PreparedKernel& kernel : kernels.kernels) {
    TileClass& tile_class = args.classes[args.class_count];
    tile_class.n = kernel.row.n;
    tile_class.cost = TileCost(kernel.row.n);
    // The kernels of decode steps, and `off`, walk all weight rows of an item themselves.
    tile_class.row_tiles =
        IsFew(kernel.row.op) || kernel.row.policy == Policy::kOff
            ? 1
            : static_cast<int32_t>(RoundUp(weights.row_blocks * kRowBlock, kernel.row.m) /
                                   kernel.row.m);
    const int64_t most = MaxTileItems(args.class_count, tile_class, max_pairs, weights.experts);
    WL_ASSIGN_OR_RETURN(DeviceBuffer items,
                        DeviceBuffer::Create(most * static_cast<int64_t>(sizeof(TileItem))));
    tile_class.items = items.as<TileItem>();
    lists.max_items_[static_cast<size_t>(args.class_count)] = most;
    lists.buffers_.push_back(std::move(items));
    ++args.class_count;
  }
  WL_ASSIGN_OR_RETURN(DeviceBuffer counts, DeviceBuffer::Create(kMaxTileClasses * sizeof(int32_t)));
  args.item_counts = counts.as<int32_t>();
  lists.buffers_.push_back(std::move(counts));
  if (kernels.policy == Policy::kOff) {
    WL_ASSIGN_OR_RETURN(lists.off_, OffProduct::Create({.row_blocks = weights.row_blocks,
                                                        .k = weights.k,
                                                        .max_items = lists.max_items_[0]}));
  }
  return lists;
}

absl::Status ItemLists::Fill(const ExpertRows& rows, cudaStream_t stream) const {
  TileItemsArgs args = args_;
  args.start = rows.start;
  args.count = rows.count;
  args.experts = rows.experts;
  return MakeTileItems(args, stream);
}

absl::StatusOr<ExpertKernels> ExpertKernels::Create(const Device& device) {
  WL_RETURN_IF_ERROR(device.MakeCurrent());
  RuntimeDriver driver;
  ExpertKernels kernels(device, KernelChoices::Prepare(driver, device.limits(), AllRows()));
  WL_RETURN_IF_ERROR(kernels.CreateTables());
  for (size_t i = 0; i < kernels.side_streams_.size(); ++i) {
    WL_ASSIGN_OR_RETURN(kernels.side_streams_[i], Stream::Create());
    WL_ASSIGN_OR_RETURN(kernels.side_done_[i], Event::Create(Event::Use::kOrder));
  }
  WL_ASSIGN_OR_RETURN(kernels.forked_, Event::Create(Event::Use::kOrder));
  return kernels;
}

absl::Status ExpertKernels::CreateTables() {
  for (const QuantTypeInfo& info : AllQuantTypes()) {
    const int bytes = TableBytesOf(info.type);
    if (bytes == 0) continue;
    std::vector<uint8_t> table(static_cast<size_t>(bytes));
    MakeTableOf(info.type, table.data());
    WL_ASSIGN_OR_RETURN(DeviceBuffer buffer, DeviceBuffer::Create(bytes));
    WL_RETURN_IF_ERROR(CudaStatus(
        cudaMemcpy(buffer.as(), table.data(), table.size(), cudaMemcpyHostToDevice),
        absl::StrCat("copying the table of ", info.name, " to device ", device_.facts().ordinal)));
    tables_[info.type] = std::move(buffer);
  }
  return absl::OkStatus();
}

absl::Status ExpertKernels::Multiply(const KernelSet& set, const PackedExperts& weights,
                                     const ItemLists& items, GroupedArgs args,
                                     cudaStream_t stream) const {
  args.weights = weights.data.as();
  args.expert_bytes = weights.expert_bytes;
  args.row_blocks = weights.row_blocks;
  args.k = weights.k;
  args.weight_scale *= weights.weight_scale;
  args.out_columns = weights.out_columns;
  args.table = TableOf(weights.type).as();
  if (items.off() != nullptr) {
    args.items = items.items(0);
    args.item_count = items.count(0);
    return items.off()->Multiply(weights.type, weights.is_gate_up, args, stream);
  }
  return set.policy == Policy::kWgmma ? MultiplyInTurn(set, items, args, stream)
                                      : MultiplySideBySide(set, items, args, stream);
}

absl::Status ExpertKernels::MultiplyInTurn(const KernelSet& set, const ItemLists& items,
                                           GroupedArgs args, cudaStream_t stream) const {
  for (int i = 0; i < items.class_count(); ++i) {
    args.items = items.items(i);
    args.item_count = items.count(i);
    WL_RETURN_IF_ERROR(Launch(set.kernels[static_cast<size_t>(i)], args, items.max_items(i),
                              i == 0 ? Start::kAfterAll : Start::kEarly, stream));
  }
  return absl::OkStatus();
}

absl::Status ExpertKernels::MultiplySideBySide(const KernelSet& set, const ItemLists& items,
                                               GroupedArgs args, cudaStream_t stream) const {
  const int classes = items.class_count();
  const Start start = IsFew(set.kernels[0].row.op) ? Start::kEarly : Start::kAfterAll;
  if (classes > 1) WL_RETURN_IF_ERROR(forked_.Record(stream));
  for (int i = 0; i < classes; ++i) {
    // The last launch goes on the caller's stream; it need not wait for a fork.
    const bool is_side = i + 1 < classes;
    const size_t index = static_cast<size_t>(i);
    const cudaStream_t own = is_side ? side_streams_[index].get() : stream;
    if (is_side) WL_RETURN_IF_ERROR(forked_.Block(own));
    args.items = items.items(i);
    args.item_count = items.count(i);
    WL_RETURN_IF_ERROR(Launch(set.kernels[index], args, items.max_items(i), start, own));
    if (is_side) WL_RETURN_IF_ERROR(side_done_[index].Record(own));
  }
  for (int i = 0; i + 1 < classes; ++i) {
    WL_RETURN_IF_ERROR(side_done_[static_cast<size_t>(i)].Block(stream));
  }
  return absl::OkStatus();
}

absl::Status ExpertKernels::Launch(const PreparedKernel& kernel, const GroupedArgs& args,
                                   int64_t max_items, Start start, cudaStream_t stream) const {
  cudaLaunchConfig_t config = {};
  int threads = kernel.row.threads;
  int shared_bytes = kernel.row.shared_bytes;
  int resident_blocks = kernel.resident_blocks;
  int64_t blocks = max_items;
  if (IsFew(kernel.row.op)) {
    threads = FewRowsThreads(args.k);
    shared_bytes -= FewRowsSharedBytes(0, kFewRowsMaxWarps) - FewRowsSharedBytes(0, threads / 32);
    WL_ASSIGN_OR_RETURN(resident_blocks,
                        RuntimeDriver().ResidentBlocks(kernel.row.function, threads, shared_bytes));
    blocks = (args.known_items > 0 ? args.known_items : max_items) * args.row_blocks;
  }
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &early;
  config.numAttrs = start == Start::kEarly && device_.facts().capability >= 90 ? 1 : 0;
  const int64_t most_blocks = int64_t{resident_blocks} * device_.facts().processors;
  if (args.known_items > 0 && blocks > most_blocks) {
    // As many rounds with fewer blocks leave room for a kernel beside this one.
    const int64_t rounds = (blocks + most_blocks - 1) / most_blocks;
    blocks = (blocks + rounds - 1) / rounds;
  }
  blocks = std::min(blocks, most_blocks);
  config.gridDim = dim3(static_cast<unsigned>(std::max<int64_t>(blocks, 1)));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = static_cast<size_t>(shared_bytes);
  config.stream = stream;
  GroupedArgs copy = args;
  void* parameters[] = {&copy};
  return CudaStatus(
      cudaLaunchKernelExC(&config, kernel.row.function, parameters),
      absl::StrCat("launching ", kernel.row.name, " of ", InfoOf(kernel.row.type).name,
                   " on device ", device_.facts().ordinal));
}

}  // namespace warpline::cuda
