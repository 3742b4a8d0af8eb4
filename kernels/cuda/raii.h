// Owners of CUDA objects. Move-only; made by Create() on the current device, which must be the one
// they are used with. Destructors never throw and ignore errors: a device that failed is not
// healed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "kernels/cuda/cuda_status.h"

namespace warpline::cuda {

// One handle and the function that ends it.
template <typename Handle, cudaError_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Owned() {
    if (handle_ != nullptr) static_cast<void>(kDestroy(handle_));
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};

// Device memory of one cudaMalloc, so that it can be shared with another process.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;  // empty
  // ResourceExhausted when the device has no `bytes` left. 0 bytes give an empty buffer.
  static absl::StatusOr<DeviceBuffer> Create(int64_t bytes) {
    DeviceBuffer buffer;
    if (bytes == 0) return buffer;
    void* memory = nullptr;
    WL_RETURN_IF_ERROR(CudaStatus(cudaMalloc(&memory, static_cast<size_t>(bytes)),
                                  absl::StrCat("allocating ", bytes, " B of device memory")));
    buffer.memory_ = Owned<void*, cudaFree>(memory);
    buffer.bytes_ = bytes;
    return buffer;
  }

  template <typename T = uint8_t>
  T* as() const {
    return static_cast<T*>(memory_.get());
  }
  int64_t bytes() const { return bytes_; }

 private:
  Owned<void*, cudaFree> memory_;
  int64_t bytes_ = 0;
};

// Host memory that the device copies from and to without staging.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  static absl::StatusOr<PinnedBuffer> Create(int64_t bytes) {
    PinnedBuffer buffer;
    if (bytes == 0) return buffer;
    void* memory = nullptr;
    WL_RETURN_IF_ERROR(CudaStatus(cudaMallocHost(&memory, static_cast<size_t>(bytes)),
                                  absl::StrCat("allocating ", bytes, " B of pinned memory")));
    buffer.memory_ = Owned<void*, cudaFreeHost>(memory);
    buffer.bytes_ = bytes;
    return buffer;
  }

  template <typename T = uint8_t>
  T* as() const {
    return static_cast<T*>(memory_.get());
  }
  int64_t bytes() const { return bytes_; }

 private:
  Owned<void*, cudaFreeHost> memory_;
  int64_t bytes_ = 0;
};

// A stream that does not wait for the legacy default stream.
class Stream {
 public:
  Stream() = default;
  static absl::StatusOr<Stream> Create() {
    cudaStream_t stream = nullptr;
    WL_RETURN_IF_ERROR(
        CudaStatus(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream"));
    Stream result;
    result.stream_ = Owned<cudaStream_t, cudaStreamDestroy>(stream);
    return result;
  }
  cudaStream_t get() const { return stream_.get(); }
  absl::Status Synchronize() const {
    return CudaStatus(cudaStreamSynchronize(get()), "waiting for a stream");
  }

 private:
  Owned<cudaStream_t, cudaStreamDestroy> stream_;
};

class Event {
 public:
  enum class Use { kOrder, kTime };  // an event that only orders streams is cheaper

  Event() = default;
  static absl::StatusOr<Event> Create(Use use) {
    cudaEvent_t event = nullptr;
    const unsigned flags = use == Use::kTime ? cudaEventDefault : cudaEventDisableTiming;
    WL_RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, flags), "creating an event"));
    Event result;
    result.event_ = Owned<cudaEvent_t, cudaEventDestroy>(event);
    return result;
  }
  cudaEvent_t get() const { return event_.get(); }
  absl::Status Record(cudaStream_t stream) const {
    return CudaStatus(cudaEventRecord(get(), stream), "recording an event");
  }
  // Work of `stream` after this waits for what was recorded.
  absl::Status Block(cudaStream_t stream) const {
    return CudaStatus(cudaStreamWaitEvent(stream, get(), 0), "waiting for an event");
  }

 private:
  Owned<cudaEvent_t, cudaEventDestroy> event_;
};

// A recorded sequence of launches that is replayed with one call.
class Graph {
 public:
  Graph() = default;
  // Records what `enqueue` puts on `stream`, and on streams that join it again.
  template <typename Enqueue>  // absl::Status()
  static absl::StatusOr<Graph> Capture(cudaStream_t stream, const Enqueue& enqueue) {
    WL_RETURN_IF_ERROR(Begin(stream));
    const absl::Status enqueued = enqueue();
    absl::StatusOr<Graph> recorded = End(stream);
    WL_RETURN_IF_ERROR(enqueued);
    return recorded;
  }
  // The same in two halves: what is put on `stream` between them is recorded.
  static absl::Status Begin(cudaStream_t stream) {
    return CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                      "starting a capture");
  }
  static absl::StatusOr<Graph> End(cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    const cudaError_t ended = cudaStreamEndCapture(stream, &graph);
    const Owned<cudaGraph_t, cudaGraphDestroy> owner(graph);
    WL_RETURN_IF_ERROR(CudaStatus(ended, "ending a capture"));
    cudaGraphExec_t executable = nullptr;
    WL_RETURN_IF_ERROR(
        CudaStatus(cudaGraphInstantiate(&executable, graph, 0), "preparing a graph"));
    Graph result;
    result.executable_ = Owned<cudaGraphExec_t, cudaGraphExecDestroy>(executable);
    return result;
  }
  absl::Status Launch(cudaStream_t stream) const {
    return CudaStatus(cudaGraphLaunch(executable_.get(), stream), "launching a graph");
  }

 private:
  Owned<cudaGraphExec_t, cudaGraphExecDestroy> executable_;
};

}  // namespace warpline::cuda
