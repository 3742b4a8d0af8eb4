// Options of a whole service on one machine, shared by every command that starts one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/flags.h"

namespace warpline {

struct ServiceOptions {
  std::string model;
  int workers = 1;
  int threads = 0;       // all workers together; 0: as many as this process may use
  int64_t ctx_size = 0;  // longest sequence; 0: the file's context_length
  int parallel = 8;
  int chunk = 0;  // 0: what the coordinator takes for the back end
  std::string layer_split;
  std::string kv_type = "f16";
  std::string edge = "auto";
  std::string backend = "cpu";
  std::string device = "0";    // CUDA devices, such as 0,1; worker i takes the i-th, around
  std::string device_memory;   // MiB that are free on each device, or on all; empty: they are asked
  std::string tiles = "auto";  // how cuda multiplies; see warpline-worker
  std::string ple_io = "auto";
  int ple_cache_mib = 256;
  int ple_timeout_s = 30;
  std::string chat_template;
  std::string alias;
  bool verify = false;
  int load_timeout_s = 600;
  int drain_seconds = 30;
  std::string gateway_host = "127.0.0.1";
  int gateway_port = 8080;
  bool no_gateway = false;
  std::string grpc_host = "127.0.0.1";
  int grpc_port = 50051;  // -1: only the private socket
  std::string api_key;
  std::string cors_origin;
  bool strict_model = false;
  std::string socket_dir;  // for the private sockets; empty: a new folder under the temporary one
  int watch_fd = -1;
};

// What decides the computation: model, workers, split, cache.
void AddEngineOptions(Flags& flags, CLI::App& command, ServiceOptions& options);
// What decides where the service listens.
void AddFrontOptions(Flags& flags, CLI::App& command, ServiceOptions& options);

// What is wrong with options that exclude one another; empty: nothing.
std::string ConflictOf(const ServiceOptions& options);

// Compute threads of each worker, the first ones having most: the total shared out, at least one
// each.
std::vector<int> WorkerThreads(const ServiceOptions& options);

// The CUDA devices of the options, in their order.
std::vector<int> ServiceDevices(const ServiceOptions& options);
// The CUDA device of worker `index`: the devices of the options in turn.
int WorkerDevice(const ServiceOptions& options, int index);

// Where the gRPC service listens: host:port, an IPv6 address in brackets.
std::string GrpcAddress(const ServiceOptions& options);
// The arguments of `warpline serve` that say the same as `options`, less its secrets.
std::vector<std::string> ServeArguments(const ServiceOptions& options);
// The secrets as environment variables of a child ("NAME=value"): a process list shows arguments.
std::vector<std::string> SecretVariables(const ServiceOptions& options);

}  // namespace warpline
