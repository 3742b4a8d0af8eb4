#include "worker/shared_slots.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

namespace warpline {
namespace {

using ::testing::HasSubstr;

constexpr int kSlots = 3;
constexpr int64_t kSlotBytes = 5000;  // not a multiple of a page

SharedSlotsLocation LocationOf(const SharedSlots& slots, pid_t pid) {
  return {.pid = pid,
          .fd = slots.fd(),
          .token = slots.token(),
          .slot_count = kSlots,
          .slot_bytes = kSlotBytes};
}

float ValueAt(int slot, size_t index) { return static_cast<float>(slot * 10000) + index; }

// In the child: fills the slots, says where they are, waits for the parent's end.
[[noreturn]] void SendFromChild(int socket) {
  absl::StatusOr<std::unique_ptr<SharedSlots>> slots = SharedSlots::Create(kSlots, kSlotBytes);
  if (!slots.ok()) _exit(1);
  for (int slot = 0; slot < kSlots; ++slot) {
    const absl::Span<float> values = (*slots)->slot(slot);
    for (size_t index = 0; index < values.size(); ++index) values[index] = ValueAt(slot, index);
  }
  const int fd = (*slots)->fd();
  char byte = 0;
  const bool told = write(socket, &fd, sizeof(fd)) == sizeof(fd) &&
                    write(socket, (*slots)->token().data(), 16) == 16;
  _exit(told && read(socket, &byte, 1) == 0 ? 0 : 2);
}

TEST(SharedSlotsTest, AnotherProcessSeesTheValues) {
  int sockets[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  const pid_t child = fork();
  if (child == 0) {
    close(sockets[0]);
    SendFromChild(sockets[1]);
  }
  close(sockets[1]);
  int fd = -1;
  std::string token(16, '\0');
  ASSERT_EQ(read(sockets[0], &fd, sizeof(fd)), static_cast<ssize_t>(sizeof(fd)));
  ASSERT_EQ(read(sockets[0], token.data(), token.size()), 16);
  auto view = SharedSlotsView::Map(
      {.pid = child, .fd = fd, .token = token, .slot_count = kSlots, .slot_bytes = kSlotBytes});
  close(sockets[0]);
  int result = -1;
  ASSERT_EQ(waitpid(child, &result, 0), child);
  EXPECT_EQ(result, 0);
  ASSERT_TRUE(view.ok()) << view.status();
  // The sender is gone; its memory stays while it is mapped.
  for (int slot = 0; slot < kSlots; ++slot) {
    const absl::Span<const float> values = (*view)->slot(slot);
    ASSERT_EQ(values.size(), 1250u);
    for (size_t index = 0; index < values.size(); ++index) {
      ASSERT_EQ(values[index], ValueAt(slot, index)) << "slot " << slot << " value " << index;
    }
  }
}

TEST(SharedSlotsTest, RefusesWhatIsNotTheAnnouncedFile) {
  auto slots = SharedSlots::Create(kSlots, kSlotBytes);
  ASSERT_TRUE(slots.ok()) << slots.status();
  const SharedSlotsLocation right = LocationOf(**slots, getpid());
  ASSERT_TRUE(SharedSlotsView::Map(right).ok());

  SharedSlotsLocation wrong = right;
  const std::string other_token(16, 'x');
  wrong.token = other_token;
  EXPECT_THAT(SharedSlotsView::Map(wrong).status().ToString(), HasSubstr("another token"));
  wrong = right;
  wrong.token = wrong.token.substr(0, 15);
  EXPECT_THAT(SharedSlotsView::Map(wrong).status().ToString(), HasSubstr("another token"));
  wrong = right;
  wrong.slot_count = kSlots + 1;
  EXPECT_THAT(SharedSlotsView::Map(wrong).status().ToString(), HasSubstr("bytes"));
  wrong = right;
  wrong.fd = 9999;
  EXPECT_FALSE(SharedSlotsView::Map(wrong).ok());
  wrong = right;
  wrong.pid = 0;
  EXPECT_FALSE(SharedSlotsView::Map(wrong).ok());
}

TEST(SharedSlotsTest, RefusesPipesAndFilesThatMayShrink) {
  int pipes[2];
  ASSERT_EQ(pipe(pipes), 0);
  const std::string token(16, 'x');
  SharedSlotsLocation location{
      .pid = getpid(), .fd = pipes[0], .token = token, .slot_count = 1, .slot_bytes = 4096};
  EXPECT_FALSE(SharedSlotsView::Map(location).ok());
  close(pipes[0]);
  close(pipes[1]);

  const UniqueFd unsealed(memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), 8192), 0);
  ASSERT_EQ(pwrite(unsealed.get(), token.data(), token.size(), 0), 16);
  location.fd = unsealed.get();
  EXPECT_THAT(SharedSlotsView::Map(location).status().ToString(), HasSubstr("sealed"));
}

TEST(SharedSlotsTest, TheFileCannotChangeItsSize) {
  auto slots = SharedSlots::Create(kSlots, kSlotBytes);
  ASSERT_TRUE(slots.ok()) << slots.status();
  EXPECT_NE(ftruncate((*slots)->fd(), 4096), 0);
  EXPECT_NE(ftruncate((*slots)->fd(), 1 << 20), 0);
}

}  // namespace
}  // namespace warpline
