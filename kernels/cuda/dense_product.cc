#include "kernels/cuda/dense_product.h"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace warpline::cuda {
namespace {

absl::Status CublasStatus(cublasStatus_t status, absl::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(what, ": cuBLAS error ", static_cast<int>(status)));
}

void* LoadCublas() {
  const std::string name = absl::StrCat("libcublas.so.", CUDART_VERSION / 1000);
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  return dlopen(absl::StrCat("/usr/local/cuda/lib64/", name).c_str(), RTLD_NOW | RTLD_LOCAL);
}

template <typename Function>
absl::Status Find(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("cuBLAS has no ", name));
}

// cublasGemmEx; the header overloads the name.
using GemmEx = cublasStatus_t(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                              const void*, const void*, cudaDataType, int, const void*,
                              cudaDataType, int, const void*, void*, cudaDataType, int,
                              cublasComputeType_t, cublasGemmAlgo_t);

}  // namespace

// The library stays loaded until the process ends; the handle is ours.
struct DenseProduct::Library {
  ~Library() {
    if (handle != nullptr) static_cast<void>(destroy(handle));
  }
  decltype(cublasCreate_v2)* create = nullptr;
  decltype(cublasDestroy_v2)* destroy = nullptr;
  decltype(cublasSetStream_v2)* set_stream = nullptr;
  GemmEx* multiply = nullptr;
  cublasHandle_t handle = nullptr;
};

DenseProduct::DenseProduct() = default;
DenseProduct::DenseProduct(DenseProduct&&) noexcept = default;
DenseProduct& DenseProduct::operator=(DenseProduct&&) noexcept = default;
DenseProduct::~DenseProduct() = default;

absl::Status DenseProduct::Open() {
  void* const loaded = LoadCublas();
  if (loaded == nullptr) {
    const char* const reason = dlerror();
    return absl::FailedPreconditionError(reason == nullptr ? "cuBLAS cannot be loaded" : reason);
  }
  auto library = std::make_unique<Library>();
  WL_RETURN_IF_ERROR(Find(loaded, "cublasCreate_v2", library->create));
  WL_RETURN_IF_ERROR(Find(loaded, "cublasDestroy_v2", library->destroy));
  WL_RETURN_IF_ERROR(Find(loaded, "cublasSetStream_v2", library->set_stream));
  WL_RETURN_IF_ERROR(Find(loaded, "cublasGemmEx", library->multiply));
  WL_RETURN_IF_ERROR(CublasStatus(library->create(&library->handle), "opening cuBLAS"));
  library_ = std::move(library);
  return absl::OkStatus();
}

absl::Status DenseProduct::Multiply(const DenseArgs& args, cudaStream_t stream) const {
  if (args.rows == 0) return absl::OkStatus();
  WL_RETURN_IF_ERROR(
      CublasStatus(library_->set_stream(library_->handle, stream), "choosing a stream"));
  // Column-major to cuBLAS: y is [m x rows], weights transposed [k x m], x [k x rows].
  const float one = 1;
  const float zero = 0;
  return CublasStatus(
      library_->multiply(library_->handle, CUBLAS_OP_T, CUBLAS_OP_N, args.m, args.rows, args.k,
                         &one, args.weights, CUDA_R_16F, args.k, args.x, CUDA_R_16F, args.k, &zero,
                         args.y, args.y_is_float ? CUDA_R_32F : CUDA_R_16F, args.m,
                         CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
      "a dense product");
}

}  // namespace warpline::cuda
