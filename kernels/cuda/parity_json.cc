#include "kernels/cuda/parity_json.h"

#include <cstdio>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace warpline::cuda {
namespace {

// Our own words only: no control characters.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

}  // namespace

absl::Status WriteJson(const std::string& path, const std::vector<ParityLine>& lines) {
  std::ofstream file(path);
  file << "{\"results\": [";
  for (size_t i = 0; i < lines.size(); ++i) {
    const ParityLine& line = lines[i];
    file << (i == 0 ? "\n" : ",\n")
         << absl::StrFormat(
                "{\"device\": %s, \"type\": %s, \"shape\": %s, \"op\": %s, \"policy\": %s, "
                "\"cases\": %d, \"max_error\": %.6g, \"max_reference\": %.6g, \"max_excess\": "
                "%.6g, \"bound\": %.6g, \"failure\": %s}",
                line.device, Quoted(line.type), Quoted(line.shape), Quoted(line.op),
                Quoted(line.policy), line.cases, line.max_error, line.max_reference,
                line.max_excess, line.bound, Quoted(line.failure));
  }
  file << "\n]}\n";
  file.close();
  if (!file) return absl::InternalError(absl::StrCat("cannot write ", path));
  return absl::OkStatus();
}

}  // namespace warpline::cuda
