#include "coordinator/text_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warpline {
namespace {

using testing::ElementsAre;

class TextStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    auto file = GgufFile::Open(std::string(WARPLINE_TEST_DATA) + "/tokenizers/smollm.gguf");
    ASSERT_TRUE(file.ok()) << file.status();
    auto tokenizer = Tokenizer::Create(**file);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  // One token for each byte of `text`: the byte-level vocabulary has them all.
  std::vector<int32_t> ByteTokens(const std::string& text) const {
    std::vector<int32_t> ids;
    for (const char byte : text) {
      for (int32_t id = 0; id < tokenizer_->vocab_size(); ++id) {
        if (tokenizer_->TokenBytes(id, false) != std::string(1, byte)) continue;
        ids.push_back(id);
        break;
      }
    }
    EXPECT_EQ(ids.size(), text.size());
    return ids;
  }

  std::vector<std::string> Push(TextStream& stream, const std::string& text) const {
    std::vector<std::string> pieces;
    for (const int32_t id : ByteTokens(text)) pieces.push_back(stream.Push(id).text);
    return pieces;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(TextStreamTest, ACharacterComesWhenItIsComplete) {
  TextStream stream(*tokenizer_, {});
  EXPECT_THAT(Push(stream, "a\xC3\xA9z"), ElementsAre("a", "", "\xC3\xA9", "z"));
  EXPECT_EQ(stream.Finish(), "");
}

TEST_F(TextStreamTest, AnIncompleteCharacterAtTheEndIsWithheld) {
  TextStream stream(*tokenizer_, {});
  EXPECT_THAT(Push(stream, "a\xE2\x82"), ElementsAre("a", "", ""));
  EXPECT_EQ(stream.Finish(), "");
}

TEST_F(TextStreamTest, StopStringsHoldBackAndEndTheText) {
  TextStream stream(*tokenizer_, {"ab"});
  EXPECT_THAT(Push(stream, "xa"), ElementsAre("x", ""));
  const TextStream::Piece piece = stream.Push(ByteTokens("b")[0]);
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.text, "");
  EXPECT_EQ(stream.Finish(), "");
}

TEST_F(TextStreamTest, WhatWasHeldBackForAStopComesAtTheEnd) {
  TextStream stream(*tokenizer_, {"abc"});
  EXPECT_THAT(Push(stream, "xab"), ElementsAre("x", "", ""));
  EXPECT_EQ(stream.Finish(), "ab");
}

TEST_F(TextStreamTest, ControlTokensAreNotShown) {
  const std::vector<int32_t> ids = tokenizer_->Encode("<|im_start|>", {.parse_special = true});
  ASSERT_EQ(ids.size(), 1u);
  TextStream stream(*tokenizer_, {});
  EXPECT_EQ(stream.Push(ids[0]).text, "");
}

}  // namespace
}  // namespace warpline
