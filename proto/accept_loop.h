// Accepts the connections of a server on sockets of its own. The packaged gRPC stops listening for
// good, without a word, when it once has no descriptor left for a connection.
#pragma once

#include <functional>
#include <thread>
#include <vector>

#include "base/unique_fd.h"

namespace warpline {

class AcceptLoop {
 public:
  // `take` is called by the loop's thread with each new connection, which does not block, and the
  // listener that it came by. When descriptors or memory have run out the loop waits and tries on;
  // the clients wait in the listener's queue meanwhile.
  AcceptLoop(std::vector<UniqueFd> listeners, std::function<void(int listener, UniqueFd)> take);
  // Stops and closes the listeners.
  ~AcceptLoop();
  AcceptLoop(const AcceptLoop&) = delete;
  AcceptLoop& operator=(const AcceptLoop&) = delete;

 private:
  void Run();
  void Accept(int listener);

  const std::vector<UniqueFd> listeners_;
  const std::function<void(int listener, UniqueFd)> take_;
  const UniqueFd stop_;   // an eventfd
  bool failing_ = false;  // The thread's.
  std::thread thread_;
};

}  // namespace warpline
