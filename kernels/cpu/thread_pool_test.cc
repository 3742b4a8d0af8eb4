#include "kernels/cpu/thread_pool.h"

#include <sys/resource.h>

#include <thread>

#include "gtest/gtest.h"

namespace warpline {
namespace {

TEST(ThreadPoolTest, RunsEveryTaskOnceOnThreadsOfTheirOwn) {
  for (const int threads : {1, 2, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.thread_count(), threads);
    pool.BeginStep();
    for (int64_t count = 0; count < 300; ++count) {
      std::vector<int> runs(count);
      std::vector<std::atomic<int>> busy(threads);
      std::atomic<bool> shared_thread{false};
      pool.Run(count, [&](int64_t index, int thread) {
        if (busy[thread].fetch_add(1) != 0) shared_thread = true;
        ++runs[index];
        busy[thread].fetch_sub(1);
      });
      EXPECT_EQ(runs, std::vector<int>(count, 1));
      EXPECT_FALSE(shared_thread);
    }
    pool.EndStep();
  }
}

TEST(ThreadPoolTest, FinishesJobsThatFindEverybodyAsleep) {
  ThreadPool pool(3);
  std::atomic<int64_t> sum{0};
  for (int job = 0; job < 2000; ++job) {
    pool.Run(4, [&sum](int64_t index, int) {
      sum += index + 1;
    });  // no step: helpers go to sleep in between
  }
  EXPECT_EQ(sum, 2000 * 10);
}

TEST(ThreadPoolTest, UsesItsHelpers) {
  ThreadPool pool(2);
  std::atomic<int> arrived{0};
  // Each task waits for the other, so one thread alone would never end.
  pool.Run(2, [&arrived](int64_t, int) {
    ++arrived;
    while (arrived < 2) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 2);
}

double ProcessorSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return t.tv_sec + 1e-6 * t.tv_usec; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

TEST(ThreadPoolTest, HelpersSleepEvenInsideAStepWithoutWork) {
  ThreadPool pool(4);
  pool.BeginStep();
  pool.Run(64, [](int64_t, int) {});
  const double before = ProcessorSeconds();
  std::this_thread::sleep_for(
      std::chrono::milliseconds(300));  // the time measured, not a wait for anything
  EXPECT_LT(ProcessorSeconds() - before,
            0.1);  // three helpers that spin would take 0.9 s of two cores
  pool.EndStep();
}

}  // namespace
}  // namespace warpline
