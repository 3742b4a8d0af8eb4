#include "worker/shared_slots.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace warpline {
namespace {

constexpr size_t kTokenBytes = 16;
constexpr int64_t kPageBytes = 4096;  // The header is one page, and each slot begins on one.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

int64_t SlotStride(int64_t slot_bytes) {
  return (slot_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

int64_t FileBytes(int slot_count, int64_t slot_bytes) {
  return kPageBytes + slot_count * SlotStride(slot_bytes);
}

absl::Status CannotMap(absl::string_view why) {
  return absl::FailedPreconditionError(absl::StrCat("shared memory of the edge: ", why));
}

}  // namespace

Mapping::~Mapping() { munmap(data_, byte_count_); }

SharedSlots::SharedSlots(UniqueFd fd, std::string token, std::unique_ptr<Mapping> mapping,
                         int64_t slot_bytes)
    : fd_(std::move(fd)),
      token_(std::move(token)),
      mapping_(std::move(mapping)),
      slot_bytes_(slot_bytes) {}

absl::StatusOr<std::unique_ptr<SharedSlots>> SharedSlots::Create(int slot_count,
                                                                 int64_t slot_bytes) {
  const auto failed = [](absl::string_view what) {
    return absl::ResourceExhaustedError(
        absl::StrCat("shared memory of the edge: ", what, ": ", strerror(errno)));
  };
  const int64_t byte_count = FileBytes(slot_count, slot_bytes);
  UniqueFd fd(memfd_create("warpline-edge", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return failed("memfd_create");
  if (fchmod(fd.get(), 0600) != 0) return failed("fchmod");
  if (ftruncate(fd.get(), byte_count) != 0) return failed("ftruncate");
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) return failed("F_ADD_SEALS");
  void* const data = mmap(nullptr, static_cast<size_t>(byte_count), PROT_READ | PROT_WRITE,
                          MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return failed("mmap");
  auto mapping = std::make_unique<Mapping>(data, static_cast<size_t>(byte_count));
  std::string token(kTokenBytes, '\0');
  if (getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return failed("getrandom");
  }
  memcpy(mapping->data(), token.data(), token.size());
  return std::unique_ptr<SharedSlots>(
      new SharedSlots(std::move(fd), std::move(token), std::move(mapping), slot_bytes));
}

absl::Span<float> SharedSlots::slot(int index) const {
  uint8_t* const data = mapping_->data() + kPageBytes + index * SlotStride(slot_bytes_);
  WL_CHECK(data + slot_bytes_ <= mapping_->data() + mapping_->byte_count());
  return {reinterpret_cast<float*>(data), static_cast<size_t>(slot_bytes_) / sizeof(float)};
}

SharedSlotsView::SharedSlotsView(std::unique_ptr<Mapping> mapping, int64_t slot_bytes)
    : mapping_(std::move(mapping)), slot_bytes_(slot_bytes) {}

absl::StatusOr<std::unique_ptr<SharedSlotsView>> SharedSlotsView::Map(
    const SharedSlotsLocation& location) {
  if (location.pid <= 0 || location.fd < 0) return CannotMap("no file is named");
  const std::string path = absl::StrCat("/proc/", location.pid, "/fd/", location.fd);
  // The descriptor may stand for anything, a FIFO too: opening must not wait.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) return CannotMap(strerror(errno));
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return CannotMap(strerror(errno));
  const int64_t byte_count = FileBytes(location.slot_count, location.slot_bytes);
  if (!S_ISREG(info.st_mode) || info.st_uid != geteuid()) return CannotMap("another file is there");
  if (info.st_size != byte_count) {
    return CannotMap(
        absl::StrCat("the file has ", info.st_size, " bytes, ", byte_count, " were announced"));
  }
  if (fcntl(fd.get(), F_GET_SEALS) != kSeals) return CannotMap("its size is not sealed");
  void* const data =
      mmap(nullptr, static_cast<size_t>(byte_count), PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return CannotMap(strerror(errno));
  auto mapping = std::make_unique<Mapping>(data, static_cast<size_t>(byte_count));
  if (location.token.size() != kTokenBytes ||
      memcmp(mapping->data(), location.token.data(), kTokenBytes) != 0) {
    return CannotMap("it begins with another token");
  }
  return std::unique_ptr<SharedSlotsView>(
      new SharedSlotsView(std::move(mapping), location.slot_bytes));
}

absl::Span<const float> SharedSlotsView::slot(int index) const {
  const uint8_t* const data = mapping_->data() + kPageBytes + index * SlotStride(slot_bytes_);
  WL_CHECK(data + slot_bytes_ <= mapping_->data() + mapping_->byte_count());
  return {reinterpret_cast<const float*>(data), static_cast<size_t>(slot_bytes_) / sizeof(float)};
}

}  // namespace warpline
