// Chat and plain completions: from a request to the coordinator's streams and back to the client.
#pragma once

#include <memory>

#include "client/gateway/answer.h"
#include "client/gateway/config.h"
#include "client/gateway/gateway_metrics.h"
#include "client/gateway/generate_request.h"
#include "client/gateway/inference_client.h"
#include "client/gateway/session.h"

namespace warpline {

// Starts every prompt of `job` at once and answers through `session`. An error before the first
// token is an HTTP status; after the header of a stream it is its last event. The first error ends
// the other prompts; so does the client's leaving.
void StartGenerate(GenerateJob job, GenerateAnswer::Identity identity, InferenceClient& client,
                   GatewayMetrics& metrics, Milliseconds timeout, std::shared_ptr<Session> session);

}  // namespace warpline
