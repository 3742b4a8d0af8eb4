#include "client/gateway/http_head.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace warpline {
namespace {

using State = HeadScan::State;

int Refusal(absl::string_view bytes) {
  const HeadScan scan = ScanHead(bytes);
  return scan.state == State::kRefused ? scan.http_status : 0;
}

TEST(HttpHeadTest, WaitsForTheWholeHeader) {
  const std::string head = "GET /health HTTP/1.1\r\nHost: x\r\nA: b\r\n\r\n";
  for (size_t size = 0; size < head.size(); ++size) {
    EXPECT_EQ(ScanHead(absl::string_view(head).substr(0, size)).state, State::kIncomplete) << size;
  }
  EXPECT_EQ(ScanHead(head).state, State::kComplete);
  EXPECT_EQ(ScanHead(head + "garbage behind it").state, State::kComplete);
  EXPECT_EQ(ScanHead("GET / HTTP/1.0\r\n\r\n").state, State::kComplete);
}

TEST(HttpHeadTest, SkipsEmptyLinesBeforeARequest) {
  const HeadScan scan = ScanHead("\r\n\r\nGET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(scan.state, State::kComplete);
  EXPECT_EQ(scan.skipped, 4U);
}

TEST(HttpHeadTest, RefusesAsSoonAsItCan) {
  EXPECT_EQ(Refusal("\x16\x03\x01\x02"), 400);                  // TLS
  EXPECT_EQ(Refusal("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 400);  // HTTP/2
  EXPECT_EQ(Refusal("GET /\r\n"), 400);                         // HTTP/0.9
  EXPECT_EQ(Refusal("get / HTTP/1.1\r\n"), 400);
  EXPECT_EQ(Refusal("\xFF\xFE\x00garbage"), 400);
  EXPECT_EQ(Refusal(" GET / HTTP/1.1\r\n"), 400);
  EXPECT_EQ(Refusal("GET / HTTP/1.1\n"), 400);
  EXPECT_EQ(Refusal("GET  HTTP/1.1\r\n"), 400);
  EXPECT_EQ(Refusal("GET /a b HTTP/1.1\r\n"), 400);
  EXPECT_EQ(Refusal("GET / HTTP/3.0\r\n"), 400);
  EXPECT_EQ(Refusal("GET / HTTP/1.1 \r\n"), 400);
  EXPECT_EQ(Refusal("GET /\x80 HTTP/1.1\r\n"), 400);
  EXPECT_EQ(Refusal("AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"), 400);
}

TEST(HttpHeadTest, RefusesBrokenFields) {
  const std::string line = "GET / HTTP/1.1\r\n";
  EXPECT_EQ(Refusal(line + "A: b\n"), 400);
  EXPECT_EQ(Refusal(line + "A : b\r\n"), 400);
  EXPECT_EQ(Refusal(line + ": b\r\n"), 400);
  EXPECT_EQ(Refusal(line + "A\r\n"), 400);
  EXPECT_EQ(Refusal(line + "A: b\r\n c\r\n"), 400);
  EXPECT_EQ(Refusal(line + "A: b\rc\r\n"), 400);
  EXPECT_EQ(Refusal(line + std::string("A: b\0c\r\n", 8)), 400);
}

TEST(HttpHeadTest, BoundsFieldsAndBytes) {
  std::string head = "GET / HTTP/1.1\r\n";
  for (int count = 0; count < kMaxHeadFields; ++count) head += "a: b\r\n";
  EXPECT_EQ(ScanHead(head + "\r\n").state, State::kComplete);
  EXPECT_EQ(Refusal(head + "a: b\r\n"), 431);
  const std::string line = "GET / HTTP/1.1\r\n";
  const std::string filler(kMaxHeadBytes - line.size() - 8, 'x');
  EXPECT_EQ(ScanHead(absl::StrCat(line, "A: ", filler, "\r\n\r\n")).state, State::kComplete);
  EXPECT_EQ(Refusal(absl::StrCat(line, "A: ", filler, "xxxxxxxx")), 431);
  const std::string path(kMaxTargetBytes, 'x');
  EXPECT_EQ(Refusal(absl::StrCat("GET /", path, " HTTP/1.1\r\n")), 414);
  EXPECT_EQ(Refusal(absl::StrCat("GET /", path, path, path)), 414);
}

}  // namespace
}  // namespace warpline
