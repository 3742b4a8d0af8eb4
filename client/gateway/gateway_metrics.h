// What the gateway counts itself; served after the metrics of the coordinator.
#pragma once

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <memory>
#include <string>

#include "absl/strings/string_view.h"

namespace warpline {

class GatewayMetrics {
 public:
  GatewayMetrics();

  // `route` is one of the routes or "other": never a client's text.
  void CountRequest(absl::string_view route, int http_status);
  // Prometheus text format.
  std::string Text() const;

 private:
  std::shared_ptr<prometheus::Registry> registry_;
  prometheus::Family<prometheus::Counter>& requests_;
  prometheus::Gauge& dropped_log_lines_;

 public:
  prometheus::Gauge& connections;
  prometheus::Counter& refused_connections;  // beyond the most allowed
  prometheus::Counter& accept_errors;
  prometheus::Counter& aborted_by_client;  // the client left before its answer was complete
  prometheus::Counter& slow_clients;       // dropped because they did not read
  prometheus::Gauge& coordinator_up;       // at the last call
  prometheus::Histogram& first_token_seconds;
  prometheus::Histogram& inter_token_seconds;
};

}  // namespace warpline
