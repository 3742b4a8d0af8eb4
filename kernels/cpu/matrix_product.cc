#include "kernels/cpu/matrix_product.h"

#include <algorithm>

#include "base/status.h"
#include "kernels/quant_decode.h"

namespace warpline {
namespace {

constexpr int64_t kPanelColumns = 48;  // decoded together; a multiple of every tile width
constexpr int64_t kPanelFloats =
    (640 << 10) / 4;  // a decoded panel stays in the second-level cache
constexpr int64_t kColumnStep = 6;
constexpr int64_t kBlockRows = 64;  // rows that meet a panel at a time
constexpr int64_t kFewColumns = kBlockRows * kPanelColumns / kFusedRows;  // of kFusedRows rows
constexpr int64_t kInlineProducts = 24 << 10;  // less work than this is not worth waking anybody
constexpr int64_t kTasksPerThread = 4;

int64_t DivideUp(int64_t value, int64_t by) { return (value + by - 1) / by; }
int64_t RoundUp(int64_t value, int64_t step) { return DivideUp(value, step) * step; }

// Values from one decoded column to the next; the odd line keeps columns out of each other's cache
// sets.
int64_t PanelStride(int64_t input_width) { return RoundUp(input_width, 16) + 16; }

int64_t PanelColumns(int64_t input_width) {
  const int64_t fitting = kPanelFloats / PanelStride(input_width) / kColumnStep * kColumnStep;
  return std::clamp(fitting, kColumnStep, kPanelColumns);
}

bool HasFusedKernel(QuantType type) { return type == QuantType::kQ4_1 || type == QuantType::kQ8_0; }

}  // namespace

MatrixProduct::MatrixProduct(InstructionSet set, ThreadPool& pool)
    : set_(set),
      dot_(GetDotKernels(set)),
      row_(GetRowKernels(set)),
      pool_(pool),
      workspaces_(pool.thread_count()) {
  for (Workspace& space : workspaces_) space.dots.resize(2 * kBlockRows * kPanelColumns);
}

absl::Status MatrixProduct::Reserve(int64_t input_width) {
  if (input_width <= reserved_width_) return absl::OkStatus();
  const int64_t floats =
      std::max(kPanelFloats + kPanelColumns * 32, kColumnStep * PanelStride(input_width));
  for (Workspace& space : workspaces_) {
    WL_RETURN_IF_ERROR(space.panel.Floats(2 * floats).status());
  }
  reserved_width_ = input_width;
  return absl::OkStatus();
}

void MatrixProduct::AddTasks(const MatrixJob& job) {
  if (job.row_count == 0 || job.column_count == 0) return;
  const int64_t wanted = kTasksPerThread * pool_.thread_count();
  // Few rows: the weights are read once whatever the cut; long runs of columns suit the memory.
  // Many rows: a task is one panel, smaller where there would be too few.
  int64_t columns = RoundUp(DivideUp(job.column_count, wanted), kColumnStep);
  int64_t row_parts = 1;
  if (job.row_count > kFusedRows) {
    columns = std::min(columns, PanelColumns(job.matrix.weight->input_width()));
    row_parts = std::clamp(wanted / DivideUp(job.column_count, columns), int64_t{1},
                           DivideUp(job.row_count, kBlockRows));
  }
  const int64_t rows = RoundUp(DivideUp(job.row_count, row_parts), kBlockRows);
  for (int64_t column = 0; column < job.column_count; column += columns) {
    for (int64_t row = 0; row < job.row_count; row += rows) {
      tasks_.push_back({&job, column, std::min(column + columns, job.column_count), row,
                        std::min(row + rows, job.row_count)});
    }
  }
}

void MatrixProduct::Run(absl::Span<const MatrixJob> jobs) {
  tasks_.clear();
  int64_t products = 0;
  for (const MatrixJob& job : jobs) {
    products += job.row_count * job.column_count * job.matrix.weight->input_width();
    AddTasks(job);
  }
  if (products < kInlineProducts) {
    for (const Task& task : tasks_) RunTask(task, 0);
    return;
  }
  pool_.Run(static_cast<int64_t>(tasks_.size()),
            [this](int64_t index, int thread) { RunTask(tasks_[index], thread); });
}

DotArgs MatrixProduct::Columns(const MatrixSlice& slice, int64_t first, int64_t count, bool fused,
                               float* panel) const {
  const CpuWeight& weight = *slice.weight;
  const int64_t k = weight.input_width();
  const uint8_t* blocks = weight.Column(slice.expert, slice.first_column + first);
  DotArgs args{.w = blocks, .w_stride_bytes = weight.column_bytes(), .columns = count, .k = k};
  if (fused || weight.type() == QuantType::kF32) return args;
  const DequantizeFunction decode = FastDequantizer(weight.type(), set_);
  const int64_t stride = PanelStride(k);
  for (int64_t c = 0; c < count; ++c)
    decode(blocks + c * weight.column_bytes(), k, panel + c * stride);
  args.w = reinterpret_cast<const uint8_t*>(panel);
  args.w_stride_bytes = stride * static_cast<int64_t>(sizeof(float));
  return args;
}

void MatrixProduct::Dot(QuantType type, bool fused, const DotArgs& args) const {
  if (!fused) return dot_.f32(args);
  return type == QuantType::kQ4_1 ? dot_.q4_1(args) : dot_.q8_0(args);
}

void MatrixProduct::RunTask(const Task& task, int thread) {
  const MatrixJob& job = *task.job;
  Workspace& space = workspaces_[thread];
  const bool gated = job.up.weight != nullptr;
  const bool few = task.last_row - task.first_row <= kFusedRows;
  const bool fused = few && HasFusedKernel(job.matrix.weight->type());
  const bool up_fused = gated && few && HasFusedKernel(job.up.weight->type());
  const int64_t input_width = job.matrix.weight->input_width();
  // Where nothing is decoded beforehand, only the room for the products bounds a run of columns.
  const int64_t columns = fused && (!gated || up_fused) ? kFewColumns : PanelColumns(input_width);
  float* panel = reinterpret_cast<float*>(space.panel.Floats(0).value());
  float* up_panel = panel + PanelColumns(input_width) * PanelStride(input_width);
  for (int64_t column = task.first_column; column < task.last_column; column += columns) {
    Task part = task;
    part.first_column = column;
    part.last_column = std::min(column + columns, task.last_column);
    const int64_t count = part.last_column - column;
    const DotArgs matrix = Columns(job.matrix, column, count, fused, panel);
    DotArgs up;
    if (gated) up = Columns(job.up, column, count, up_fused, up_panel);
    for (int64_t row = task.first_row; row < task.last_row; row += kBlockRows) {
      RunBlock(part, row, std::min(kBlockRows, task.last_row - row), matrix, up, space);
    }
  }
}

void MatrixProduct::RunBlock(const Task& task, int64_t row, int64_t rows, const DotArgs& matrix,
                             const DotArgs& up, Workspace& space) {
  const MatrixJob& job = *task.job;
  const int64_t columns = task.last_column - task.first_column;
  const bool few = task.last_row - task.first_row <= kFusedRows;
  const int64_t stride = few ? kFewColumns : kPanelColumns;
  float* dots = space.dots.data();
  float* up_dots = dots + kBlockRows * kPanelColumns;
  const auto run = [&](const MatrixSlice& slice, DotArgs args, float* out) {
    args.x = job.x + row * job.x_stride;
    args.x_stride = job.x_stride;
    args.rows = rows;
    args.out = out;
    args.out_stride = stride;
    Dot(slice.weight->type(), few && HasFusedKernel(slice.weight->type()), args);
    return Products{.bias = slice.bias == nullptr ? nullptr : slice.bias + task.first_column,
                    .scale = slice.weight->Scale(slice.expert)};
  };
  Products main = run(job.matrix, matrix, dots);
  Products gate_up;
  if (job.up.weight != nullptr) gate_up = run(job.up, up, up_dots);
  for (int64_t r = 0; r < rows; ++r) {
    float* out = job.out + (row + r) * job.out_stride + task.first_column;
    main.dots = dots + r * stride;
    if (job.up.weight == nullptr) {
      row_.finish(main, columns, job.accumulate, out);
    } else {
      gate_up.dots = up_dots + r * stride;
      row_.finish_gated(main, gate_up, job.activation, columns, out);
    }
  }
}

}  // namespace warpline
