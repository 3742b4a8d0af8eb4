// A line on a terminal that shows how far something is; nothing is shown where stderr is no
// terminal.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace warpline {

class ProgressBar {
 public:
  ProgressBar();
  ~ProgressBar() { Clear(); }

  // `fraction` 0..1; below 0: only the text.
  void Show(absl::string_view text, double fraction);
  void Clear();

 private:
  bool on_terminal_;
  bool shown_ = false;
};

// "[########------------]" of `width` characters between the brackets.
std::string BarText(double fraction, int width);

// The fraction in a status such as "worker 1: loading 40 %; coordinator: ..." (mean over the
// loading stages), or -1.
double LoadedFraction(absl::string_view status);

}  // namespace warpline
