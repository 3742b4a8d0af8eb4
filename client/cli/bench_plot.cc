#include "client/cli/bench_plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace warpline {
namespace {

// Pixels.
constexpr double kWidth = 720;
constexpr double kPanelHeight = 400;
constexpr double kLeft = 90;
constexpr double kRight = 24;
constexpr double kTitle = 34;
constexpr double kLegendLine = 18;
constexpr double kBottom = 60;
constexpr double kBarEnd = 4;  // half of the short line at the end of a bar

constexpr const char* kColours[] = {"#1b6ca8", "#d1495b", "#2e8b57", "#8a5fbf"};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

std::string Line(double x1, double y1, double x2, double y2, const std::string& colour) {
  return absl::StrFormat("<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                         x1, y1, x2, y2, colour);
}

std::string Text(double x, double y, const char* anchor, const std::string& text) {
  return absl::StrFormat("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor,
                         Escape(text));
}

// 26700 as "26,700".
std::string WithCommas(double number) {
  std::string digits = absl::StrFormat("%.0f", number);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, 1, ',');
  return digits;
}

std::string TickText(double value, double step) {
  return step < 1 ? absl::StrFormat("%g", value) : WithCommas(value);
}

// Draws one panel whose upper edge is at `top`.
class PanelPainter {
 public:
  PanelPainter(const PlotPanel& panel, double top)
      : panel_(panel),
        legend_top_(top + kTitle),
        top_(legend_top_ + kLegendLine * static_cast<double>(panel.curves.size())),
        height_(top + kPanelHeight - kBottom - top_) {
    for (const PlotCurve& curve : panel.curves) {
      for (const PlotPoint& point : curve.points) {
        most_x_ = std::max(most_x_, point.x);
        most_y_ = std::max(most_y_, point.most);
      }
    }
    if (most_x_ <= 0) most_x_ = 1;
    if (most_y_ <= 0) most_y_ = 1;
    most_x_ *= 1.03;  // Room for the last mark.
    most_y_ *= 1.05;
  }

  std::string Paint() const {
    std::string svg =
        absl::StrCat("<g font-size=\"15\">",
                     Text(kWidth / 2, legend_top_ - 12, "middle", panel_.title), "</g>\n");
    svg += Axes();
    for (size_t index = 0; index < panel_.curves.size(); ++index) {
      svg += Curve(panel_.curves[index], kColours[index % std::size(kColours)]);
    }
    return svg + Legend();
  }

 private:
  static constexpr double kPlotWidth = kWidth - kLeft - kRight;

  double X(double x) const { return kLeft + x / most_x_ * kPlotWidth; }
  double Y(double y) const { return top_ + height_ * (1 - y / most_y_); }

  std::string Axes() const {
    const double bottom = Y(0);
    std::string svg;
    const double step_y = TickStep(most_y_, 6);
    for (int tick = 0; tick * step_y <= most_y_; ++tick) {
      const double y = Y(tick * step_y);
      svg += Line(kLeft, y, kWidth - kRight, y, tick == 0 ? "#333" : "#ddd");
      svg += Text(kLeft - 8, y + 4, "end", TickText(tick * step_y, step_y));
    }
    const double step_x = TickStep(most_x_, 8);
    for (int tick = 0; tick * step_x <= most_x_; ++tick) {
      const double x = X(tick * step_x);
      svg += Line(x, bottom, x, bottom + 5, "#333");
      svg += Text(x, bottom + 20, "middle", TickText(tick * step_x, step_x));
    }
    svg += Line(kLeft, top_, kLeft, bottom, "#333");
    svg += Text(kLeft + kPlotWidth / 2, bottom + 44, "middle", panel_.x_label);
    const double middle = top_ + height_ / 2;
    svg += absl::StrFormat(
        "<text x=\"20\" y=\"%.1f\" text-anchor=\"middle\" "
        "transform=\"rotate(-90 20 %.1f)\">%s</text>\n",
        middle, middle, Escape(panel_.y_label));
    return svg;
  }

  std::string Curve(const PlotCurve& curve, const std::string& colour) const {
    std::string corners;
    std::string marks;
    for (const PlotPoint& point : curve.points) {
      const double x = X(point.x);
      absl::StrAppendFormat(&corners, "%.1f,%.1f ", x, Y(point.y));
      absl::StrAppendFormat(&marks, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x,
                            Y(point.y), colour);
      marks += Line(x, Y(point.least), x, Y(point.most), colour);
      for (const double end : {point.least, point.most}) {
        marks += Line(x - kBarEnd, Y(end), x + kBarEnd, Y(end), colour);
      }
    }
    return absl::StrFormat(
        "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n%s", corners,
        colour, marks);
  }

  std::string Legend() const {
    std::string svg;
    double y = legend_top_ + 6;
    for (size_t index = 0; index < panel_.curves.size(); ++index, y += kLegendLine) {
      const std::string colour = kColours[index % std::size(kColours)];
      absl::StrAppendFormat(
          &svg, "<rect x=\"%.1f\" y=\"%.1f\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", kLeft,
          y - 10, colour);
      svg += Text(kLeft + 18, y, "start", panel_.curves[index].name);
    }
    return svg;
  }

  const PlotPanel& panel_;
  const double legend_top_;
  const double top_;     // of the plot
  const double height_;  // of the plot
  double most_x_ = 0;
  double most_y_ = 0;
};

}  // namespace

std::string PlotSvg(absl::Span<const PlotPanel> panels) {
  const double height = kPanelHeight * static_cast<double>(panels.size());
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
      "height=\"%.0f\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, height, kWidth, height);
  for (size_t index = 0; index < panels.size(); ++index) {
    svg += PanelPainter(panels[index], kPanelHeight * static_cast<double>(index)).Paint();
  }
  return svg + "</svg>\n";
}

double TickStep(double most, int count) {
  const double least_step = most / count;
  const double power = std::pow(10, std::floor(std::log10(least_step)));
  for (const double factor : {1, 2, 5}) {
    if (factor * power >= least_step * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

}  // namespace warpline
