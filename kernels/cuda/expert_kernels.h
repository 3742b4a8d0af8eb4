// Grouped expert products on one device: which kernels it has, and one product over all experts.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/few_routing.h"
#include "kernels/cuda/grouped_args.h"
#include "kernels/cuda/kernel_choice.h"
#include "kernels/cuda/off_product.h"
#include "kernels/cuda/packed_experts.h"
#include "kernels/cuda/raii.h"
#include "kernels/cuda/tile_items.h"

namespace warpline::cuda {

// Where the rows of each expert lie; device memory. See RoutingArgs.
struct ExpertRows {
  const int32_t* start = nullptr;  // [experts + 1]
  const int32_t* count = nullptr;  // [experts]
  int32_t experts = 0;
};

// Tiles of one product, cut on the device, and what `off` works in. Reused from step to step.
class ItemLists {
 public:
  // Room for the tiles of `kernels` over `weights` with at most `max_pairs` rows.
  // FailedPrecondition where they are `off` and there is no cuBLAS.
  static absl::StatusOr<ItemLists> Create(const KernelSet& kernels, const PackedExperts& weights,
                                          int64_t max_pairs);
  // Cuts the rows; asynchronous.
  absl::Status Fill(const ExpertRows& rows, cudaStream_t stream) const;

  int class_count() const { return args_.class_count; }
  const TileItem* items(int index) const { return args_.classes[index].items; }
  const int32_t* count(int index) const { return args_.item_counts + index; }
  int64_t max_items(int index) const { return max_items_[static_cast<size_t>(index)]; }
  // Where RouteFew puts the tiles of a decode step instead.
  FewTiles few_tiles(uint8_t* overflow) const {
    return {.items = args_.classes[0].items, .item_count = args_.item_counts, .overflow = overflow};
  }
  OffProduct* off() const { return off_.get(); }  // null for other policies

 private:
  TileItemsArgs args_;
  std::array<int64_t, kMaxTileClasses> max_items_ = {};
  std::vector<DeviceBuffer> buffers_;
  std::unique_ptr<OffProduct> off_;
};

// The expert kernels of one device. Holding one is the proof that they may be launched there. All
// calls need the device current in the calling thread, and one thread at a time.
class ExpertKernels {
 public:
  // Prepares every kernel of this build on `device`, and the tables of all types. Replacements are
  // in choices(). Waits for the device.
  static absl::StatusOr<ExpertKernels> Create(const Device& device);

  const Device& device() const { return device_; }
  const KernelChoices& choices() const { return choices_; }
  KernelChoices& choices() { return choices_; }
  // The table of a type's decoder in device memory; empty where it has none.
  const DeviceBuffer& TableOf(QuantType type) const {
    const auto table = tables_.find(type);
    return table == tables_.end() ? no_table_ : table->second;
  }

  // One product with the kernels of `set`, over tiles that Fill() has cut on the same stream; one
  // launch for each tile size, which overlap. `args` comes without weights, items and table, which
  // are filled in here; its weight_scale is multiplied by that of the weights. Asynchronous on
  // `stream`, but for `off`, which waits for the tiles.
  absl::Status Multiply(const KernelSet& set, const PackedExperts& weights, const ItemLists& items,
                        GroupedArgs args, cudaStream_t stream) const;

 private:
  explicit ExpertKernels(const Device& device, KernelChoices choices)
      : device_(device), choices_(std::move(choices)) {}
  absl::Status CreateTables();
  // One stream; each kernel starts where the one before leaves multiprocessors free.
  absl::Status MultiplyInTurn(const KernelSet& set, const ItemLists& items, GroupedArgs args,
                              cudaStream_t stream) const;
  // Forked streams that join `stream` again.
  absl::Status MultiplySideBySide(const KernelSet& set, const ItemLists& items, GroupedArgs args,
                                  cudaStream_t stream) const;
  // kEarly: beside the end of the kernel before, for which the kernel itself waits where it must.
  enum class Start { kAfterAll, kEarly };
  absl::Status Launch(const PreparedKernel& kernel, const GroupedArgs& args, int64_t max_items,
                      Start start, cudaStream_t stream) const;

  Device device_;
  KernelChoices choices_;
  std::map<QuantType, DeviceBuffer> tables_;
  DeviceBuffer no_table_;
  std::array<Stream, kMaxTileClasses> side_streams_;
  std::array<Event, kMaxTileClasses> side_done_;
  Event forked_;
};

}  // namespace warpline::cuda
