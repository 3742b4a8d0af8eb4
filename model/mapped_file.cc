#include "model/mapped_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/flags.h"
#include "base/log.h"
#include "base/unique_fd.h"

namespace warpline {
namespace {

// What the fault handler must know of one map. `begin` is written last and cleared first, so the
// handler never sees a half-filled entry as live.
struct MapEntry {
  std::atomic<bool> taken{false};
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::atomic<const char*> name{nullptr};
  std::atomic<size_t> name_bytes{0};
};

// The one process-global: a signal handler gets no argument of ours, it can only find the maps in
// static memory, and it may neither lock nor allocate. Fixed in size; a map that finds no place is
// served without a readable fault line.
constexpr int kMapEntries = 2048;
MapEntry g_maps[kMapEntries];

int RegisterMap(const uint8_t* data, size_t size, const std::string& name) {
  for (int slot = 0; slot < kMapEntries; ++slot) {
    MapEntry& entry = g_maps[slot];
    if (entry.taken.exchange(true)) continue;
    entry.name = name.data();
    entry.name_bytes = name.size();
    entry.end = reinterpret_cast<uintptr_t>(data) + size;
    entry.begin = reinterpret_cast<uintptr_t>(data);
    return slot;
  }
  return -1;
}

void UnregisterMap(int slot) {
  if (slot < 0) return;
  g_maps[slot].begin = 0;
  g_maps[slot].taken = false;
}

iovec Piece(const char* text, size_t bytes) {
  return {.iov_base = const_cast<char*>(text), .iov_len = bytes};
}

// Calls only what is async-signal-safe.
void OnBusError(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const MapEntry& entry : g_maps) {
    const uintptr_t begin = entry.begin;
    if (begin == 0 || address < begin || address >= entry.end) continue;
    constexpr char kBefore[] = "model file ";
    constexpr char kAfter[] = " cannot be read any more: it was truncated or its disk failed\n";
    const iovec pieces[] = {Piece(kBefore, sizeof(kBefore) - 1),
                            Piece(entry.name, entry.name_bytes), Piece(kAfter, sizeof(kAfter) - 1)};
    [[maybe_unused]] const ssize_t written = writev(STDERR_FILENO, pieces, 3);
    _exit(kExitModelFile);
  }
  // Not ours: with the default action back in place, returning repeats the access and ends the
  // process.
  signal(SIGBUS, SIG_DFL);
}

absl::Status OpenError(const std::string& name, int error) {
  const std::string message = absl::StrCat(name, ": ", std::strerror(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::NotFoundError(message);
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(message);
    default:
      return absl::FailedPreconditionError(message);
  }
}

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a FIFO";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return "of an unknown kind";
}

}  // namespace

absl::StatusOr<std::unique_ptr<MappedFile>> MappedFile::Open(const std::string& path) {
  std::string name = EscapeForLog(path);
  if (path.find('\0') != std::string::npos) {
    return absl::NotFoundError(absl::StrCat(name, ": a path cannot hold a NUL byte"));
  }
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY));
  if (!fd.valid()) return OpenError(name, errno);
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return OpenError(name, errno);
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": is ", KindOf(info.st_mode), ", not a regular file"));
  }
  const auto size = static_cast<size_t>(info.st_size);
  const uint8_t* data = nullptr;
  if (size >
      0) {  // An empty map is an error to mmap; the parser says what is wrong with an empty file.
    void* const map = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd.get(), 0);
    if (map == MAP_FAILED) {
      return absl::FailedPreconditionError(
          absl::StrCat(name, ": cannot map ", size, " bytes: ", std::strerror(errno)));
    }
    data = static_cast<const uint8_t*>(map);
  }
  return std::unique_ptr<MappedFile>(new MappedFile(data, size, std::move(name)));
}

MappedFile::MappedFile(const uint8_t* data, size_t size, std::string printable_path)
    : data_(data), size_(size), printable_path_(std::move(printable_path)) {
  if (size_ > 0) fault_slot_ = RegisterMap(data_, size_, printable_path_);
}

MappedFile::~MappedFile() {
  UnregisterMap(fault_slot_);
  if (size_ > 0) munmap(const_cast<uint8_t*>(data_), size_);
}

void MappedFile::Release(size_t begin, size_t length) const {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t first = (begin + page - 1) / page * page;
  const size_t last = (begin + length) / page * page;
  if (first >= last || last > size_) return;
  // Advice only: when the kernel does not take it, the pages merely stay.
  madvise(const_cast<uint8_t*>(data_) + first, last - first, MADV_DONTNEED);
}

void InstallMappedFileFaultHandler() {
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, nullptr);
}

}  // namespace warpline
