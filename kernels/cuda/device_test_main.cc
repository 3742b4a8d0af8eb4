// The main function of tests that need a card: without one they are skipped, and say why.
#include <cstdio>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cuda/device.h"

int main(int argc, char** argv) {
  testing::InitGoogleMock(&argc, argv);
  if (const auto count = warpline::cuda::Device::Count(); !count.ok()) {
    std::printf("skipped: %s\n", std::string(count.status().message()).c_str());
    return warpline::kExitNoDevice;
  }
  return RUN_ALL_TESTS();
}
