// A few threads that tokenise, detokenise and render templates, behind a bounded queue.
#pragma once

#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/bounded_queue.h"

namespace warpline {

// Thread-safe. The destructor lets the queued jobs end, then joins.
class TokenizerPool {
 public:
  TokenizerPool(int thread_count, size_t queue_capacity);
  ~TokenizerPool();
  TokenizerPool(const TokenizerPool&) = delete;
  TokenizerPool& operator=(const TokenizerPool&) = delete;

  // ResourceExhausted when the queue is full: then `job` will not run.
  absl::Status Run(std::function<void()> job);

 private:
  BoundedQueue<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace warpline
