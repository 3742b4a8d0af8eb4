#include "kernels/cpu/thread_pool.h"

#include <immintrin.h>

#include <chrono>

namespace warpline {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPausesPerClockReading = 16;

uint32_t Remaining(uint64_t ticket) { return static_cast<uint32_t>(ticket); }

// True when `ready` became true within the spinning time.
template <typename Condition>
bool SpinUntil(const Condition& ready) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerClockReading; ++i) {
      if (ready()) return true;
      _mm_pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return false;
}

}  // namespace

ThreadPool::ThreadPool(int thread_count) {
  for (int thread = 1; thread < thread_count; ++thread) {
    helpers_.emplace_back([this, thread] { HelperLoop(thread); });
  }
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  wake_.fetch_add(1);
  wake_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::Publish(TaskFunction function, const void* context, uint32_t count) {
  function_.store(function, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  count_.store(count, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  const uint64_t job = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
  ticket_.store(job << 32 | count, std::memory_order_release);
  wake_.fetch_add(1, std::memory_order_release);
  wake_.notify_all();
  RunTasks(0);
  const auto all_done = [this, count] { return done_.load(std::memory_order_acquire) == count; };
  if (SpinUntil(all_done)) return;
  for (uint32_t done; (done = done_.load(std::memory_order_acquire)) != count;) done_.wait(done);
}

bool ThreadPool::RunTasks(int thread) {
  bool ran = false;
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (Remaining(ticket) > 0) {
    const TaskFunction function = function_.load(std::memory_order_relaxed);
    const void* context = context_.load(std::memory_order_relaxed);
    const uint32_t count = count_.load(std::memory_order_relaxed);
    if (!ticket_.compare_exchange_weak(ticket, ticket - 1, std::memory_order_acq_rel,
                                       std::memory_order_acquire)) {
      continue;
    }
    function(context, Remaining(ticket) - 1, thread);
    ran = true;
    const uint32_t done = done_.fetch_add(1, std::memory_order_acq_rel) + 1;
    if (done == count && thread != 0) done_.notify_one();
    ticket = ticket_.load(std::memory_order_acquire);
  }
  return ran;
}

bool ThreadPool::SpinForTasks() const {
  bool found = false;
  SpinUntil([this, &found] {
    found = Remaining(ticket_.load(std::memory_order_acquire)) > 0;
    return found || !in_step_.load(std::memory_order_relaxed);
  });
  return found;
}

void ThreadPool::HelperLoop(int thread) {
  for (;;) {
    const uint32_t wake = wake_.load(std::memory_order_acquire);
    if (stopping_.load()) return;
    if (RunTasks(thread) || SpinForTasks()) continue;
    wake_.wait(wake);
  }
}

}  // namespace warpline
