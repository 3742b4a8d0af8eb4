// What the gateway answers: the checks of a request's header, and the handlers of its routes.
#pragma once

#include <boost/beast/http/fields.hpp>
#include <boost/beast/http/message.hpp>
#include <memory>
#include <optional>
#include <random>
#include <string>

#include "client/gateway/api_key.h"
#include "client/gateway/config.h"
#include "client/gateway/gateway_metrics.h"
#include "client/gateway/http_response.h"
#include "client/gateway/inference_client.h"
#include "client/gateway/routes.h"
#include "client/gateway/session.h"

namespace warpline {

struct HeadVerdict {
  const RouteInfo* route = nullptr;     // null: no such route, and then there is a refusal
  std::optional<HttpResponse> refusal;  // or the whole answer, where no body matters
  bool expects_continue = false;
};

// Used on the gateway's executor. Outlives its sessions.
class Api {
 public:
  using RequestHeader = boost::beast::http::request_header<boost::beast::http::fields>;

  Api(const GatewayConfig& config, InferenceClient& client, GatewayMetrics& metrics);

  // All that can be said before the body is read.
  HeadVerdict CheckHead(const RequestHeader& head, bool draining) const;
  // Answers through the session, at once or later.
  void Handle(const RouteInfo& route, absl::string_view target, std::string body,
              std::shared_ptr<Session> session);
  // Asks the coordinator whether it takes requests, as /ready does, and learns the model's name,
  // which answers carry.
  void AskReady(std::function<void(bool ready)> done);

  const GatewayConfig& config() const { return config_; }
  GatewayMetrics& metrics() { return metrics_; }
  // In every answer.
  const HeaderFields& common_fields() const { return common_fields_; }

 private:
  using Reply = std::function<void(const HttpResponse&)>;

  std::optional<HttpResponse> CheckAccess(const RequestHeader& head, const RouteInfo& route) const;
  std::optional<HttpResponse> CheckContent(const RequestHeader& head) const;
  HttpResponse OptionsResponse(const RouteInfo& route) const;

  void Generate(Route route, const std::string& body, std::shared_ptr<Session> session);
  void Tokenize(const std::string& body, Reply reply);
  void Detokenize(const std::string& body, Reply reply);
  void Models(std::string only, Reply reply);
  void Status(Reply reply);
  void Ready(Reply reply);
  void Metrics(Reply reply);

  // Status of the coordinator; remembers the model's name and whether there was an answer.
  void AskStatus(UnaryCallback<v1::StatusResponse> done);
  std::string ModelName() const;
  std::string NewId(absl::string_view prefix);

  const GatewayConfig& config_;
  InferenceClient& client_;
  GatewayMetrics& metrics_;
  const ApiKeys keys_;
  HeaderFields common_fields_;
  std::string model_name_;  // as the coordinator says
  std::mt19937_64 ids_;
};

}  // namespace warpline
