// For tests/chat_template_jinja_test.py: reads lines of JSON {template, messages, tools, kwargs,
// add_generation_prompt, bos_token, eos_token, unix_seconds}, writes lines {text} or {error}.
#include <boost/json.hpp>
#include <iostream>
#include <string>

#include "model/chat_template.h"

namespace {

std::string JsonField(const boost::json::object& object, const char* name) {
  const boost::json::value* const value = object.if_contains(name);
  return value == nullptr || value->is_null() ? std::string() : boost::json::serialize(*value);
}

std::string StringField(const boost::json::object& object, const char* name) {
  return std::string(object.at(name).as_string());
}

boost::json::object Answer(const boost::json::object& request) {
  const auto parsed = warpline::ChatTemplate::Parse(StringField(request, "template"));
  if (!parsed.ok()) return {{"error", std::string(parsed.status().message())}};
  warpline::ChatInput input;
  input.messages_json = JsonField(request, "messages");
  input.tools_json = JsonField(request, "tools");
  input.kwargs_json = JsonField(request, "kwargs");
  input.add_generation_prompt = request.at("add_generation_prompt").as_bool();
  input.bos_token = StringField(request, "bos_token");
  input.eos_token = StringField(request, "eos_token");
  input.unix_seconds = request.at("unix_seconds").as_int64();
  const auto text = (*parsed)->Render(input);
  if (!text.ok()) return {{"error", std::string(text.status().message())}};
  return {{"text", text->text}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    std::cout << boost::json::serialize(Answer(boost::json::parse(line).as_object())) << std::endl;
  }
}
