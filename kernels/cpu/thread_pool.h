// The compute pool: splits one op into tasks and runs them on the calling thread and on helpers.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace warpline {

// Owned by the back end and used by its one calling thread. Inside a step helpers spin for at most
// 50 us between ops; otherwise they sleep. Tasks are claimed one by one, highest index first, so a
// helper that the system has taken off its core delays nothing but the task it holds.
class ThreadPool {
 public:
  // `thread_count` >= 1 includes the calling thread.
  explicit ThreadPool(int thread_count);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(helpers_.size()) + 1; }

  // Between these two calls idle helpers may spin.
  void BeginStep() { in_step_.store(true, std::memory_order_relaxed); }
  void EndStep() { in_step_.store(false, std::memory_order_relaxed); }

  // Calls task(index, thread) for every index in [0, count), each once; `thread` is in [0,
  // thread_count) and differs between tasks that run at the same time. Returns when all are done.
  // `count` < 2^31.
  template <typename Task>
  void Run(int64_t count, const Task& task) {
    if (count <= 1 || helpers_.empty()) {
      for (int64_t i = count - 1; i >= 0; --i) task(i, 0);
      return;
    }
    Publish([](const void* context, int64_t index,
               int thread) { (*static_cast<const Task*>(context))(index, thread); },
            &task, static_cast<uint32_t>(count));
  }

 private:
  using TaskFunction = void (*)(const void* context, int64_t index, int thread);

  void Publish(TaskFunction function, const void* context, uint32_t count);
  // Claims and runs tasks of the job in `ticket_` until none is left. False when there was none.
  bool RunTasks(int thread);
  bool SpinForTasks() const;
  void HelperLoop(int thread);

  // Number of the job in the upper half, tasks not claimed yet in the lower. Both in one word: who
  // claims a task by compare-and-swap knows that the job below, read before, is the one the task
  // belongs to.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  std::atomic<TaskFunction> function_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<uint32_t> count_{0};
  alignas(64) std::atomic<uint32_t> done_{0};  // tasks of the job that have ended
  alignas(64) std::atomic<uint32_t> wake_{
      0};  // changes with every job; sleeping helpers wait for that
  std::atomic<bool> in_step_{false};
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> helpers_;
};

}  // namespace warpline
