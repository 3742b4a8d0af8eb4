// Opens the n-gram reader of a worker when its stage gets the layer that needs it.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "model/gguf.h"
#include "model/layer_range.h"
#include "model/ple_spec.h"
#include "worker/ple/ngram_reader.h"

namespace warpline {

// Used by the executor's thread alone.
class NgramSource {
 public:
  // `file` must outlive it.
  NgramSource(const GgufFile& file, const PleSpec& spec, const NgramReaderOptions& options)
      : file_(file), spec_(spec), options_(options) {}

  // The reader for a stage of these layers, null when they need none. Opened at the first call and
  // kept, with its cache, while the layers need it. Errors: those of OpenNgramReader.
  absl::StatusOr<NgramReader*> ReaderFor(LayerRange layers);

  // Null while there is none.
  const NgramReader* reader() const { return reader_.get(); }

 private:
  const GgufFile& file_;
  const PleSpec spec_;
  const NgramReaderOptions options_;
  std::unique_ptr<NgramReader> reader_;
};

}  // namespace warpline
