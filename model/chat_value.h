// Values of the chat template language, with Python's meaning. Text carries trust byte by byte:
// literals of the template are trusted, everything from a request is not, and every operation keeps
// each byte's own trust.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/variant.h"
#include "model/trusted_text.h"

namespace warpline::chat {

// UTF-8 text. `trust` has one byte (0 or 1) for each byte of `bytes`.
struct Text {
  std::string bytes;
  std::string trust;

  static Text Trusted(absl::string_view bytes) {
    return {std::string(bytes), std::string(bytes.size(), 1)};
  }
  static Text Untrusted(absl::string_view bytes) {
    return {std::string(bytes), std::string(bytes.size(), 0)};
  }
  size_t size() const { return bytes.size(); }
  bool empty() const { return bytes.empty(); }
  Text Slice(size_t begin, size_t end) const {
    return {bytes.substr(begin, end - begin), trust.substr(begin, end - begin)};
  }
  void Append(const Text& other) {
    bytes += other.bytes;
    trust += other.trust;
  }
};

TrustedText ToTrustedText(const Text& text);

class Value;
using List = std::vector<Value>;
using Dict = std::vector<std::pair<Value, Value>>;  // in order of insertion

struct Undefined {
  std::string name;  // for the message when it is used
};
struct None {};

// A list or dictionary, immutable. `depth` counts nested containers, `weight` what walking through
// all of it costs, a part that occurs twice counted twice. Both are bounded, so that recursion over
// values is.
struct ListObject {
  List items;
  int depth = 1;
  int64_t weight = 1;
  bool is_tuple = false;
};
struct DictObject {
  Dict items;
  int depth = 1;
  int64_t weight = 1;
};

// namespace(): the only thing a template can change.
struct NamespaceObject {
  std::vector<std::pair<std::string, Value>> members;
};

struct MacroObject;  // of the interpreter
struct LoopObject;

// A function known by name: `range`, or a method with its receiver.
struct BuiltIn {
  std::string name;
  std::shared_ptr<Value> self;  // null for global functions
};

class Value {
 public:
  using Data =
      absl::variant<Undefined, None, bool, int64_t, double, Text, std::shared_ptr<const ListObject>,
                    std::shared_ptr<const DictObject>, std::shared_ptr<NamespaceObject>,
                    std::shared_ptr<const MacroObject>, std::shared_ptr<LoopObject>, BuiltIn>;

  Value() : data_(Undefined{}) {}
  template <typename T>
  Value(T data)
      : data_(std::move(data)) {
  }  // NOLINT: values are made from what they hold all over the interpreter.

  template <typename T>
  const T* If() const {
    return absl::get_if<T>(&data_);
  }
  template <typename T>
  bool Is() const {
    return If<T>() != nullptr;
  }
  const ListObject* list() const { return Pointer<const ListObject>(); }
  const DictObject* dict() const { return Pointer<const DictObject>(); }
  const Text* text() const { return If<Text>(); }
  bool is_number() const { return Is<int64_t>() || Is<double>() || Is<bool>(); }
  // Of a number (bool counts as 0 or 1).
  double AsDouble() const;
  // Nested containers in it.
  int depth() const;
  // Its parts: each number, name and container, and each 16 bytes of text; at most 2^40.
  int64_t weight() const;

 private:
  template <typename T>
  T* Pointer() const {
    const auto* const pointer = If<std::shared_ptr<T>>();
    return pointer == nullptr ? nullptr : pointer->get();
  }

  Data data_;
};

Value MakeList(List items, bool is_tuple = false);
Value MakeDict(Dict items);

bool IsTrue(const Value& value);
bool Equal(const Value& a, const Value& b);
// -1, 0, 1; false when the two cannot be ordered.
bool Compare(const Value& a, const Value& b, int& order);
// Null when there is no such key.
const Value* Find(const DictObject& dict, const Value& key);
const Value* Find(const DictObject& dict, absl::string_view key);
// "a str", "an int", as error messages name it.
std::string TypeName(const Value& value);

// Python's str().
Text ToText(const Value& value);
// Python's repr(), as elements of a printed list show.
Text Repr(const Value& value);

// Starts of the characters of UTF-8 text, and its size at the end: n + 1 entries for n characters.
std::vector<size_t> CharacterStarts(absl::string_view text);

}  // namespace warpline::chat
