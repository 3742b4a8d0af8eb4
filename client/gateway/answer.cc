#include "client/gateway/answer.h"

#include <boost/json/array.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "client/gateway/http_response.h"
#include "client/gateway/json_body.h"

namespace warpline {
namespace {

namespace json = boost::json;

template <typename Ids>
json::array IdArray(const Ids& ids) {
  json::array array;
  array.reserve(ids.size());
  for (const int32_t id : ids) array.emplace_back(id);
  return array;
}

}  // namespace

GenerateAnswer::GenerateAnswer(const GenerateJob& job, Identity identity)
    : chat_(job.chat),
      stream_(job.stream),
      include_usage_(job.include_usage),
      return_token_ids_(job.return_token_ids),
      identity_(std::move(identity)),
      choices_(job.requests.size()),
      created_(UnixSeconds()) {}

void GenerateAnswer::OnStarted(size_t index, const v1::Started& started) {
  choices_[index].seed = started.seed();
}

json::object GenerateAnswer::Head(const char* chat_object) const {
  json::object head;
  head["id"] = identity_.id;
  head["object"] = chat_ ? chat_object : "text_completion";
  head["created"] = created_;
  head["model"] = identity_.model;
  return head;
}

std::string GenerateAnswer::ChunkEvent(json::object choice) const {
  json::object chunk = Head("chat.completion.chunk");
  chunk["choices"] = json::array{std::move(choice)};
  if (include_usage_) chunk["usage"] = nullptr;
  return Event(ToJson(chunk));
}

json::object GenerateAnswer::ChunkChoice(size_t index, const std::string& text) const {
  json::object choice{{"index", index}};
  if (chat_) {
    choice["delta"] = json::object{{"content", text}};
  } else {
    choice["text"] = text;
  }
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = nullptr;
  return choice;
}

std::string GenerateAnswer::RoleEvent(size_t index) {
  if (!chat_ || std::exchange(choices_[index].begun, true)) return "";
  json::object choice = ChunkChoice(index, "");
  choice["delta"] = json::object{{"role", "assistant"}, {"content", ""}};
  return ChunkEvent(std::move(choice));
}

std::string GenerateAnswer::OnDelta(size_t index, const v1::Delta& delta) {
  Choice& choice = choices_[index];
  if (!stream_) {
    choice.text += delta.text();
    if (return_token_ids_) {
      choice.token_ids.insert(choice.token_ids.end(), delta.token_ids().begin(),
                              delta.token_ids().end());
    }
    return "";
  }
  if (delta.text().empty() && !return_token_ids_) return RoleEvent(index);
  json::object chunk = ChunkChoice(index, delta.text());
  if (return_token_ids_) chunk["token_ids"] = IdArray(delta.token_ids());
  std::string events = RoleEvent(index);
  events += ChunkEvent(std::move(chunk));
  return events;
}

std::string GenerateAnswer::OnFinished(size_t index, const v1::Finished& finished) {
  Choice& choice = choices_[index];
  choice.finish_reason = finished.reason() == v1::FINISH_REASON_LENGTH ? "length" : "stop";
  choice.usage = finished.usage();
  ++finished_count_;
  if (!stream_) {
    choice.text += finished.text();
    return "";
  }
  std::string events = RoleEvent(index);
  json::object chunk = ChunkChoice(index, finished.text());
  if (chat_ && finished.text().empty()) chunk["delta"] = json::object();
  chunk["finish_reason"] = choice.finish_reason;
  chunk["seed"] = choice.seed;
  if (return_token_ids_) chunk["token_ids"] = json::array();
  events += ChunkEvent(std::move(chunk));
  return events;
}

json::object GenerateAnswer::UsageJson() const {
  uint64_t prompt = 0;
  uint64_t completion = 0;
  uint64_t cached = 0;
  for (const Choice& choice : choices_) {
    prompt += choice.usage.prompt_tokens();
    completion += choice.usage.completion_tokens();
    cached += choice.usage.cached_tokens();
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", json::object{{"cached_tokens", cached}}}};
}

std::string GenerateAnswer::StreamEnd() const {
  std::string events;
  if (include_usage_) {
    json::object chunk = Head("chat.completion.chunk");
    chunk["choices"] = json::array();
    chunk["usage"] = UsageJson();
    events = Event(ToJson(chunk));
  }
  absl::StrAppend(&events, kDoneEvent);
  return events;
}

std::string GenerateAnswer::Body() const {
  json::object answer = Head("chat.completion");
  json::array choices;
  for (size_t index = 0; index < choices_.size(); ++index) {
    const Choice& choice = choices_[index];
    json::object item{{"index", index}};
    if (chat_) {
      item["message"] = json::object{{"role", "assistant"}, {"content", choice.text}};
    } else {
      item["text"] = choice.text;
    }
    item["logprobs"] = nullptr;
    item["finish_reason"] = choice.finish_reason;
    item["seed"] = choice.seed;
    if (return_token_ids_) item["token_ids"] = IdArray(choice.token_ids);
    choices.push_back(std::move(item));
  }
  answer["choices"] = std::move(choices);
  answer["usage"] = UsageJson();
  return ToJson(answer);
}

}  // namespace warpline
