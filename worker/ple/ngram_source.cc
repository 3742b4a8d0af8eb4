#include "worker/ple/ngram_source.h"

#include "base/status.h"

namespace warpline {

absl::StatusOr<NgramReader*> NgramSource::ReaderFor(LayerRange layers) {
  if (!spec_.present() || spec_.layer < layers.begin || spec_.layer >= layers.end) {
    reader_.reset();
    return nullptr;
  }
  if (reader_ == nullptr) {
    WL_ASSIGN_OR_RETURN(const NgramTable table, FindNgramTable(file_, spec_));
    WL_ASSIGN_OR_RETURN(reader_, OpenNgramReader(table, options_));
  }
  return reader_.get();
}

}  // namespace warpline
