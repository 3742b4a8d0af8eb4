#include "client/gateway/status_json.h"

#include <boost/json/array.hpp>
#include <cmath>

#include "client/gateway/hide_addresses.h"

namespace warpline {
namespace {

namespace json = boost::json;

json::value Finite(double number) {
  return std::isfinite(number) ? json::value(number) : json::value(nullptr);
}

json::object StageJson(const v1::StageStatus& stage) {
  return {
      {"stage", stage.stage()},
      {"pid", stage.has_pid() ? json::value(stage.pid()) : json::value(nullptr)},
      {"layers", json::array{stage.layer_begin(), stage.layer_end()}},
      {"state", stage.state()},
      {"loaded", Finite(stage.loaded())},
      {"device", stage.device()},
      {"restarts", stage.restarts()},
      {"heartbeat_age_seconds", Finite(stage.heartbeat_age_seconds())},
      {"weight_bytes", stage.weight_bytes()},
      {"cache_bytes", stage.cache_bytes()},
      {"edge", stage.edge()},
      {"reason", HideAddresses(stage.reason())},
  };
}

}  // namespace

json::object StatusJson(const v1::StatusResponse& status, const std::string& model_name) {
  json::array stages;
  for (const v1::StageStatus& stage : status.stages()) stages.push_back(StageJson(stage));
  const v1::ModelInfo& model = status.model();
  return {
      {"ready", status.ready()},
      {"reason", HideAddresses(status.reason())},
      {"draining", status.draining()},
      {"version", status.version()},
      {"coordinator", json::object{{"pid", status.coordinator_pid()}}},
      {"model", json::object{{"id", model_name},
                             {"name", model.name()},
                             {"architecture", model.architecture()},
                             {"fingerprint", model.fingerprint()},
                             {"layers", model.layer_count()},
                             {"vocab_size", model.vocab_size()},
                             {"file_bytes", model.file_bytes()},
                             {"training_context", model.training_context()},
                             {"has_chat_template", model.has_chat_template()}}},
      {"stages", std::move(stages)},
      {"running", status.running()},
      {"queued", status.queued()},
      {"slots", status.slots()},
      {"pages_used", status.pages_used()},
      {"pages_total", status.pages_total()},
      {"context_length", status.context_length()},
  };
}

json::object ModelJson(const v1::StatusResponse& status, const std::string& model_name) {
  const v1::ModelInfo& model = status.model();
  return {
      {"id", model_name},
      {"object", "model"},
      {"created", 0},
      {"owned_by", "warpline"},
      {"max_model_len", status.context_length()},
      {"meta", json::object{{"architecture", model.architecture()},
                            {"n_vocab", model.vocab_size()},
                            {"n_ctx_train", model.training_context()},
                            {"size", model.file_bytes()}}},
  };
}

std::string NotReadyMessage(const v1::StatusResponse& status) {
  return status.reason().empty() ? "the service is not ready" : HideAddresses(status.reason());
}

}  // namespace warpline
