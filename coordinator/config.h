// The coordinator's configuration.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "proto/stage.pb.h"

namespace warpline {

struct CoordinatorConfig {
  std::string model;                 // path of the GGUF file, or of shard 1
  std::vector<std::string> workers;  // addresses in the order of the stages; 1 to 512
  int worker_count = 0;              // for --print-plan without addresses: 1 to 512; 0: not given
  std::vector<std::string> listen;   // unix:/path or host:port, at least one
  int64_t ctx_size = 0;              // tokens of the longest sequence, 1 to 2^24; 0: the file's
  int parallel = 8;                  // most running sequences, 1 to 1,024
  int chunk = 0;                     // most rows of a prompt chunk, 1 to 2^20 once it is read
  std::vector<int> layer_split;      // first layer of each later stage; empty: balanced by bytes
  v1::KvCacheType kv_type = v1::KV_CACHE_TYPE_F16;
  v1::EdgeKind edge = v1::EDGE_KIND_AUTO;
  std::string backend = "cpu";         // what the workers compute with: cpu or cuda
  std::vector<int> devices = {0};      // CUDA devices of the workers in turn, 0 to 1,023 each
  std::vector<int> device_memory_mib;  // free on each device, or on all; empty: not known
  int worker_threads = 0;       // compute threads of one worker, 0 to 1,024; 0: as many as ours
  std::string ple_io = "auto";  // how workers read an n-gram table: auto, direct, mmap, ram
  int ple_cache_mib = 256;      // their memory for its rows, 0 to 2^20
  int queue = 256;              // requests that may wait for a slot, 64 to 65,536
  std::string chat_template;    // built-in name or file; empty: the model's
  std::string alias;            // the model's name for clients; empty: the file's
  std::string secret_file;      // empty: no secret, then only local addresses
  int load_timeout_s = 600;     // of a worker that loads nothing more, 1 to 86,400
  int drain_seconds = 30;       // 0 to 86,400
  int request_timeout = 86400;  // s, for a stream without a deadline; 1 to 604,800
  int watch_fd = -1;            // inherited descriptor whose end ends us; -1: none
  bool print_plan = false;
  bool verify = false;  // hash the whole file

  int stage_count() const {
    return workers.empty() ? worker_count : static_cast<int>(workers.size());
  }
};

// Reads command line, environment and config file. A value: the program shall exit with it, and
// what is wrong has been printed.
std::optional<int> ReadConfig(int argc, const char* const* argv, CoordinatorConfig& config);

}  // namespace warpline
