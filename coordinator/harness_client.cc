#include "coordinator/harness_client.h"

#include <fcntl.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "proto/grpc_server.h"
#include "proto/grpc_status.h"
#include "proto/health.grpc.pb.h"

namespace warpline {
namespace {

constexpr int kWatchFd = 200;  // In the child; above what we have open.

std::string BinaryPath(const std::string& program) {
  return absl::StrCat(WARPLINE_BIN_DIR, "/", program);
}

std::chrono::system_clock::time_point In(std::chrono::seconds wait) {
  return std::chrono::system_clock::now() + wait;
}

}  // namespace

ProgramRun::ProgramRun(const std::string& program, const std::vector<std::string>& arguments,
                       const std::string& log) {
  std::vector<std::string> words = {BinaryPath(program)};
  words.insert(words.end(), arguments.begin(), arguments.end());
  // It ends with us, however we end.
  int ends[2];
  WL_CHECK(pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd read_end(ends[0]);
  watched_ = UniqueFd(ends[1]);
  words.insert(words.end(), {"--watch-fd", absl::StrCat(kWatchFd)});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(),
                                   O_WRONLY | O_CREAT | O_APPEND, 0600);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  posix_spawn_file_actions_adddup2(&actions, read_end.get(), kWatchFd);
  WL_CHECK(posix_spawn(&pid_, words[0].c_str(), &actions, nullptr, argv.data(), environ) == 0);
  posix_spawn_file_actions_destroy(&actions);
}

ProgramRun& ProgramRun::operator=(ProgramRun&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(watched_, other.watched_);
  return *this;
}

ProgramRun::~ProgramRun() {
  Signal(SIGKILL);
  Wait();
}

void ProgramRun::Signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

int ProgramRun::Wait() {
  if (pid_ <= 0) return -1;
  int state = 0;
  waitpid(pid_, &state, 0);
  pid_ = -1;
  return WIFEXITED(state) ? WEXITSTATUS(state) : -WTERMSIG(state);
}

TestService::TestService(const std::string& model, int worker_count,
                         std::vector<std::string> options)
    : model_(absl::StrCat(WARPLINE_TEST_DATA, "/", model)) {
  std::string pattern = "/tmp/warpline-test-XXXXXX";
  WL_CHECK(mkdtemp(pattern.data()) != nullptr);
  folder_ = pattern;
  workers_.resize(worker_count);
  std::vector<std::string> arguments = {"--model", model_, "--listen", Socket("coordinator.sock")};
  for (int stage = 0; stage < worker_count; ++stage) {
    StartWorker(stage);
    arguments.insert(arguments.end(), {"--worker", Socket(absl::StrCat("worker-", stage))});
  }
  arguments.insert(arguments.end(), options.begin(), options.end());
  coordinator_ = ProgramRun("warpline-coordinator", arguments, folder_ + "/coordinator.log");
  channel_ = OpenChannel(Socket("coordinator.sock"));
  stub_ = v1::Inference::NewStub(channel_);
}

TestService::~TestService() {
  coordinator_ = ProgramRun();
  workers_.clear();
  std::filesystem::remove_all(folder_);
}

void TestService::StartWorker(int stage) {
  workers_[stage] = ProgramRun(
      "warpline-worker",
      {"--model", model_, "--listen", Socket(absl::StrCat("worker-", stage)), "--threads", "1"},
      absl::StrCat(folder_, "/worker-", stage, ".log"));
}

bool TestService::WaitUntil(bool serving) {
  const auto stub = grpc::health::v1::Health::NewStub(channel_);
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(In(std::chrono::seconds(20)));
  const auto reader = stub->Watch(&context, {});
  grpc::health::v1::HealthCheckResponse response;
  while (reader->Read(&response)) {
    if ((response.status() == grpc::health::v1::HealthCheckResponse::SERVING) == serving) {
      context.TryCancel();
      return true;
    }
  }
  return false;
}

std::unique_ptr<v1::Inference::Stub> TestService::NarrowStub() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 14);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return v1::Inference::NewStub(grpc::CreateCustomChannel(
      Socket("coordinator.sock"), grpc::InsecureChannelCredentials(), arguments));
}

std::string TestService::Log() const {
  std::stringstream text;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    if (entry.path().extension() != ".log") continue;
    text << entry.path().filename() << ":\n" << std::ifstream(entry.path()).rdbuf() << "\n";
  }
  return text.str();
}

Answer TestService::Generate(const v1::GenerateRequest& request,
                             const std::function<bool(const v1::GenerateResponse&)>& on_event) {
  Answer answer;
  grpc::ClientContext context;
  context.set_deadline(In(std::chrono::seconds(60)));
  const auto reader = stub_->Generate(&context, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_started()) answer.started = response.started();
    if (response.has_delta()) {
      answer.text += response.delta().text();
      for (const int32_t id : response.delta().token_ids()) answer.ids.push_back(id);
    }
    if (response.has_finished()) {
      answer.finished = response.finished();
      answer.text += response.finished().text();
    }
    if (on_event != nullptr && !on_event(response)) context.TryCancel();
  }
  answer.status = FromGrpc(reader->Finish());
  return answer;
}

v1::StatusResponse TestService::Status() {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(In(std::chrono::seconds(10)));
  v1::StatusResponse response;
  WL_CHECK(stub_->Status(&context, {}, &response).ok());
  return response;
}

double TestService::Metric(const std::string& name) {
  grpc::ClientContext context;
  context.set_deadline(In(std::chrono::seconds(10)));
  v1::MetricsResponse response;
  WL_CHECK(stub_->Metrics(&context, {}, &response).ok());
  for (const absl::string_view line : absl::StrSplit(response.text(), '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ');
    double value = 0;
    if (words.size() == 2 && words[0] == name && absl::SimpleAtod(words[1], &value)) return value;
  }
  return std::nan("");
}

bool TestService::AwaitMetric(const std::string& name, double value) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  while (std::chrono::steady_clock::now() < limit) {
    if (Metric(name) == value) return true;
    std::this_thread::yield();
  }
  return false;
}

v1::GenerateRequest GreedyRequest(const std::vector<int32_t>& tokens, int max_tokens) {
  v1::GenerateRequest request;
  request.mutable_tokens()->mutable_ids()->Add(tokens.begin(), tokens.end());
  request.mutable_sampling()->set_temperature(0);
  request.set_max_tokens(max_tokens);
  request.set_ignore_eos(true);
  return request;
}

}  // namespace warpline
