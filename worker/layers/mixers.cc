#include "worker/layers/mixers.h"

#include "worker/layers/attention_mixer.h"

namespace warpline {

absl::StatusOr<std::unique_ptr<Mixer>> LoadMixer(WeightLoader& loader, const ModelSpec& spec,
                                                 int layer, const StatePlan& state,
                                                 Backend& backend) {
  return AttentionMixer::Load(loader, spec, layer, state, backend);
}

}  // namespace warpline
