#include "client/gateway/api.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/error_detail.h"
#include "base/log.h"
#include "client/gateway/chat_handler.h"
#include "client/gateway/generate_request.h"
#include "client/gateway/json_body.h"
#include "client/gateway/status_json.h"
#include "client/gateway/text_requests.h"

namespace warpline {
namespace {

namespace json = boost::json;

// Of the values of a body, a small one included: four times the longest body.
size_t JsonMemory(const GatewayConfig& config) { return 4 * config.max_body_bytes; }

HttpResponse ParseErrorResponse(const absl::Status& status) {
  if (absl::IsResourceExhausted(status)) {
    return ErrorResponse(413, status.message(), DetailOf(status).code);
  }
  return ErrorResponse(status);
}

}  // namespace

Api::Api(const GatewayConfig& config, InferenceClient& client, GatewayMetrics& metrics)
    : config_(config),
      client_(client),
      metrics_(metrics),
      keys_(config.api_keys),
      ids_(std::random_device()()) {
  if (!config.cors_origin.empty()) {
    common_fields_.emplace_back("Access-Control-Allow-Origin", config.cors_origin);
    if (config.cors_origin != "*") common_fields_.emplace_back("Vary", "Origin");
  }
}

void Api::Handle(const RouteInfo& route, absl::string_view target, std::string body,
                 std::shared_ptr<Session> session) {
  Reply reply = [session](const HttpResponse& response) { session->Reply(response); };
  switch (route.route) {
    case Route::kChatCompletions:
    case Route::kCompletions:
      return Generate(route.route, body, std::move(session));
    case Route::kTokenize:
      return Tokenize(body, std::move(reply));
    case Route::kDetokenize:
      return Detokenize(body, std::move(reply));
    case Route::kModels:
      return Models("", std::move(reply));
    case Route::kModel:
      return Models(ModelInTarget(target), std::move(reply));
    case Route::kStatus:
      return Status(std::move(reply));
    case Route::kReady:
      return Ready(std::move(reply));
    case Route::kMetrics:
      return Metrics(std::move(reply));
    case Route::kHealth:
      return reply(JsonResponse("{\"status\":\"ok\"}"));
  }
}

void Api::Generate(Route route, const std::string& body, std::shared_ptr<Session> session) {
  const absl::StatusOr<json::object> parsed = ParseJsonObject(body, JsonMemory(config_));
  if (!parsed.ok()) return session->Reply(ParseErrorResponse(parsed.status()));
  const bool chat = route == Route::kChatCompletions;
  absl::StatusOr<GenerateJob> job =
      chat ? ParseChatRequest(*parsed) : ParseCompletionRequest(*parsed);
  if (!job.ok()) return session->Reply(ErrorResponse(job.status()));
  if (config_.strict_model && job->model.has_value() && *job->model != ModelName()) {
    return session->Reply(ErrorResponse(WithDetail(
        absl::NotFoundError(absl::StrCat("model: '", *job->model, "' is not served here")),
        {.code = "model_not_found", .param = "model"})));
  }
  const std::string id = NewId(chat ? "chatcmpl-" : "cmpl-");
  for (v1::GenerateRequest& request : job->requests) request.set_request_id(id);
  StartGenerate(std::move(*job), {.id = id, .model = ModelName()}, client_, metrics_,
                config_.request_timeout, std::move(session));
}

void Api::Tokenize(const std::string& body, Reply reply) {
  const absl::StatusOr<json::object> parsed = ParseJsonObject(body, JsonMemory(config_));
  if (!parsed.ok()) return reply(ParseErrorResponse(parsed.status()));
  absl::StatusOr<TokenizeJob> job = ParseTokenizeRequest(*parsed);
  if (!job.ok()) return reply(ErrorResponse(job.status()));
  client_.Tokenize(std::move(job->request),
                   [reply = std::move(reply),
                    with_pieces = job->with_pieces](absl::StatusOr<v1::TokenizeResponse> answer) {
                     if (!answer.ok()) return reply(ErrorResponse(answer.status()));
                     reply(JsonResponse(TokenizeBody(*answer, with_pieces)));
                   });
}

void Api::Detokenize(const std::string& body, Reply reply) {
  const absl::StatusOr<json::object> parsed = ParseJsonObject(body, JsonMemory(config_));
  if (!parsed.ok()) return reply(ParseErrorResponse(parsed.status()));
  absl::StatusOr<v1::DetokenizeRequest> request = ParseDetokenizeRequest(*parsed);
  if (!request.ok()) return reply(ErrorResponse(request.status()));
  client_.Detokenize(std::move(*request),
                     [reply = std::move(reply)](absl::StatusOr<v1::DetokenizeResponse> answer) {
                       if (!answer.ok()) return reply(ErrorResponse(answer.status()));
                       reply(JsonResponse(DetokenizeBody(*answer)));
                     });
}

void Api::AskStatus(UnaryCallback<v1::StatusResponse> done) {
  client_.Status([this, done = std::move(done)](absl::StatusOr<v1::StatusResponse> answer) {
    metrics_.coordinator_up.Set(answer.ok() ? 1 : 0);
    if (answer.ok() && !answer->model().name().empty()) model_name_ = answer->model().name();
    done(std::move(answer));
  });
}

void Api::AskReady(std::function<void(bool ready)> done) {
  AskStatus([done = std::move(done)](const absl::StatusOr<v1::StatusResponse>& answer) {
    done(answer.ok() && answer->ready());
  });
}

void Api::Models(std::string only, Reply reply) {
  AskStatus([this, only = std::move(only),
             reply = std::move(reply)](const absl::StatusOr<v1::StatusResponse>& answer) {
    if (!answer.ok()) return reply(ErrorResponse(answer.status()));
    const json::object model = ModelJson(*answer, ModelName());
    if (only.empty()) {
      return reply(
          JsonResponse(ToJson(json::object{{"object", "list"}, {"data", json::array{model}}})));
    }
    if (only == ModelName()) return reply(JsonResponse(ToJson(model)));
    reply(ErrorResponse(404, "there is no such model", "model_not_found", "model"));
  });
}

void Api::Status(Reply reply) {
  AskStatus([this, reply = std::move(reply)](const absl::StatusOr<v1::StatusResponse>& answer) {
    if (!answer.ok()) return reply(ErrorResponse(answer.status()));
    reply(JsonResponse(ToJson(StatusJson(*answer, ModelName()))));
  });
}

void Api::Ready(Reply reply) {
  AskStatus([reply = std::move(reply)](const absl::StatusOr<v1::StatusResponse>& answer) {
    if (!answer.ok()) return reply(ErrorResponse(503, answer.status().message(), "not_ready"));
    if (answer->ready()) return reply(JsonResponse("{\"status\":\"ready\"}"));
    reply(ErrorResponse(503, NotReadyMessage(*answer), "not_ready"));
  });
}

void Api::Metrics(Reply reply) {
  client_.Metrics([this, reply = std::move(reply)](absl::StatusOr<v1::MetricsResponse> answer) {
    metrics_.coordinator_up.Set(answer.ok() ? 1 : 0);
    HttpResponse response{.content_type = "text/plain; version=0.0.4; charset=utf-8"};
    if (answer.ok()) response.body = answer->text();
    if (!response.body.empty() && response.body.back() != '\n') response.body.push_back('\n');
    absl::StrAppend(&response.body, metrics_.Text());
    reply(response);
  });
}

std::string Api::ModelName() const {
  if (!config_.alias.empty()) return config_.alias;
  return model_name_.empty() ? "default" : model_name_;
}

std::string Api::NewId(absl::string_view prefix) {
  return absl::StrFormat("%s%016x%08x", prefix, ids_(), static_cast<uint32_t>(ids_()));
}

}  // namespace warpline
