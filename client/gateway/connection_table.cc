#include "client/gateway/connection_table.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "client/gateway/session.h"

namespace warpline {

void ConnectionTable::Add(Session* session) {
  sessions_.insert(session);
  metrics_.connections.Set(static_cast<double>(sessions_.size()));
}

void ConnectionTable::Remove(Session* session) {
  sessions_.erase(session);
  metrics_.connections.Set(static_cast<double>(sessions_.size()));
}

bool ConnectionTable::CloseOldestIdle() {
  Session* oldest = nullptr;
  for (Session* const session : sessions_) {
    if (!session->idle()) continue;
    if (oldest == nullptr || session->idle_since() < oldest->idle_since()) oldest = session;
  }
  if (oldest == nullptr) return false;
  oldest->Close();
  return true;
}

bool ConnectionTable::AllIdle() const {
  return std::all_of(sessions_.begin(), sessions_.end(),
                     [](const Session* session) { return session->idle(); });
}

void ConnectionTable::StartDraining() {
  draining_ = true;
  ForEach([](Session& session) {
    if (session.idle()) session.Close();
  });
}

void ConnectionTable::ForEach(const std::function<void(Session&)>& visit) {
  std::vector<std::shared_ptr<Session>> alive;
  for (Session* const session : sessions_) {
    if (std::shared_ptr<Session> kept = session->weak_from_this().lock()) {
      alive.push_back(std::move(kept));
    }
  }
  for (const std::shared_ptr<Session>& session : alive) visit(*session);
}

}  // namespace warpline
