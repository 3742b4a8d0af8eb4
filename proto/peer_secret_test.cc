#include "proto/peer_secret.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/escaping.h"

namespace warpline {
namespace {

using ::testing::HasSubstr;

TEST(PeerSecretTest, TheProofIsAnHmacOfPurposeAndEpoch) {
  // printf 'warpline control7' | openssl dgst -sha256 -hmac key
  EXPECT_EQ(absl::BytesToHexString(PeerSecret("key").Proof(kControlPurpose, 7)),
            "afe61b60f44b5ece984ecc8d6358c8615bd55f00356a1612275bebc9b7d73500");
}

TEST(PeerSecretTest, OnlyTheSameSecretPurposeAndEpochPass) {
  const PeerSecret secret("key");
  const std::string proof = secret.Proof(kControlPurpose, 7);
  EXPECT_TRUE(secret.Check(kControlPurpose, 7, proof).ok());
  for (const absl::Status& status :
       {secret.Check(kEdgePurpose, 7, proof), secret.Check(kControlPurpose, 8, proof),
        secret.Check(kControlPurpose, 7, proof.substr(0, 31)), secret.Check(kControlPurpose, 7, ""),
        PeerSecret("other").Check(kControlPurpose, 7, proof),
        PeerSecret().Check(kControlPurpose, 7, proof)}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnauthenticated);
  }
}

TEST(PeerSecretTest, WithoutASecretThereIsNothingToProve) {
  EXPECT_EQ(PeerSecret().Proof(kControlPurpose, 7), "");
  EXPECT_TRUE(PeerSecret().Check(kControlPurpose, 7, "").ok());
}

class SecretFileTest : public ::testing::Test {
 protected:
  SecretFileTest() { folder_ = mkdtemp(template_); }
  ~SecretFileTest() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& text) {
    const std::string path = folder_ + "/secret";
    std::ofstream(path, std::ios::binary) << text;
    chmod(path.c_str(), 0600);
    return path;
  }
  const std::string& folder() const { return folder_; }

 private:
  char template_[32] = "/tmp/warpline-test-XXXXXX";
  std::string folder_;
};

TEST_F(SecretFileTest, LineEndsDoNotBelongToTheSecret) {
  const absl::StatusOr<PeerSecret> read = PeerSecret::Load(Write("key\r\n"));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->Proof("x", 1), PeerSecret("key").Proof("x", 1));
}

TEST_F(SecretFileTest, NoPathIsNoSecret) {
  const absl::StatusOr<PeerSecret> none = PeerSecret::Load("");
  ASSERT_TRUE(none.ok());
  EXPECT_FALSE(none->present());
}

TEST_F(SecretFileTest, TakesUpTo4KiB) {
  EXPECT_TRUE(PeerSecret::Load(Write(std::string(4096, 'k'))).ok());
  EXPECT_THAT(PeerSecret::Load(Write(std::string(4097, 'k'))).status().ToString(),
              HasSubstr("has 4097 bytes, at most 4096"));
}

TEST_F(SecretFileTest, RefusesWhatHoldsNoSecret) {
  EXPECT_THAT(PeerSecret::Load(Write("")).status().ToString(), HasSubstr("is empty"));
  EXPECT_THAT(PeerSecret::Load(Write("\n\n")).status().ToString(), HasSubstr("is empty"));
  EXPECT_THAT(PeerSecret::Load(folder()).status().ToString(), HasSubstr("regular file"));
  EXPECT_THAT(PeerSecret::Load(folder() + "/none").status().ToString(), HasSubstr("/none"));
  const std::string fifo = folder() + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(PeerSecret::Load(fifo).status().ToString(), HasSubstr("regular file"));
}

TEST(BindTest, OpenAddressesNeedASecret) {
  EXPECT_TRUE(CheckBindAllowed("unix:/run/w", PeerSecret()).ok());
  EXPECT_TRUE(CheckBindAllowed("127.0.0.1:0", PeerSecret()).ok());
  EXPECT_TRUE(CheckBindAllowed("0.0.0.0:1", PeerSecret("key")).ok());
  for (const char* address : {"0.0.0.0:1", "[::]:1", "10.0.0.1:1", "example.org:1"}) {
    EXPECT_EQ(CheckBindAllowed(address, PeerSecret()).code(),
              absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace warpline
