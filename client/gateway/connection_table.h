// The open connections of a gateway. Used on its executor.
#pragma once

#include <cstddef>
#include <functional>
#include <unordered_set>

#include "base/clock.h"
#include "client/gateway/gateway_metrics.h"

namespace warpline {

class Session;

// Sessions add and remove themselves.
class ConnectionTable {
 public:
  explicit ConnectionTable(GatewayMetrics& metrics) : metrics_(metrics) {}

  void Add(Session* session);
  void Remove(Session* session);
  size_t size() const { return sessions_.size(); }
  // Closes the connection that has waited longest for a request; false when none waits.
  bool CloseOldestIdle();
  // No connection has a request.
  bool AllIdle() const;
  // From now on answers close their connections; idle ones are closed at once.
  void StartDraining();
  bool draining() const { return draining_; }
  // For each connection of now, also when it goes away meanwhile.
  void ForEach(const std::function<void(Session&)>& visit);

 private:
  GatewayMetrics& metrics_;
  std::unordered_set<Session*> sessions_;
  bool draining_ = false;
};

}  // namespace warpline
