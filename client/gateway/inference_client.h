// The coordinator as the gateway sees it: gRPC calls whose results arrive on the gateway's
// executor.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/inference.pb.h"

namespace warpline {

struct GenerateCallbacks {
  std::function<void(const v1::GenerateResponse&)> on_event;
  std::function<void(const absl::Status&)> on_done;  // once, last
};

template <typename Response>
using UnaryCallback = std::function<void(absl::StatusOr<Response>)>;

// Every method is called on the executor, and so is every callback; never from within the method.
// The executor's context stays busy until each call has ended. Messages of errors are fit for
// clients: the coordinator's address is not in them.
class InferenceClient {
 public:
  InferenceClient(boost::asio::any_io_executor executor, const std::string& address);
  ~InferenceClient();

  // Starts a generation. The function that is returned cancels it: no callback comes afterwards and
  // the coordinator stops the work. Events are read one at a time, the next one when the callback
  // of the last one has returned.
  std::function<void()> Generate(v1::GenerateRequest request, std::chrono::milliseconds timeout,
                                 GenerateCallbacks callbacks);
  void Tokenize(v1::TokenizeRequest request, UnaryCallback<v1::TokenizeResponse> done);
  void Detokenize(v1::DetokenizeRequest request, UnaryCallback<v1::DetokenizeResponse> done);
  void Status(UnaryCallback<v1::StatusResponse> done);
  void Metrics(UnaryCallback<v1::MetricsResponse> done);

 private:
  struct Impl;  // keeps gRPC out of this header
  const std::unique_ptr<Impl> impl_;
};

}  // namespace warpline
