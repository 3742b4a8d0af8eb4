// The options of warpline-worker.
#pragma once

#include <optional>
#include <string>

namespace warpline {

// Filled once from flags, environment and config file; constant afterwards.
struct WorkerConfig {
  std::string model;                   // path of the GGUF file, or of its first shard
  std::string listen = "127.0.0.1:0";  // "unix:/path", "host:port"; port 0 takes a free one
  int threads = 0;              // compute threads, 0 to 1024; 0: all that the process may use
  std::string backend = "cpu";  // cpu or cuda
  int device = 0;               // CUDA device, counted as the driver counts them, 0 to 1023
  std::string tiles = "auto";   // how cuda multiplies: auto, wgmma, mma, wmma, off; cpu: auto
  std::string secret_file;      // empty: no secret, loopback and Unix sockets only
  int watch_fd = -1;  // an inherited pipe; the worker ends when its other end is closed; -1: none
  std::string ple_io = "auto";      // how rows of an n-gram table are read: auto, direct, mmap, ram
  int ple_cache_mib = 256;          // memory for rows of the n-gram table, 0 to 2^20
  int ple_timeout_s = 30;           // longest wait for the rows of one step, 1 to 3600
  bool doctor = false;              // only show what the CUDA devices are and can do
  bool show_device_memory = false;  // only say how much memory `device` has
  bool verify = false;              // the fingerprint covers all bytes of the model
};

// Sets up the log too. A number instead of the config: the process shall exit with it, its message
// has been printed.
struct WorkerConfigResult {
  WorkerConfig config;
  std::optional<int> exit_code;
};
WorkerConfigResult ReadWorkerConfig(int argc, const char* const* argv);

}  // namespace warpline
