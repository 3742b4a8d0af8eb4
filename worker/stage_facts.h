// What a worker knows of its model file and its device before a coordinator comes.
#pragma once

#include <string>

namespace warpline {

struct StageFacts {
  std::string fingerprint;
  int n_layer = 0;
  int residual_width = 0;
  int n_vocab = 0;
  std::string capability;  // the device in words
};

}  // namespace warpline
