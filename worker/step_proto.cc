#include "worker/step_proto.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "proto/stage_protocol.h"

namespace warpline {
namespace {

template <typename Value, typename Expected>
absl::Status BadField(absl::string_view field, const Value& value, const Expected& expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("edge message: ", field, " is ", value, ", expected ", expected));
}

std::string KeyText(const SequenceKey& key) {
  return absl::StrCat(key.sequence_id, " generation ", key.generation);
}

absl::Status CheckFinite(absl::string_view field, float value) {
  return std::isfinite(value) ? absl::OkStatus() : BadField(field, value, "a finite number");
}

absl::StatusOr<SamplingParams> SamplingFromProto(const v1::Sampling& message, int n_vocab) {
  WL_RETURN_IF_ERROR(CheckFinite("sampling.temperature", message.temperature()));
  WL_RETURN_IF_ERROR(CheckFinite("sampling.top_p", message.top_p()));
  WL_RETURN_IF_ERROR(CheckFinite("sampling.min_p", message.min_p()));
  WL_RETURN_IF_ERROR(CheckFinite("sampling.repetition_penalty", message.repetition_penalty()));
  WL_RETURN_IF_ERROR(CheckFinite("sampling.presence_penalty", message.presence_penalty()));
  WL_RETURN_IF_ERROR(CheckFinite("sampling.frequency_penalty", message.frequency_penalty()));
  if (message.bias_ids_size() != message.bias_values_size() || message.bias_ids_size() > n_vocab) {
    return BadField("number of sampling.bias_values", message.bias_values_size(),
                    absl::StrCat(message.bias_ids_size(), " and at most ", n_vocab));
  }
  SamplingParams params{.temperature = message.temperature(),
                        .top_k = message.top_k(),
                        .top_p = message.top_p(),
                        .min_p = message.min_p(),
                        .repetition_penalty = message.repetition_penalty(),
                        .presence_penalty = message.presence_penalty(),
                        .frequency_penalty = message.frequency_penalty(),
                        .penalty_window = message.penalty_window(),
                        .seed = message.seed()};
  for (int index = 0; index < message.bias_ids_size(); ++index) {
    const int32_t id = message.bias_ids(index);
    if (id < 0 || id >= n_vocab) {
      return BadField("sampling.bias_ids", id, absl::StrCat("0 to ", n_vocab - 1));
    }
    const float value = message.bias_values(index);
    if (std::isnan(value) || value == HUGE_VALF) {
      return BadField("sampling.bias_values", value, "a number below infinity");
    }
    params.logit_bias.emplace_back(id, value);
  }
  return params;
}

}  // namespace

absl::StatusOr<OpenSequence> EdgeReader::Open(const v1::OpenMessage& message) {
  OpenSequence open{.key = {message.sequence_id(), message.generation()},
                    .kv_slot = static_cast<int>(message.kv_slot()),
                    .logits_from = message.logits_from()};
  if (message.kv_slot() >= static_cast<uint32_t>(limits_.slot_count)) {
    return BadField("open.kv_slot", message.kv_slot(),
                    absl::StrCat("less than ", limits_.slot_count));
  }
  if (sequences_.contains(open.key)) {
    return BadField("open.sequence_id", KeyText(open.key), "one that is not open");
  }
  if (const auto used = slots_.find(open.kv_slot); used != slots_.end()) {
    return BadField("open.kv_slot", open.kv_slot,
                    absl::StrCat("a free one: sequence ", KeyText(used->second), " has it"));
  }
  if (open.logits_from < -1) return BadField("open.logits_from", open.logits_from, "-1 or more");
  WL_ASSIGN_OR_RETURN(open.sampling, SamplingFromProto(message.sampling(), limits_.n_vocab));
  sequences_[open.key].kv_slot = open.kv_slot;
  slots_[open.kv_slot] = open.key;
  return open;
}

absl::StatusOr<CloseSequence> EdgeReader::Close(const v1::CloseMessage& message) {
  const CloseSequence close{.key = {message.sequence_id(), message.generation()},
                            .kv_slot = static_cast<int>(message.kv_slot())};
  const auto found = sequences_.find(close.key);
  if (found == sequences_.end()) {
    return BadField("close.sequence_id", KeyText(close.key), "an open one");
  }
  if (message.kv_slot() != static_cast<uint32_t>(found->second.kv_slot)) {
    return BadField("close.kv_slot", message.kv_slot(), found->second.kv_slot);
  }
  slots_.erase(found->second.kv_slot);
  sequences_.erase(found);
  return close;
}

absl::StatusOr<StepEntry> EdgeReader::TakeEntry(const v1::StepEntryMessage& message,
                                                const v1::StepMessage& step) {
  StepEntry entry{.key = {message.sequence_id(), message.generation()},
                  .kv_slot = static_cast<int>(message.kv_slot()),
                  .position = static_cast<int64_t>(message.position()),
                  .sample = message.sample()};
  const auto found = sequences_.find(entry.key);
  if (found == sequences_.end()) {
    return BadField("entry.sequence_id", KeyText(entry.key), "an open one");
  }
  Sequence& sequence = found->second;
  if (message.kv_slot() != static_cast<uint32_t>(sequence.kv_slot)) {
    return BadField("entry.kv_slot", message.kv_slot(), sequence.kv_slot);
  }
  if (sequence.last_step == step.step_id()) {
    return BadField("entry.sequence_id", KeyText(entry.key), "one that the step has only once");
  }
  if (message.position() != static_cast<uint64_t>(sequence.next_position)) {
    return BadField("entry.position", message.position(), sequence.next_position);
  }
  const int64_t row_count = message.token_ids_size();
  const bool decode = step.kind() == v1::STEP_MESSAGE_KIND_DECODE;
  if (row_count == 0 || (decode && row_count != 1)) {
    return BadField("number of entry.token_ids", row_count, decode ? "1" : "1 or more");
  }
  if (entry.position + row_count > limits_.max_context) {
    return BadField("entry.position", entry.position,
                    absl::StrCat("room for ", row_count, " rows below ", limits_.max_context));
  }
  const bool may_be_drawn = decode && limits_.draws && sequence.has_draw;
  for (const int32_t id : message.token_ids()) {
    if (id == kTokenDrawnBefore && may_be_drawn) continue;
    if (id < 0 || id >= limits_.n_vocab) {
      return BadField("entry.token_ids", id, absl::StrCat("0 to ", limits_.n_vocab - 1));
    }
  }
  for (const uint32_t page : message.new_pages()) {
    if (page >= limits_.page_count) {
      return BadField("entry.new_pages", page, absl::StrCat("less than ", limits_.page_count));
    }
  }
  const int64_t page_count = sequence.page_count + message.new_pages_size();
  if (page_count * kPageTokens < entry.position + row_count || page_count > limits_.page_count) {
    return BadField("number of pages of the sequence", page_count,
                    absl::StrCat("enough for ", entry.position + row_count,
                                 " positions and at most ", limits_.page_count));
  }
  entry.token_ids.assign(message.token_ids().begin(), message.token_ids().end());
  entry.new_pages.assign(message.new_pages().begin(), message.new_pages().end());
  sequence.next_position += row_count;
  sequence.page_count = page_count;
  sequence.last_step = step.step_id();
  sequence.has_draw = entry.sample;
  return entry;
}

absl::Status EdgeReader::CheckPayload(const v1::StepMessage& message, int row_count) const {
  const int64_t expected =
      limits_.payload == Payload::kBytes ? int64_t{row_count} * limits_.width * 4 : 0;
  if (static_cast<int64_t>(message.activations().size()) != expected) {
    return BadField("number of bytes of step.activations", message.activations().size(),
                    absl::StrCat(expected, " for ", row_count, " rows of width ", limits_.width));
  }
  if (limits_.payload != Payload::kNone &&
      message.edge_slot() >= static_cast<uint32_t>(limits_.edge_slot_count)) {
    return BadField("step.edge_slot", message.edge_slot(),
                    absl::StrCat("less than ", limits_.edge_slot_count));
  }
  return absl::OkStatus();
}

absl::StatusOr<IncomingStep> EdgeReader::TakeStep(v1::StepMessage& message) {
  if (message.epoch() != limits_.epoch) {
    return BadField("step.epoch", message.epoch(), limits_.epoch);
  }
  if (last_step_id_.has_value() && message.step_id() <= *last_step_id_) {
    return BadField("step.step_id", message.step_id(), absl::StrCat("more than ", *last_step_id_));
  }
  if (!v1::StepMessageKind_IsValid(message.kind())) {
    return BadField("step.kind", static_cast<int>(message.kind()), "PROMPT or DECODE");
  }
  int64_t row_count = 0;
  for (const v1::StepEntryMessage& entry : message.entries()) row_count += entry.token_ids_size();
  if (row_count == 0 || row_count > limits_.max_chunk_rows) {
    return BadField("number of rows of the step", row_count,
                    absl::StrCat("1 to ", limits_.max_chunk_rows));
  }
  WL_RETURN_IF_ERROR(CheckPayload(message, static_cast<int>(row_count)));
  IncomingStep incoming;
  incoming.step.epoch = message.epoch();
  incoming.step.step_id = message.step_id();
  incoming.step.kind =
      message.kind() == v1::STEP_MESSAGE_KIND_DECODE ? StepKind::kDecode : StepKind::kPrompt;
  incoming.step.entries.reserve(message.entries_size());
  for (const v1::StepEntryMessage& entry : message.entries()) {
    WL_ASSIGN_OR_RETURN(StepEntry taken, TakeEntry(entry, message));
    incoming.step.entries.push_back(std::move(taken));
  }
  last_step_id_ = message.step_id();
  incoming.edge_slot = static_cast<int>(message.edge_slot());
  incoming.payload = std::move(*message.mutable_activations());
  return incoming;
}

absl::Span<const float> RowsOf(const std::string& payload) {
  // A string of four bytes or more lies on at least an eight byte border, wherever it keeps them.
  return {reinterpret_cast<const float*>(payload.data()), payload.size() / sizeof(float)};
}

v1::EdgeMessage ToProto(const OpenSequence& open) {
  v1::EdgeMessage message;
  v1::OpenMessage& out = *message.mutable_open();
  out.set_sequence_id(open.key.sequence_id);
  out.set_generation(open.key.generation);
  out.set_kv_slot(static_cast<uint32_t>(open.kv_slot));
  out.set_logits_from(open.logits_from);
  v1::Sampling& sampling = *out.mutable_sampling();
  sampling.set_temperature(open.sampling.temperature);
  sampling.set_top_k(open.sampling.top_k);
  sampling.set_top_p(open.sampling.top_p);
  sampling.set_min_p(open.sampling.min_p);
  sampling.set_repetition_penalty(open.sampling.repetition_penalty);
  sampling.set_presence_penalty(open.sampling.presence_penalty);
  sampling.set_frequency_penalty(open.sampling.frequency_penalty);
  sampling.set_penalty_window(open.sampling.penalty_window);
  sampling.set_seed(open.sampling.seed);
  for (const auto& [id, value] : open.sampling.logit_bias) {
    sampling.add_bias_ids(id);
    sampling.add_bias_values(value);
  }
  return message;
}

v1::EdgeMessage ToProto(const CloseSequence& close) {
  v1::EdgeMessage message;
  v1::CloseMessage& out = *message.mutable_close();
  out.set_sequence_id(close.key.sequence_id);
  out.set_generation(close.key.generation);
  out.set_kv_slot(static_cast<uint32_t>(close.kv_slot));
  return message;
}

v1::EdgeMessage ToProto(const Step& step, int edge_slot) {
  v1::EdgeMessage message;
  v1::StepMessage& out = *message.mutable_step();
  out.set_epoch(step.epoch);
  out.set_step_id(step.step_id);
  out.set_kind(step.kind == StepKind::kDecode ? v1::STEP_MESSAGE_KIND_DECODE
                                              : v1::STEP_MESSAGE_KIND_PROMPT);
  out.set_edge_slot(static_cast<uint32_t>(edge_slot));
  for (const StepEntry& entry : step.entries) {
    v1::StepEntryMessage& one = *out.add_entries();
    one.set_sequence_id(entry.key.sequence_id);
    one.set_generation(entry.key.generation);
    one.set_kv_slot(static_cast<uint32_t>(entry.kv_slot));
    one.set_position(static_cast<uint64_t>(entry.position));
    one.mutable_token_ids()->Assign(entry.token_ids.begin(), entry.token_ids.end());
    one.mutable_new_pages()->Assign(entry.new_pages.begin(), entry.new_pages.end());
    one.set_sample(entry.sample);
  }
  return message;
}

}  // namespace warpline
