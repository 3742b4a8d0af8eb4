#include "worker/config.h"

#include "base/flags.h"

namespace warpline {

WorkerConfigResult ReadWorkerConfig(int argc, const char* const* argv) {
  WorkerConfigResult result;
  WorkerConfig& config = result.config;
  CLI::App app("Runs the layers of one stage of a model for a warpline-coordinator");
  Flags flags(app, "warpline-worker");
  CLI::Option* const model =
      flags.Add(app, "-m,--model", config.model, "GGUF file, or the first of its shards");
  flags.Add(app, "--listen", config.listen, "Where the coordinator and the stage before dial");
  flags.Add(app, "-t,--threads", config.threads, "Compute threads; 0: all processors")
      ->check(IntegerRange(0, 1024));
  flags.Add(app, "--backend", config.backend, "What computes: cpu, or cuda for an NVIDIA card")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  flags.Add(app, "--device", config.device, "CUDA device, counted as the driver counts them")
      ->check(IntegerRange(0, 1023));
  flags
      .Add(app, "--tiles", config.tiles,
           "How cuda multiplies: wgmma, mma, wmma (tiles of tensor cores), off (decoded to halves, "
           "then cuBLAS), auto (the best that the card has)")
      ->check(CLI::IsMember({"auto", "wgmma", "mma", "wmma", "off"}));
  flags.Add(app, "--secret-file", config.secret_file,
            "File with the secret of coordinator and workers");
  flags
      .Add(app, "--watch-fd", config.watch_fd, "Inherited pipe; the worker ends when it is closed")
      ->check(OpenDescriptor());
  flags
      .Add(app, "--ple-io", config.ple_io,
           "How rows of an n-gram table are read: direct (io_uring past the page cache), mmap (the "
           "page cache), ram (a copy), auto (what is measured to be fastest)")
      ->check(CLI::IsMember({"auto", "direct", "mmap", "ram"}));
  flags
      .Add(app, "--ple-cache-mib", config.ple_cache_mib,
           "Memory for rows of an n-gram table, in MiB (0: none)")
      ->check(IntegerRange(0, 1 << 20));
  flags
      .Add(app, "--ple-timeout-s", config.ple_timeout_s,
           "Longest wait for the n-gram rows of one step, in seconds")
      ->check(IntegerRange(1, 3600));
  flags.AddFlag(app, "--verify", config.verify,
                "Hash the whole model file, not only parts of it; as the coordinator does");
  flags.AddFlag(app, "--doctor", config.doctor,
                "Check every CUDA device, show what it can do, and end (77: there is none)");
  flags.AddFlag(app, "--show-device-memory", config.show_device_memory,
                "Print the free and the total memory of --device in bytes, and end (77: there is "
                "none)");
  result.exit_code = flags.Parse(argc, argv);
  const bool needs_model = !config.doctor && !config.show_device_memory;
  if (!result.exit_code.has_value() && needs_model && model->count() == 0) {
    result.exit_code = UsageError("warpline-worker", "--model is required");
  }
  if (!result.exit_code.has_value() && config.backend == "cpu" && config.tiles != "auto") {
    result.exit_code =
        UsageError("warpline-worker", "--tiles " + config.tiles + " needs --backend cuda");
  }
  return result;
}

}  // namespace warpline
