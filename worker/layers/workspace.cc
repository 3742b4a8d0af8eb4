#include "worker/layers/workspace.h"

#include <utility>

#include "base/status.h"
#include "model/row_widths.h"

namespace warpline {

absl::StatusOr<Workspace> Workspace::Create(const ModelSpec& spec, LayerRange layers, int max_rows,
                                            int64_t max_context, Backend& backend) {
  const RowWidths widths = RowWidthsOf(spec, layers, max_context);
  Workspace workspace;
  const std::pair<std::unique_ptr<Buffer>*, int64_t> buffers[] = {
      {&workspace.residual, widths.residual}, {&workspace.normed, widths.normed},
      {&workspace.branch, widths.branch},     {&workspace.qkv, widths.qkv},
      {&workspace.heads, widths.heads},       {&workspace.gate, widths.gate},
      {&workspace.conv, widths.conv},         {&workspace.beta, widths.beta},
      {&workspace.index, widths.index},       {&workspace.selection, widths.selection},
      {&workspace.inject, widths.inject},     {&workspace.ngrams, widths.ngrams}};
  for (const auto& [buffer, width] : buffers) {
    if (width == 0) continue;
    const int64_t bytes = max_rows * width * static_cast<int64_t>(sizeof(float));
    WL_ASSIGN_OR_RETURN(*buffer, backend.Allocate(bytes));
  }
  return workspace;
}

}  // namespace warpline
