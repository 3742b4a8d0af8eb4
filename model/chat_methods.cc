// Methods of strings, dicts and lists of the template language.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "model/chat_interpreter.h"
#include "model/chat_lexer.h"

namespace warpline::chat {
namespace {

constexpr char kSpace[] = " \t\n\r\v\f";

absl::StatusOr<Text> TextArgument(const Arguments& arguments, size_t index,
                                  absl::string_view name) {
  const Value* const value = arguments.Get(index, name);
  if (value == nullptr || value->text() == nullptr) {
    return LineError(arguments.line, absl::StrCat("argument '", name, "' must be a str"));
  }
  return *value->text();
}

absl::StatusOr<int64_t> IntegerArgument(const Arguments& arguments, size_t index,
                                        absl::string_view name, int64_t otherwise) {
  const Value* const value = arguments.Get(index, name);
  if (value == nullptr || value->Is<None>()) return otherwise;
  const int64_t* const number = value->If<int64_t>();
  if (number == nullptr)
    return LineError(arguments.line, absl::StrCat("argument '", name, "' must be an int"));
  return *number;
}

// str.split and str.rsplit.
absl::StatusOr<Value> Split(const Text& text, const Arguments& arguments, bool from_right) {
  const Value* const separator = arguments.Get(0, "sep");
  WL_ASSIGN_OR_RETURN(int64_t most, IntegerArgument(arguments, 1, "maxsplit", -1));
  if (most < 0) most = INT64_MAX - 1;
  std::vector<std::pair<size_t, size_t>> parts;
  if (separator == nullptr || separator->Is<None>()) {
    size_t at = 0;
    while ((at = text.bytes.find_first_not_of(kSpace, at)) != std::string::npos) {
      const size_t end = std::min(text.bytes.find_first_of(kSpace, at), text.size());
      parts.emplace_back(at, end);
      at = end;
    }
    if (from_right && static_cast<int64_t>(parts.size()) > most + 1) {
      const size_t joined = parts.size() - static_cast<size_t>(most) - 1;
      parts[joined].first = 0;  // The rest keeps its white space.
      parts.erase(parts.begin(), parts.begin() + joined);
    } else if (static_cast<int64_t>(parts.size()) > most + 1) {
      parts[static_cast<size_t>(most)].second = text.size();
      parts.resize(static_cast<size_t>(most) + 1);
    }
  } else {
    if (separator->text() == nullptr || separator->text()->empty()) {
      return LineError(arguments.line, "split() needs a separator that is not empty");
    }
    const std::string& bytes = separator->text()->bytes;
    size_t begin = 0;
    for (size_t at = text.bytes.find(bytes); at != std::string::npos;
         at = text.bytes.find(bytes, begin)) {
      parts.emplace_back(begin, at);
      begin = at + bytes.size();
    }
    parts.emplace_back(begin, text.size());
    if (static_cast<int64_t>(parts.size()) > most + 1) {
      const auto kept = static_cast<size_t>(most);
      if (from_right) {
        parts[parts.size() - kept - 1].first = 0;
        parts.erase(parts.begin(), parts.end() - static_cast<int64_t>(kept) - 1);
      } else {
        parts[kept].second = text.size();
        parts.resize(kept + 1);
      }
    }
  }
  List items;
  for (const auto& [begin, end] : parts) items.emplace_back(text.Slice(begin, end));
  return MakeList(std::move(items));
}

// startswith and endswith take a str or a tuple of them.
absl::StatusOr<Value> HasAffix(const Text& text, const Arguments& arguments, bool at_start) {
  const Value* const affix = arguments.Get(0, "prefix");
  const List one = affix != nullptr && affix->text() != nullptr ? List{*affix} : List{};
  const List& affixes = affix != nullptr && affix->list() != nullptr ? affix->list()->items : one;
  if (affixes.empty() && (affix == nullptr || affix->list() == nullptr)) {
    return LineError(arguments.line, "startswith() and endswith() take a str or a tuple");
  }
  return Value(std::any_of(affixes.begin(), affixes.end(), [&text, at_start](const Value& value) {
    if (value.text() == nullptr) return false;
    const std::string& bytes = value.text()->bytes;
    return at_start ? absl::StartsWith(text.bytes, bytes) : absl::EndsWith(text.bytes, bytes);
  }));
}

// Index in characters of the first or last place of a text; -1 when there is none.
int64_t FindCharacters(const Text& text, const Text& wanted, bool last) {
  const size_t at = last ? text.bytes.rfind(wanted.bytes) : text.bytes.find(wanted.bytes);
  if (at == std::string::npos) return -1;
  return static_cast<int64_t>(CharacterStarts(absl::string_view(text.bytes).substr(0, at)).size()) -
         1;
}

Text MapBytes(Text text, char (*map)(unsigned char)) {
  for (char& byte : text.bytes) byte = map(static_cast<unsigned char>(byte));
  return text;
}

Text Title(Text text) {
  bool in_word = false;
  for (char& byte : text.bytes) {
    const auto unit = static_cast<unsigned char>(byte);
    byte = in_word ? absl::ascii_tolower(unit) : absl::ascii_toupper(unit);
    in_word = absl::ascii_isalpha(unit) || unit >= 0x80;
  }
  return text;
}

Text Capitalise(Text text) {
  text = MapBytes(std::move(text), absl::ascii_tolower);
  if (!text.empty()) text.bytes[0] = absl::ascii_toupper(static_cast<unsigned char>(text.bytes[0]));
  return text;
}

absl::StatusOr<Value> SplitLines(const Text& text) {
  List lines;
  size_t begin = 0;
  while (begin < text.size()) {
    const size_t end = std::min(text.bytes.find_first_of("\r\n", begin), text.size());
    lines.emplace_back(text.Slice(begin, end));
    begin = end + (text.bytes.compare(end, 2, "\r\n") == 0 ? 2 : 1);
  }
  return MakeList(std::move(lines));
}

absl::StatusOr<Value> JoinText(Interpreter& interpreter, const Text& separator,
                               const Arguments& arguments) {
  if (arguments.positional.empty()) return LineError(arguments.line, "join() takes an iterable");
  WL_ASSIGN_OR_RETURN(const List items,
                      interpreter.Elements(arguments.line, arguments.positional[0]));
  Text joined;
  for (const Value& item : items) {
    if (item.text() == nullptr) return LineError(arguments.line, "join() takes strings");
    if (&item != items.data()) joined.Append(separator);
    joined.Append(*item.text());
    WL_RETURN_IF_ERROR(
        interpreter.Charge(arguments.line, static_cast<int64_t>(item.text()->size()) / 16 + 1));
  }
  return Value(std::move(joined));
}

absl::StatusOr<Value> ReplaceMethod(Interpreter& interpreter, const Text& text,
                                    const Arguments& arguments) {
  WL_ASSIGN_OR_RETURN(const Text from, TextArgument(arguments, 0, "old"));
  WL_ASSIGN_OR_RETURN(const Text to, TextArgument(arguments, 1, "new"));
  WL_ASSIGN_OR_RETURN(const int64_t most, IntegerArgument(arguments, 2, "count", -1));
  WL_RETURN_IF_ERROR(interpreter.Charge(
      arguments.line,
      static_cast<int64_t>(text.size() + 1) * static_cast<int64_t>(to.size() + 1) / 16));
  return Value(Replace(text, from, to, most));
}

absl::StatusOr<Value> StripMethod(const Text& text, const std::string& name,
                                  const Arguments& arguments) {
  const Value* const given = arguments.Get(0, "chars");
  std::string bytes(kSpace);
  if (given != nullptr && !given->Is<None>()) {
    WL_ASSIGN_OR_RETURN(const Text chars, TextArgument(arguments, 0, "chars"));
    bytes = chars.bytes;
  }
  return Value(Strip(text, bytes, name != "rstrip", name != "lstrip"));
}

absl::StatusOr<Value> CountOrFind(const Text& text, const std::string& name,
                                  const Arguments& arguments) {
  WL_ASSIGN_OR_RETURN(const Text wanted, TextArgument(arguments, 0, "sub"));
  if (name == "count") {
    if (wanted.empty()) return Value(static_cast<int64_t>(CharacterStarts(text.bytes).size()));
    int64_t count = 0;
    for (size_t at = text.bytes.find(wanted.bytes); at != std::string::npos;
         at = text.bytes.find(wanted.bytes, at + wanted.size())) {
      ++count;
    }
    return Value(count);
  }
  const int64_t found = FindCharacters(text, wanted, name == "rfind");
  if (found < 0 && name == "index") return LineError(arguments.line, "substring not found");
  return Value(found);
}

bool AllBytes(const Text& text, bool (*holds)(unsigned char)) {
  return !text.empty() && std::all_of(text.bytes.begin(), text.bytes.end(), [holds](char byte) {
    return holds(static_cast<unsigned char>(byte));
  });
}

absl::StatusOr<Value> CallTextMethod(Interpreter& interpreter, const Text& text,
                                     const std::string& name, const Arguments& arguments) {
  WL_RETURN_IF_ERROR(interpreter.Charge(arguments.line, static_cast<int64_t>(text.size()) / 16));
  if (name == "split" || name == "rsplit") return Split(text, arguments, name == "rsplit");
  if (name == "strip" || name == "lstrip" || name == "rstrip")
    return StripMethod(text, name, arguments);
  if (name == "startswith" || name == "endswith")
    return HasAffix(text, arguments, name == "startswith");
  if (name == "replace") return ReplaceMethod(interpreter, text, arguments);
  if (name == "upper") return Value(MapBytes(text, absl::ascii_toupper));
  if (name == "lower") return Value(MapBytes(text, absl::ascii_tolower));
  if (name == "title") return Value(Title(text));
  if (name == "capitalize") return Value(Capitalise(text));
  if (name == "splitlines") return SplitLines(text);
  if (name == "join") return JoinText(interpreter, text, arguments);
  if (name == "isdigit") return Value(AllBytes(text, absl::ascii_isdigit));
  if (name == "isalpha") return Value(AllBytes(text, absl::ascii_isalpha));
  if (name == "isalnum") return Value(AllBytes(text, absl::ascii_isalnum));
  if (name == "isspace") return Value(AllBytes(text, absl::ascii_isspace));
  if (name == "isupper") return Value(AllBytes(text, absl::ascii_isupper));
  if (name == "islower") return Value(AllBytes(text, absl::ascii_islower));
  if (name == "removeprefix" || name == "removesuffix") {
    WL_ASSIGN_OR_RETURN(const Text affix, TextArgument(arguments, 0, "affix"));
    if (name == "removeprefix" && absl::StartsWith(text.bytes, affix.bytes))
      return Value(text.Slice(affix.size(), text.size()));
    if (name == "removesuffix" && absl::EndsWith(text.bytes, affix.bytes)) {
      return Value(text.Slice(0, text.size() - affix.size()));
    }
    return Value(text);
  }
  return CountOrFind(text, name, arguments);
}

absl::StatusOr<Value> CallDictMethod(const DictObject& dict, const std::string& name,
                                     const Arguments& arguments) {
  if (name == "get") {
    const Value* const key = arguments.Get(0, "key");
    if (key == nullptr) return LineError(arguments.line, "get() takes a key");
    if (const Value* const found = Find(dict, *key)) return *found;
    const Value* const otherwise = arguments.Get(1, "default");
    return otherwise != nullptr ? *otherwise : Value(None{});
  }
  List items;
  for (const auto& [key, value] : dict.items) {
    items.push_back(name == "keys" ? key : name == "values" ? value : MakeList({key, value}, true));
  }
  return MakeList(std::move(items));
}

absl::StatusOr<Value> CallListMethod(const ListObject& list, const std::string& name,
                                     const Arguments& arguments) {
  if (arguments.positional.size() != 1)
    return LineError(arguments.line, absl::StrCat(name, "() takes one value"));
  const Value& wanted = arguments.positional[0];
  if (name == "count") {
    return Value(static_cast<int64_t>(
        std::count_if(list.items.begin(), list.items.end(),
                      [&wanted](const Value& item) { return Equal(item, wanted); })));
  }
  for (size_t index = 0; index < list.items.size(); ++index) {
    if (Equal(list.items[index], wanted)) return Value(static_cast<int64_t>(index));
  }
  return LineError(arguments.line, "index(): the value is not in the list");
}

}  // namespace

bool IsMethod(const Value& self, absl::string_view name) {
  static constexpr absl::string_view kText[] = {
      "split",        "rsplit",  "strip",   "lstrip",  "rstrip",     "startswith", "endswith",
      "replace",      "upper",   "lower",   "title",   "capitalize", "splitlines", "join",
      "isdigit",      "isalpha", "isalnum", "isspace", "isupper",    "islower",    "removeprefix",
      "removesuffix", "count",   "find",    "rfind",   "index"};
  static constexpr absl::string_view kDict[] = {"get", "items", "keys", "values"};
  static constexpr absl::string_view kList[] = {"count", "index"};
  const auto any = [&name](const auto& names) {
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
  };
  return (self.text() != nullptr && any(kText)) || (self.dict() != nullptr && any(kDict)) ||
         (self.list() != nullptr && any(kList));
}

absl::StatusOr<Value> CallMethod(Interpreter& interpreter, const Value& self,
                                 const std::string& name, const Arguments& arguments) {
  if (self.text() != nullptr) return CallTextMethod(interpreter, *self.text(), name, arguments);
  if (self.dict() != nullptr) return CallDictMethod(*self.dict(), name, arguments);
  if (!arguments.positional.empty()) {
    WL_RETURN_IF_ERROR(interpreter.Charge(
        arguments.line,
        static_cast<int64_t>(self.list()->items.size()) * arguments.positional[0].weight()));
  }
  return CallListMethod(*self.list(), name, arguments);
}

Text Strip(const Text& text, absl::string_view bytes, bool left, bool right) {
  size_t begin = 0;
  size_t end = text.size();
  while (left && begin < end && bytes.find(text.bytes[begin]) != absl::string_view::npos) ++begin;
  while (right && end > begin && bytes.find(text.bytes[end - 1]) != absl::string_view::npos) --end;
  return text.Slice(begin, end);
}

Text Replace(const Text& text, const Text& from, const Text& to, int64_t most) {
  Text result;
  size_t begin = 0;
  int64_t count = 0;
  if (from.empty()) {  // Python puts it before every character and at the end.
    const std::vector<size_t> starts = CharacterStarts(text.bytes);
    for (size_t index = 0; index < starts.size(); ++index) {
      if (most < 0 || count < most) result.Append(to);
      ++count;
      if (index + 1 < starts.size()) result.Append(text.Slice(starts[index], starts[index + 1]));
    }
    return result;
  }
  for (size_t at = text.bytes.find(from.bytes);
       at != std::string::npos && (most < 0 || count < most);
       at = text.bytes.find(from.bytes, begin)) {
    result.Append(text.Slice(begin, at));
    result.Append(to);
    begin = at + from.size();
    ++count;
  }
  result.Append(text.Slice(begin, text.size()));
  return result;
}

}  // namespace warpline::chat
