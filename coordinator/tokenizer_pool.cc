#include "coordinator/tokenizer_pool.h"

#include <optional>
#include <utility>

namespace warpline {

TokenizerPool::TokenizerPool(int thread_count, size_t queue_capacity) : jobs_(queue_capacity) {
  for (int index = 0; index < thread_count; ++index) {
    threads_.emplace_back([this] {
      while (const std::optional<std::function<void()>> job = jobs_.Pop()) (*job)();
    });
  }
}

TokenizerPool::~TokenizerPool() {
  jobs_.Close();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status TokenizerPool::Run(std::function<void()> job) {
  if (jobs_.TryPush(std::move(job))) return absl::OkStatus();
  return absl::ResourceExhaustedError("too many requests wait to be tokenised");
}

}  // namespace warpline
