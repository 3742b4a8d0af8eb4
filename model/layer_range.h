// A half-open range of layers, the share of one stage.
#pragma once

namespace warpline {

struct LayerRange {
  int begin = 0;
  int end = 0;

  int size() const { return end - begin; }
  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

}  // namespace warpline
