// The public service of a coordinator over gRPC: one reactor for each call.
#pragma once

#include <chrono>
#include <memory>

#include "coordinator/engine.h"
#include "coordinator/metrics.h"
#include "coordinator/served_model.h"
#include "coordinator/tokenizer_pool.h"
#include "proto/inference.grpc.pb.h"

namespace warpline {

// What the calls share. Borrowed from main, which ends the server first.
struct ServiceContext {
  const ServedModel& model;
  Engine& engine;
  TokenizerPool& pool;
  Metrics& metrics;
  std::chrono::seconds request_limit;  // for a stream whose client has set no deadline
};

// generate_service.cc, evaluate_service.cc
grpc::ServerBidiReactor<v1::GenerateRequest, v1::GenerateResponse>* StartGenerate(
    const ServiceContext& context, grpc::CallbackServerContext& call);
grpc::ServerBidiReactor<v1::EvaluateRequest, v1::EvaluateResponse>* StartEvaluate(
    const ServiceContext& context, grpc::CallbackServerContext& call);

// Thread-safe. One object for each server: the same service cannot be part of two.
class InferenceService final : public v1::Inference::CallbackService {
 public:
  explicit InferenceService(const ServiceContext& context);

  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* call,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* call,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* call,
                                   const v1::StatusRequest* request,
                                   v1::StatusResponse* response) override;
  grpc::ServerUnaryReactor* Metrics(grpc::CallbackServerContext* call,
                                    const v1::MetricsRequest* request,
                                    v1::MetricsResponse* response) override;

 private:
  const ServiceContext context_;
};

}  // namespace warpline
