#include "worker/worker_test_client.h"

#include <fcntl.h>
#include <grpcpp/client_context.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "model/gguf.h"
#include "model/model_spec.h"
#include "proto/grpc_server.h"
#include "proto/stage_protocol.h"

namespace warpline {
namespace {

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::vector<std::string> ChildEnvironment(const std::string& notify_path) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (strncmp(*variable, "NOTIFY_SOCKET=", 14) != 0) variables.emplace_back(*variable);
  }
  variables.push_back(absl::StrCat("NOTIFY_SOCKET=", notify_path));
  return variables;
}

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& text : texts) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

std::unique_ptr<grpc::ClientContext> Context() {
  auto context = std::make_unique<grpc::ClientContext>();
  context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(30));
  context->set_wait_for_ready(true);
  return context;
}

}  // namespace

TempFolder::TempFolder() {
  std::string path = "/tmp/warpline-test-XXXXXX";
  WL_CHECK(mkdtemp(path.data()) != nullptr);
  path_ = path;
}

TempFolder::~TempFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

WorkerProcess::WorkerProcess(const std::vector<std::string>& arguments) {
  sockaddr_un notify{.sun_family = AF_UNIX};
  const std::string notify_path = folder_.File("notify");
  memcpy(notify.sun_path, notify_path.c_str(), notify_path.size() + 1);
  notify_.Reset(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  WL_CHECK(bind(notify_.get(), reinterpret_cast<const sockaddr*>(&notify), sizeof(notify)) == 0);
  int pipes[2];
  WL_CHECK(pipe2(pipes, O_CLOEXEC) == 0);
  watch_.Reset(pipes[1]);
  const UniqueFd watched(pipes[0]);

  constexpr int kChildWatchFd = 3;
  std::vector<std::string> command = {std::string(WARPLINE_BIN_DIR) + "/warpline-worker"};
  command.insert(command.end(), arguments.begin(), arguments.end());
  command.push_back(absl::StrCat("--watch-fd=", kChildWatchFd));
  const std::vector<std::string> variables = ChildEnvironment(notify_path);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 2, folder_.File("stderr").c_str(),
                                   O_WRONLY | O_CREAT | O_TRUNC, 0600);
  posix_spawn_file_actions_adddup2(&actions, watched.get(), kChildWatchFd);
  WL_CHECK(posix_spawn(&pid_, command[0].c_str(), &actions, nullptr, Pointers(command).data(),
                       Pointers(variables).data()) == 0);
  posix_spawn_file_actions_destroy(&actions);
  pidfd_.Reset(static_cast<int>(syscall(SYS_pidfd_open, pid_, 0)));
  WL_CHECK(pidfd_.valid());
}

WorkerProcess::~WorkerProcess() {
  if (exit_code_.has_value()) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

bool WorkerProcess::WaitReady() {
  while (true) {
    pollfd fds[] = {{.fd = notify_.get(), .events = POLLIN},
                    {.fd = pidfd_.get(), .events = POLLIN}};
    if (poll(fds, 2, 20000) <= 0) return false;
    if ((fds[0].revents & POLLIN) == 0) return false;
    char text[512];
    const ssize_t count = recv(notify_.get(), text, sizeof(text), 0);
    if (count > 0 && absl::string_view(text, static_cast<size_t>(count)).find("READY=1") !=
                         absl::string_view::npos) {
      return true;
    }
  }
}

std::optional<int> WorkerProcess::WaitExit(int limit_ms) {
  pollfd fd{.fd = pidfd_.get(), .events = POLLIN};
  if (exit_code_.has_value()) return exit_code_;
  if (poll(&fd, 1, limit_ms) <= 0) return std::nullopt;
  int result = 0;
  waitpid(pid_, &result, 0);
  exit_code_ = WIFEXITED(result) ? WEXITSTATUS(result) : -WTERMSIG(result);
  return exit_code_;
}

void WorkerProcess::Signal(int number) const { kill(pid_, number); }

std::string WorkerProcess::Stderr() { return ReadText(folder_.File("stderr")); }

GoldenModel ReadGolden(const std::string& name) {
  const std::string folder = std::string(WARPLINE_TEST_DATA) + "/families/";
  GoldenModel golden{.path = folder + name + ".gguf"};
  const auto file = GgufFile::Open(golden.path);
  WL_CHECK(file.ok());
  const auto spec = ModelSpec::FromGguf(**file);
  WL_CHECK(spec.ok());
  golden.n_layer = spec->n_layer;
  golden.residual_width = spec->residual_width;
  golden.n_vocab = spec->n_vocab;
  golden.fingerprint = *FingerprintOf(**file);
  const std::string text = ReadText(folder + name + ".json");
  const size_t begin = text.find('[', text.find("\"tokens\"")) + 1;
  for (absl::string_view number :
       absl::StrSplit(text.substr(begin, text.find(']', begin) - begin), ',')) {
    int32_t id = 0;
    WL_CHECK(absl::SimpleAtoi(number, &id));
    golden.tokens.push_back(id);
  }
  const std::string bytes = ReadText(folder + name + ".logits.f32");
  golden.logits.resize(bytes.size() / sizeof(float));
  memcpy(golden.logits.data(), bytes.data(), bytes.size());
  WL_CHECK(golden.logits.size() == golden.tokens.size() * static_cast<size_t>(golden.n_vocab));
  return golden;
}

WorkerClient::WorkerClient(const std::string& address)
    : channel_(OpenChannel(address)), stub_(v1::Stage::NewStub(channel_)) {}

ControlStream WorkerClient::Control() {
  ControlStream control{.context = Context()};
  control.stream = stub_->Control(control.context.get());
  return control;
}

EdgeStream WorkerClient::Edge() {
  EdgeStream edge{.context = Context()};
  edge.stream = stub_->Edge(edge.context.get());
  return edge;
}

v1::ControlRequest AssignFor(const GoldenModel& model, int stage, int stage_count, int begin,
                             int end, const std::string& next_address) {
  v1::ControlRequest request;
  v1::Assign& assign = *request.mutable_assign();
  assign.set_protocol_version(kStageProtocolVersion);
  assign.set_epoch(100);
  assign.set_fingerprint(model.fingerprint);
  assign.set_stage(static_cast<uint32_t>(stage));
  assign.set_stage_count(static_cast<uint32_t>(stage_count));
  assign.set_layer_begin(static_cast<uint32_t>(begin));
  assign.set_layer_end(static_cast<uint32_t>(end));
  assign.set_layer_count(static_cast<uint32_t>(model.n_layer));
  assign.set_width(static_cast<uint32_t>(model.residual_width));
  assign.set_next_address(next_address);
  assign.set_kv_type(v1::KV_CACHE_TYPE_F32);
  assign.set_slot_count(4);
  assign.set_page_count(40);
  assign.set_max_context(640);
  assign.set_configured_context(640);
  assign.set_max_chunk_rows(64);
  return request;
}

v1::EdgeMessage HelloFor(const v1::Assign& assign) {
  v1::EdgeMessage message;
  v1::EdgeHello& hello = *message.mutable_hello();
  hello.set_protocol_version(kStageProtocolVersion);
  hello.set_epoch(assign.epoch());
  hello.set_fingerprint(assign.fingerprint());
  hello.set_at_layer(assign.layer_begin());
  hello.set_width(assign.width());
  hello.set_slot_bytes(uint64_t{assign.max_chunk_rows()} * assign.width() * 4);
  hello.set_slot_count(kEdgeSlots);
  hello.set_kind(v1::EDGE_KIND_GRPC);
  return message;
}

std::optional<v1::ControlReply> ReadUntil(
    ControlStream& control, const std::function<bool(const v1::ControlReply&)>& wanted) {
  while (std::optional<v1::ControlReply> reply = control.Read()) {
    if (wanted(*reply)) return reply;
  }
  return std::nullopt;
}

}  // namespace warpline
