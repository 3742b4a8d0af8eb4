#include "kernels/cuda/cuda_library.h"

#include <dlfcn.h>

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace warpline {
namespace {

constexpr char kLibraryName[] = "libwarpline_cuda.so";

std::string BesideTheProgram() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? kLibraryName : (self.parent_path() / kLibraryName).string();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaApi>> OpenCudaLibrary() {
  const std::string beside = BesideTheProgram();
  void* library = nullptr;
  std::error_code error;
  if (std::filesystem::exists(beside, error)) {
    library = dlopen(beside.c_str(), RTLD_NOW | RTLD_LOCAL);
  } else {
    library = dlopen(kLibraryName, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    const char* const reason = dlerror();
    return absl::NotFoundError(absl::StrCat("the CUDA back end could not be loaded: ",
                                            reason == nullptr ? "unknown reason" : reason));
  }
  void* const symbol = dlsym(library, kCudaEntryName);
  if (symbol == nullptr) {
    return absl::NotFoundError(absl::StrCat(kLibraryName, " has no entry ", kCudaEntryName));
  }
  CudaApi* const api = reinterpret_cast<CudaEntry>(symbol)(WARPLINE_VERSION);
  if (api == nullptr) {
    return absl::NotFoundError(absl::StrCat(
        kLibraryName, " is of another version than this program (", WARPLINE_VERSION, ")"));
  }
  return std::unique_ptr<CudaApi>(api);
}

}  // namespace warpline
