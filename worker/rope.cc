#include "worker/rope.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <string>

#include "worker/stage_weights.h"

namespace warpline {
namespace {

constexpr double kPi = 3.14159265358979323846;

// The pair index at which a wave makes `rotations` turns within the original context.
double PairOfRotations(const RopeSpec& spec, double rotations) {
  return spec.n_rot * std::log(static_cast<double>(spec.original_context) / (2 * kPi * rotations)) /
         (2 * std::log(spec.freq_base));
}

// YaRN: pairs that turn fast keep their angle (share 1), slow ones are interpolated (share 0), a
// ramp lies between.
class YarnRamp {
 public:
  explicit YarnRamp(const RopeSpec& spec)
      : low_(std::max(0.0, std::floor(PairOfRotations(spec, spec.yarn_beta_fast)))),
        high_(std::min(spec.n_rot - 1.0, std::ceil(PairOfRotations(spec, spec.yarn_beta_slow)))) {}

  double ShareKept(int pair) const {
    return 1 - std::clamp((pair - low_) / std::max(0.001, high_ - low_), 0.0, 1.0);
  }

 private:
  double low_;
  double high_;
};

double YarnMagnitude(const RopeSpec& spec) {
  if (spec.factor <= 1) return 1;
  const double log_factor = std::log(spec.factor);
  const double magnitude = 1 + 0.1 * log_factor;
  if (spec.yarn_log_multiplier == 0) return magnitude;
  return magnitude / (1 + 0.1 * spec.yarn_log_multiplier * log_factor);
}

// Whether a pair's position axis is the one that is 0 for text: its angle is then 0 as well.
bool StandsStill(const RopeSpec& spec, int pair) {
  const std::array<int, 4>& sections = spec.sections;
  const int sum = sections[0] + sections[1] + sections[2] + sections[3];
  if (sum == 0) return false;
  const int place = pair % sum;
  // Axes t, h and w take turns as long as their sections last.
  return place >= 3 * sections[place % 3];
}

}  // namespace

RopeTable ComputeRope(const RopeSpec& spec, absl::Span<const float> frequency_factors) {
  RopeTable table{.interleaved = spec.style == RopeStyle::kNorm, .magnitude = spec.attn_factor};
  if (spec.style == RopeStyle::kNone) return {};
  std::optional<YarnRamp> ramp;
  if (spec.scaling == RopeScaling::kYarn) ramp.emplace(spec);
  for (int pair = 0; pair < spec.n_rot / 2; ++pair) {
    double frequency = std::pow(spec.freq_base, -2.0 * pair / spec.n_rot);
    if (!frequency_factors.empty()) frequency /= frequency_factors[pair];
    if (spec.scaling == RopeScaling::kLinear) frequency /= spec.factor;
    if (ramp) {
      const double kept = ramp->ShareKept(pair);
      frequency *= (1 - kept) / spec.factor + kept;
    }
    table.inverse_frequency.push_back(StandsStill(spec, pair) ? 0 : frequency);
  }
  if (ramp) table.magnitude *= YarnMagnitude(spec);
  return table;
}

absl::StatusOr<std::vector<float>> FrequencyFactors(const GgufFile& file, const RopeSpec& spec,
                                                    int64_t configured_context) {
  std::string name = "rope_freqs.weight";
  if (file.FindTensor(name) == nullptr) {
    if (spec.scaling != RopeScaling::kLongRope) return std::vector<float>();
    name = configured_context > spec.original_context ? "rope_factors_long.weight"
                                                      : "rope_factors_short.weight";
  }
  return ReadVector(file, name, spec.n_rot / 2);
}

}  // namespace warpline
