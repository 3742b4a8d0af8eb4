#include "coordinator/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"

namespace warpline {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;

Counter& AddCounter(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add({});
}

Gauge& AddGauge(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({});
}

prometheus::Family<Counter>& AddFamily(prometheus::Registry& registry, const char* name,
                                       const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}

const Histogram::BucketBoundaries kFirstTokenSeconds = {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                                        1,     2.5,  5,     10,   25,  60,   120};
const Histogram::BucketBoundaries kInterTokenSeconds = {
    0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5};

// What a counter has grown by; a smaller total comes from a new process.
double Growth(double now, double before) { return now >= before ? now - before : now; }

}  // namespace

struct Metrics::Impl {
  prometheus::Registry registry;
  Gauge& ready = AddGauge(registry, "warpline_ready", "1 while requests are taken");
  Gauge& epoch = AddGauge(registry, "warpline_epoch", "Assignments of the stages so far");
  Gauge& queued = AddGauge(registry, "warpline_queue_length", "Requests that wait for a slot");
  Gauge& running = AddGauge(registry, "warpline_running_sequences", "Sequences that run");
  Gauge& slots_used = AddGauge(registry, "warpline_slots_used", "KV slots in use");
  Gauge& slots = AddGauge(registry, "warpline_slots", "KV slots");
  Gauge& pages_used = AddGauge(registry, "warpline_pages_used", "KV pages in use");
  Gauge& pages = AddGauge(registry, "warpline_pages", "KV pages");
  prometheus::Family<Counter>& requests =
      AddFamily(registry, "warpline_requests_total", "Requests that ended, by outcome");
  Counter& prompt_tokens =
      AddCounter(registry, "warpline_prompt_tokens_total", "Prompt tokens read");
  Counter& generated_tokens =
      AddCounter(registry, "warpline_generated_tokens_total", "Tokens generated");
  prometheus::Family<Counter>& steps = AddFamily(registry, "warpline_steps_total", "Steps sent");
  Counter& prompt_steps = steps.Add({{"kind", "prompt"}});
  Counter& decode_steps = steps.Add({{"kind", "decode"}});
  Counter& cancelled = AddCounter(registry, "warpline_cancelled_total", "Requests cancelled");
  Counter& slow_clients = AddCounter(registry, "warpline_slow_clients_total",
                                     "Streams given up because the client read too slowly");
  Counter& non_finite = AddCounter(registry, "warpline_non_finite_requests_total",
                                   "Requests ended by non-finite values");
  Counter& stale = AddCounter(registry, "warpline_stale_results_total",
                              "Replies of stages about what is no more");
  Histogram& first_token = prometheus::BuildHistogram()
                               .Name("warpline_time_to_first_token_seconds")
                               .Help("From a request's arrival to its first token")
                               .Register(registry)
                               .Add({}, kFirstTokenSeconds);
  Histogram& inter_token = prometheus::BuildHistogram()
                               .Name("warpline_inter_token_seconds")
                               .Help("Between two tokens of a request")
                               .Register(registry)
                               .Add({}, kInterTokenSeconds);
  prometheus::Family<Counter>& restarts =
      AddFamily(registry, "warpline_stage_restarts_total", "New worker processes of a stage");
  prometheus::Family<Counter>& stage_steps =
      AddFamily(registry, "warpline_stage_steps_total", "Steps a stage has run");
  prometheus::Family<Counter>& stage_rows =
      AddFamily(registry, "warpline_stage_rows_total", "Rows a stage has run");
  prometheus::Family<Counter>& stage_busy =
      AddFamily(registry, "warpline_stage_busy_seconds_total", "Time a stage has computed");
  prometheus::Family<Counter>& stage_wait = AddFamily(registry, "warpline_stage_wait_seconds_total",
                                                      "Time a stage has waited for an edge credit");
  prometheus::Family<Counter>& stage_dropped =
      AddFamily(registry, "warpline_stage_dropped_entries_total",
                "Entries of failed or unknown sequences that a stage dropped");
  prometheus::Family<Counter>& stage_non_finite =
      AddFamily(registry, "warpline_stage_non_finite_entries_total",
                "Entries in which a stage met non-finite values");
  prometheus::Family<Counter>& stage_refused =
      AddFamily(registry, "warpline_stage_refused_messages_total",
                "Malformed edge messages that a stage refused");
  prometheus::Family<Counter>& ple_requested = AddFamily(
      registry, "warpline_ple_rows_requested_total", "Rows of the n-gram table that steps needed");
  prometheus::Family<Counter>& ple_hits =
      AddFamily(registry, "warpline_ple_cache_hits_total", "Rows that were in memory already");
  prometheus::Family<Counter>& ple_read = AddFamily(registry, "warpline_ple_rows_read_total",
                                                    "Rows read from the table, also ahead of need");
  prometheus::Family<Counter>& ple_changes =
      AddFamily(registry, "warpline_ple_mode_changes_total",
                "Times that another way to read the table was found faster");
  prometheus::Family<Counter>& ple_errors =
      AddFamily(registry, "warpline_ple_errors_total", "Batches of rows that could not be read");
  prometheus::Family<Counter>& ple_slow =
      AddFamily(registry, "warpline_ple_slow_batches_total", "Reads of the table that were slow");
  prometheus::Family<Gauge>& ple_mode = prometheus::BuildGauge()
                                            .Name("warpline_ple_mode")
                                            .Help("1 for the way in which the table is read now")
                                            .Register(registry);
  prometheus::Family<Gauge>& stage_open = prometheus::BuildGauge()
                                              .Name("warpline_stage_open_sequences")
                                              .Help("Sequences open on a stage")
                                              .Register(registry);
  Counter& dropped_log_lines = AddCounter(registry, "warpline_dropped_log_lines_total",
                                          "Log lines lost to a blocked stderr");
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {
  prometheus::BuildGauge()
      .Name("warpline_build_info")
      .Help("The version that runs")
      .Register(impl_->registry)
      .Add({{"version", WARPLINE_VERSION}})
      .Set(1);
  impl_->requests.Add({{"outcome", "ok"}});  // Shown from the start, also before the first request.
}

Metrics::~Metrics() = default;

void Metrics::SetGauges(const EngineGauges& gauges) {
  impl_->ready.Set(gauges.ready ? 1 : 0);
  impl_->epoch.Set(static_cast<double>(gauges.epoch));
  impl_->queued.Set(gauges.queued);
  impl_->running.Set(gauges.running);
  impl_->slots_used.Set(gauges.slots_used);
  impl_->slots.Set(gauges.slots);
  impl_->pages_used.Set(static_cast<double>(gauges.pages_used));
  impl_->pages.Set(static_cast<double>(gauges.pages));
}

void Metrics::CountRequest(const absl::Status& status) {
  const std::string outcome = absl::AsciiStrToLower(absl::StatusCodeToString(status.code()));
  impl_->requests.Add({{"outcome", outcome}}).Increment();
  if (absl::IsCancelled(status)) impl_->cancelled.Increment();
}

void Metrics::CountPromptTokens(int64_t count) {
  impl_->prompt_tokens.Increment(static_cast<double>(count));
}
void Metrics::CountGeneratedToken() { impl_->generated_tokens.Increment(); }
void Metrics::CountStep(bool is_prompt) {
  (is_prompt ? impl_->prompt_steps : impl_->decode_steps).Increment();
}
void Metrics::ObserveTimeToFirstToken(double seconds) { impl_->first_token.Observe(seconds); }
void Metrics::ObserveInterToken(double seconds) { impl_->inter_token.Observe(seconds); }
void Metrics::CountStaleResult() { impl_->stale.Increment(); }
void Metrics::CountNonFinite() { impl_->non_finite.Increment(); }
void Metrics::CountSlowClient() { impl_->slow_clients.Increment(); }

void Metrics::CountStageRestart(int stage) {
  impl_->restarts.Add({{"stage", absl::StrCat(stage)}}).Increment();
}

void Metrics::AddStageCounters(int stage, const v1::StageCounters& counters,
                               StageCounterTotals& totals) {
  const std::string label = absl::StrCat(stage);
  const v1::StageCounters& last = totals.last;
  const auto add = [&label](prometheus::Family<Counter>& family, double now, double before) {
    family.Add({{"stage", label}}).Increment(Growth(now, before));
  };
  const auto whole = [](uint64_t value) { return static_cast<double>(value); };
  add(impl_->stage_steps, whole(counters.steps()), whole(last.steps()));
  add(impl_->stage_rows, whole(counters.rows()), whole(last.rows()));
  add(impl_->stage_busy, counters.busy_seconds(), last.busy_seconds());
  add(impl_->stage_wait, counters.wait_seconds(), last.wait_seconds());
  add(impl_->stage_dropped, whole(counters.dropped_entries()), whole(last.dropped_entries()));
  add(impl_->stage_non_finite, whole(counters.non_finite_entries()),
      whole(last.non_finite_entries()));
  add(impl_->stage_refused, whole(counters.refused_messages()), whole(last.refused_messages()));
  impl_->stage_open.Add({{"stage", label}}).Set(whole(counters.open_sequences()));
  if (counters.has_ple()) {
    const v1::PleCounters& ple = counters.ple();
    add(impl_->ple_requested, whole(ple.rows_requested()), whole(last.ple().rows_requested()));
    add(impl_->ple_hits, whole(ple.cache_hits()), whole(last.ple().cache_hits()));
    add(impl_->ple_read, whole(ple.rows_read()), whole(last.ple().rows_read()));
    add(impl_->ple_changes, whole(ple.mode_changes()), whole(last.ple().mode_changes()));
    add(impl_->ple_errors, whole(ple.errors()), whole(last.ple().errors()));
    add(impl_->ple_slow, whole(ple.slow_batches()), whole(last.ple().slow_batches()));
    if (last.has_ple() && last.ple().mode() != ple.mode()) {
      impl_->ple_mode.Add({{"stage", label}, {"mode", last.ple().mode()}}).Set(0);
    }
    impl_->ple_mode.Add({{"stage", label}, {"mode", ple.mode()}}).Set(1);
  }
  totals.last = counters;
}

std::string Metrics::Text() const {
  const double dropped = static_cast<double>(DroppedLogLines());
  impl_->dropped_log_lines.Increment(dropped - impl_->dropped_log_lines.Value());
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

}  // namespace warpline
