#include "base/utf8.h"

#include <cstdint>

namespace warpline {
namespace {

// What the lead byte says: the length of the sequence (0: no lead byte) and the range of the second
// byte, which is narrower where overlong forms, surrogates or values above U+10FFFF have to be kept
// out.
struct Lead {
  size_t byte_count = 0;
  uint8_t second_low = 0x80;
  uint8_t second_high = 0xBF;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {.byte_count = 1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {.byte_count = 2};
  if (byte == 0xE0) return {.byte_count = 3, .second_low = 0xA0};
  if (byte == 0xED) return {.byte_count = 3, .second_high = 0x9F};
  if (byte < 0xF0) return {.byte_count = 3};
  if (byte == 0xF0) return {.byte_count = 4, .second_low = 0x90};
  if (byte < 0xF4) return {.byte_count = 4};
  if (byte == 0xF4) return {.byte_count = 4, .second_high = 0x8F};
  return {};
}

}  // namespace

Utf8Character DecodeUtf8(absl::string_view text) {
  const uint8_t first = static_cast<uint8_t>(text[0]);
  const Lead lead = LeadOf(first);
  if (lead.byte_count == 1) return {.state = Utf8State::kComplete, .code = first};
  if (lead.byte_count == 0) return {};
  char32_t code = first & (0x7Fu >> lead.byte_count);
  for (size_t i = 1; i < lead.byte_count; ++i) {
    if (i == text.size()) return {.state = Utf8State::kIncomplete, .byte_count = i};
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    const uint8_t low = i == 1 ? lead.second_low : 0x80;
    const uint8_t high = i == 1 ? lead.second_high : 0xBF;
    if (byte < low || byte > high) return {};
    code = code << 6 | (byte & 0x3Fu);
  }
  return {.state = Utf8State::kComplete, .code = code, .byte_count = lead.byte_count};
}

void AppendUtf8(char32_t code, std::string* text) {
  const auto tail = [code](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3F)); };
  if (code < 0x80) {
    text->push_back(static_cast<char>(code));
  } else if (code < 0x800) {
    text->append({static_cast<char>(0xC0 | code >> 6), tail(0)});
  } else if (code < 0x10000) {
    text->append({static_cast<char>(0xE0 | code >> 12), tail(6), tail(0)});
  } else {
    text->append({static_cast<char>(0xF0 | code >> 18), tail(12), tail(6), tail(0)});
  }
}

size_t Utf8ByteCount(char32_t code) {
  return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

bool IsUtf8(absl::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Character next = DecodeUtf8(bytes);
    if (next.state != Utf8State::kComplete) return false;
    bytes.remove_prefix(next.byte_count);
  }
  return true;
}

std::string ReplaceInvalidUtf8(absl::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Character next = DecodeUtf8(bytes);
    AppendUtf8(next.code, &text);
    bytes.remove_prefix(next.state == Utf8State::kComplete ? next.byte_count : 1);
  }
  return text;
}

}  // namespace warpline
