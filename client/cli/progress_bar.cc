#include "client/cli/progress_bar.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace warpline {

ProgressBar::ProgressBar() : on_terminal_(isatty(STDERR_FILENO) == 1) {}

void ProgressBar::Show(absl::string_view text, double fraction) {
  if (!on_terminal_) return;
  constexpr int kWidth = 24;
  constexpr int kUsualColumns = 80;
  winsize window{};
  const bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &window) == 0 && window.ws_col > 0;
  std::string line =
      fraction >= 0 ? absl::StrCat(BarText(fraction, kWidth), " ", text) : std::string(text);
  line.resize(std::min<size_t>(line.size(), (known ? window.ws_col : kUsualColumns) - 1));
  std::cerr << "\r\x1b[K" << line << std::flush;
  shown_ = true;
}

void ProgressBar::Clear() {
  if (shown_) std::cerr << "\r\x1b[K" << std::flush;
  shown_ = false;
}

std::string BarText(double fraction, int width) {
  const int filled = std::clamp(static_cast<int>(std::lround(fraction * width)), 0, width);
  return absl::StrCat("[", std::string(filled, '#'), std::string(width - filled, '-'), "]");
}

double LoadedFraction(absl::string_view status) {
  constexpr absl::string_view kWord = "loading ";
  double sum = 0;
  int count = 0;
  for (absl::string_view part : absl::StrSplit(status, "; ")) {
    const size_t at = part.find(kWord);
    if (at == absl::string_view::npos) continue;
    const absl::string_view number = part.substr(at + kWord.size());
    double percent = 0;
    if (!absl::SimpleAtod(number.substr(0, number.find(' ')), &percent)) continue;
    sum += percent / 100;
    ++count;
  }
  return count == 0 ? -1 : sum / count;
}

}  // namespace warpline
