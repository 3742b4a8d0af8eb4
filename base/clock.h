// Time: a steady clock for every wait and measurement, the wall clock for `created` fields only.
#pragma once

#include <chrono>
#include <cstdint>
#include <ctime>

namespace warpline {

using SteadyTime = std::chrono::steady_clock::time_point;

inline SteadyTime Now() { return std::chrono::steady_clock::now(); }

inline double SecondsSince(SteadyTime begin) {
  return std::chrono::duration<double>(Now() - begin).count();
}

inline int64_t UnixSeconds() { return static_cast<int64_t>(std::time(nullptr)); }

}  // namespace warpline
