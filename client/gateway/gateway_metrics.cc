#include "client/gateway/gateway_metrics.h"

#include <prometheus/text_serializer.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace warpline {
namespace {

prometheus::Counter& AddCounter(prometheus::Registry& registry, const std::string& name,
                                const std::string& help) {
  return prometheus::BuildCounter()
      .Name("warpline_gateway_" + name)
      .Help(help)
      .Register(registry)
      .Add({});
}

prometheus::Gauge& AddGauge(prometheus::Registry& registry, const std::string& name,
                            const std::string& help) {
  return prometheus::BuildGauge()
      .Name("warpline_gateway_" + name)
      .Help(help)
      .Register(registry)
      .Add({});
}

prometheus::Histogram& AddSeconds(prometheus::Registry& registry, const std::string& name,
                                  const std::string& help,
                                  const prometheus::Histogram::BucketBoundaries& bounds) {
  return prometheus::BuildHistogram()
      .Name("warpline_gateway_" + name)
      .Help(help)
      .Register(registry)
      .Add({}, bounds);
}

}  // namespace

GatewayMetrics::GatewayMetrics()
    : registry_(std::make_shared<prometheus::Registry>()),
      requests_(prometheus::BuildCounter()
                    .Name("warpline_gateway_http_requests_total")
                    .Help("HTTP answers by route and status")
                    .Register(*registry_)),
      dropped_log_lines_(AddGauge(*registry_, "dropped_log_lines",
                                  "Log lines lost because standard error was blocked")),
      connections(AddGauge(*registry_, "connections", "Open client connections")),
      refused_connections(AddCounter(*registry_, "refused_connections_total",
                                     "Connections beyond the most allowed")),
      accept_errors(AddCounter(*registry_, "accept_errors_total", "Failed accepts")),
      aborted_by_client(AddCounter(*registry_, "aborted_by_client_total",
                                   "Requests whose client left before the end")),
      slow_clients(AddCounter(*registry_, "slow_clients_total",
                              "Answers ended because the client did not read")),
      coordinator_up(
          AddGauge(*registry_, "coordinator_up", "1 when the coordinator answered the last call")),
      first_token_seconds(AddSeconds(
          *registry_, "time_to_first_token_seconds", "From the request to its first token",
          {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120})),
      inter_token_seconds(AddSeconds(
          *registry_, "inter_token_seconds", "Between two tokens of a choice",
          {0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 5})) {}

void GatewayMetrics::CountRequest(absl::string_view route, int http_status) {
  requests_.Add({{"route", std::string(route)}, {"status", absl::StrCat(http_status)}}).Increment();
}

std::string GatewayMetrics::Text() const {
  dropped_log_lines_.Set(static_cast<double>(DroppedLogLines()));
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

}  // namespace warpline
