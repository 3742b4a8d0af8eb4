#include "worker/layers/mixers.h"

#include "worker/layers/attention_mixer.h"
#include "worker/layers/delta_net_mixer.h"

namespace warpline {

absl::StatusOr<std::unique_ptr<Mixer>> LoadMixer(WeightLoader& loader, const ModelSpec& spec,
                                                 int layer, const StatePlan& state,
                                                 Backend& backend) {
  if (spec.layers[layer].kind == LayerKind::kDeltaNet) {
    return DeltaNetMixer::Load(loader, spec, layer, state, backend);
  }
  return AttentionMixer::Load(loader, spec, layer, state, backend);
}

}  // namespace warpline
