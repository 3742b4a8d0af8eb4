#include "client/cli/eval_command.h"

#include <boost/json.hpp>
#include <cstring>
#include <fstream>
#include <iostream>
#include <memory>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/cli/connection.h"
#include "client/cli/eval_metrics.h"
#include "client/cli/progress_bar.h"

namespace warpline {
namespace {

struct EvalOptions {
  ConnectionOptions connection;
  std::string tokens_file;
  std::string logits_file;
  std::string reference_file;
  int64_t decode_from = 0;
  int64_t logits_last = 0;
};

// The field `tokens` of a JSON file.
absl::StatusOr<std::vector<int32_t>> ReadTokens(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  boost::json::error_code error;
  const boost::json::value document = boost::json::parse(text.str(), error);
  const boost::json::object* const object = error ? nullptr : document.if_object();
  const boost::json::value* const tokens =
      object == nullptr ? nullptr : object->if_contains("tokens");
  if (tokens == nullptr || !tokens->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": expected a JSON object with a list `tokens`"));
  }
  std::vector<int32_t> ids;
  for (const boost::json::value& token : tokens->get_array()) {
    const int64_t* const id = token.if_int64();
    if (id == nullptr || *id < 0 || *id > INT32_MAX) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": tokens[", ids.size(), "] is no token id"));
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

// Takes rows as they come: writes them, and compares them with the reference file when there is
// one.
class RowSink {
 public:
  static absl::StatusOr<RowSink> Open(const EvalOptions& options) {
    RowSink sink;
    if (!options.logits_file.empty()) {
      sink.out_.open(options.logits_file, std::ios::binary | std::ios::trunc);
      if (!sink.out_)
        return absl::PermissionDeniedError(absl::StrCat("cannot write ", options.logits_file));
    }
    if (!options.reference_file.empty()) {
      sink.reference_.open(options.reference_file, std::ios::binary);
      if (!sink.reference_)
        return absl::NotFoundError(absl::StrCat("cannot read ", options.reference_file));
      sink.has_reference_ = true;
    }
    return sink;
  }

  absl::Status Add(const v1::EvaluateResponse& rows, absl::Span<const int32_t> tokens) {
    const size_t width = rows.vocab_size();
    if (rows.values().size() != width * rows.row_count() * sizeof(float)) {
      return absl::InternalError("the coordinator sent rows of a wrong size");
    }
    if (out_.is_open())
      out_.write(rows.values().data(), static_cast<std::streamsize>(rows.values().size()));
    if (out_.is_open() && !out_)
      return absl::ResourceExhaustedError("cannot write the logits: is the disk full?");
    std::vector<float> row(width);
    std::vector<float> expected(width);
    for (size_t index = 0; index < rows.row_count(); ++index) {
      std::memcpy(row.data(), rows.values().data() + index * width * sizeof(float),
                  width * sizeof(float));
      const size_t next = rows.first_position() + index + 1;
      if (next < tokens.size()) perplexity.Add(row, tokens[next]);
      if (!has_reference_) continue;
      reference_.read(reinterpret_cast<char*>(expected.data()),
                      static_cast<std::streamsize>(width * sizeof(float)));
      if (!reference_)
        return absl::InvalidArgumentError("the reference has fewer values than the logits");
      comparison.Add(row, expected);
    }
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (out_.is_open()) out_.close();
    if (out_.fail())
      return absl::ResourceExhaustedError("cannot write the logits: is the disk full?");
    if (has_reference_ && reference_.peek() != std::ifstream::traits_type::eof()) {
      return absl::InvalidArgumentError("the reference has more values than the logits");
    }
    return absl::OkStatus();
  }

  Perplexity perplexity;
  LogitComparison comparison;

 private:
  std::ofstream out_;
  std::ifstream reference_;
  bool has_reference_ = false;
};

absl::Status Evaluate(InferenceClient& client, const EvalOptions& options,
                      const std::vector<int32_t>& tokens) {
  WL_ASSIGN_OR_RETURN(RowSink sink, RowSink::Open(options));
  v1::EvaluateRequest request;
  request.mutable_tokens()->Assign(tokens.begin(), tokens.end());
  request.set_decode_from(options.decode_from);
  request.set_logits_last(static_cast<uint32_t>(options.logits_last));
  ProgressBar bar;
  const SteadyTime begin = Now();
  WL_RETURN_IF_ERROR(client.Evaluate(request, [&](const v1::EvaluateResponse& rows) {
    const size_t done = rows.first_position() + rows.row_count();
    bar.Show(absl::StrCat(done, " of ", tokens.size(), " tokens"),
             static_cast<double>(done) / static_cast<double>(tokens.size()));
    return sink.Add(rows, tokens);
  }));
  bar.Clear();
  WL_RETURN_IF_ERROR(sink.Finish());
  std::cout << absl::StrFormat("tokens %d in %.2f s\n", tokens.size(), SecondsSince(begin));
  if (sink.perplexity.count() > 0) {
    std::cout << absl::StrFormat("perplexity %.6g over %d tokens\n", sink.perplexity.value(),
                                 sink.perplexity.count());
  }
  if (sink.comparison.row_count() > 0) {
    std::cout << absl::StrFormat(
        "nmse %.6g\nkl_divergence %.6g\nargmax_agreement %.6f over %d rows\n",
        sink.comparison.nmse(), sink.comparison.kl_divergence(), sink.comparison.argmax_agreement(),
        sink.comparison.row_count());
  }
  std::cout << std::flush;
  return absl::OkStatus();
}

int RunEval(const EvalOptions& options, const std::string& log_level) {
  const absl::StatusOr<std::vector<int32_t>> tokens = ReadTokens(options.tokens_file);
  if (!tokens.ok()) return ReportFailure(tokens.status());
  Connection connection(options.connection, log_level);
  if (connection.exit_code() >= 0) return connection.exit_code();
  const absl::Status status = Evaluate(connection.client(), options, *tokens);
  return status.ok() ? kExitOk : ReportFailure(status);
}

}  // namespace

Command MakeEvalCommand(CLI::App& app, Flags& flags) {
  CLI::App* const command = app.add_subcommand("eval", "Compute logits and perplexity of tokens");
  auto options = std::make_shared<EvalOptions>();
  ServiceOptions& service = options->connection.service;
  service.parallel = 1;
  service.no_gateway = true;
  service.grpc_port = -1;
  AddConnectionOptions(flags, *command, options->connection);
  flags.Add(*command, "--tokens", options->tokens_file, "JSON file with a list `tokens`")
      ->required();
  flags.Add(*command, "--logits", options->logits_file,
            "Write little-endian float32 [tokens, vocabulary] there");
  flags.Add(*command, "--reference", options->reference_file,
            "Compare with the logits in this file: NMSE, KL, argmax agreement");
  flags
      .Add(*command, "--decode-from", options->decode_from,
           "From this position on one token at a time, by decode steps (0: never)")
      ->check(IntegerRange(0, int64_t{1} << 24));
  flags.Add(*command, "--logits-last", options->logits_last, "Only the last N rows (0: all)")
      ->check(IntegerRange(0, INT32_MAX));
  return {.app = command, .run = [options, &app] {
            const CLI::Option* const level = app.get_option("--log-level");
            return RunEval(*options, level->count() > 0 ? level->as<std::string>() : "warning");
          }};
}

}  // namespace warpline
