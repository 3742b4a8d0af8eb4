// Curves with their spread as an SVG picture.
#pragma once

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace warpline {

struct PlotPoint {
  double x = 0;
  double y = 0;
  double least = 0;  // the ends of its bar
  double most = 0;
};

struct PlotCurve {
  std::string name;  // in the legend
  std::vector<PlotPoint> points;
};

// One diagram; both axes begin at 0.
struct PlotPanel {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<PlotCurve> curves;
};

// The panels one below the other.
std::string PlotSvg(absl::Span<const PlotPanel> panels);

// A step of 1, 2 or 5 times a power of ten that cuts `most` into at most `count` parts.
double TickStep(double most, int count);

}  // namespace warpline
