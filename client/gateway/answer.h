// The answer to a generation, put together from the coordinator's events: one JSON document, or
// the events of a stream.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "client/gateway/generate_request.h"
#include "proto/inference.pb.h"

namespace warpline {

class GenerateAnswer {
 public:
  struct Identity {
    std::string id;  // "chatcmpl-..." or "cmpl-..."
    std::string model;
  };
  // Copies from `job` what it needs.
  GenerateAnswer(const GenerateJob& job, Identity identity);

  // Events of choice `index`. OnDelta and OnFinished return server-sent events to send now, empty
  // when there is nothing to tell or the answer is no stream.
  void OnStarted(size_t index, const v1::Started& started);
  std::string OnDelta(size_t index, const v1::Delta& delta);
  std::string OnFinished(size_t index, const v1::Finished& finished);

  // Every choice has finished.
  bool complete() const { return finished_count_ == choices_.size(); }
  // The rest of a complete stream: usage when it was asked for, then [DONE].
  std::string StreamEnd() const;
  // The complete answer as one JSON document.
  std::string Body() const;

 private:
  struct Choice {
    bool begun = false;  // the role was sent
    std::string text;
    std::vector<int32_t> token_ids;
    const char* finish_reason = nullptr;
    uint64_t seed = 0;
    v1::Usage usage;
  };

  boost::json::object Head(const char* chat_object) const;
  std::string ChunkEvent(boost::json::object choice) const;
  // A choice of a chunk: index, text or delta, finish_reason.
  boost::json::object ChunkChoice(size_t index, const std::string& text) const;
  std::string RoleEvent(size_t index);
  boost::json::object UsageJson() const;

  const bool chat_;
  const bool stream_;
  const bool include_usage_;
  const bool return_token_ids_;
  const Identity identity_;
  std::vector<Choice> choices_;
  size_t finished_count_ = 0;
  int64_t created_ = 0;
};

}  // namespace warpline
