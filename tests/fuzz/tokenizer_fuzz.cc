// Fuzz target: loads a GGUF file's vocabulary and lets it tokenise the file's own bytes.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/unique_fd.h"
#include "model/gguf.h"
#include "model/tokenizer.h"

namespace warpline {
namespace {

constexpr size_t kTextBytes = 2000;

// Special tokens spelled out, and whatever the input holds, whole and cut.
std::string TextFrom(absl::string_view input) {
  return absl::StrCat("<|im_start|>user\n[UD] <s>it's 2026 \u4E2D\u0301 ",
                      input.substr(input.size() / 2, kTextBytes), "<|im_end|>");
}

void CheckIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Utf8Stream stream;
  std::string streamed;
  std::string bytes;
  for (const int32_t id : ids) {
    WL_CHECK(id >= 0 && id < tokenizer.vocab_size());
    const std::string piece = tokenizer.TokenBytes(id, /*show_special=*/true);
    bytes += piece;
    streamed += stream.Push(piece);
  }
  streamed += stream.Finish();
  // What was streamed piece by piece is whole characters, and those of the bytes at once.
  Utf8Stream at_once;
  std::string expected = at_once.Push(bytes);
  expected += at_once.Finish();
  WL_CHECK(streamed == expected);
  WL_CHECK(Utf8Stream().Push(streamed) == streamed);
  WL_CHECK(tokenizer.Decode(ids, {.unparse_special = true}).size() <= bytes.size());
}

void UseVocabulary(const Tokenizer& tokenizer, absl::string_view input) {
  const std::string text = TextFrom(input);
  for (const bool parse_special : {false, true}) {
    CheckIds(tokenizer,
             tokenizer.Encode(text, {.add_special = true, .parse_special = parse_special}));
  }
  TrustedText chat{.text = text};
  for (size_t begin = 0; begin + 40 <= text.size(); begin += 100) {
    chat.trusted.push_back({begin, begin + 40});
  }
  CheckIds(tokenizer, tokenizer.EncodeChat(chat));
  std::vector<int32_t> any_ids;
  for (size_t i = 0; i + 1 < std::min(input.size(), kTextBytes); i += 2) {
    any_ids.push_back(static_cast<int32_t>(static_cast<uint8_t>(input[i])) * 256 - 100 +
                      static_cast<uint8_t>(input[i + 1]));
  }
  tokenizer.Decode(any_ids, {.remove_special = true});
  for (const int32_t id : {tokenizer.bos_id(), tokenizer.eos_id()}) {
    WL_CHECK(id >= -1 && id < tokenizer.vocab_size());
  }
}

}  // namespace
}  // namespace warpline

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const warpline::UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC));
  WL_CHECK(fd.valid() && write(fd.get(), data, size) == static_cast<ssize_t>(size));
  const auto file = warpline::GgufFile::Open(absl::StrCat("/proc/self/fd/", fd.get()));
  if (!file.ok()) return 0;
  const auto tokenizer = warpline::Tokenizer::Create(**file);
  if (!tokenizer.ok()) {
    WL_CHECK(absl::IsInvalidArgument(tokenizer.status()));
    WL_CHECK(tokenizer.status().message().find('\n') == absl::string_view::npos);
    return 0;
  }
  warpline::UseVocabulary(**tokenizer, {reinterpret_cast<const char*>(data), size});
  return 0;
}
