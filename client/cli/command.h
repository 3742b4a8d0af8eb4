// One subcommand of `warpline`: its options are in `app`; `run` gives the exit code.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace warpline {

struct Command {
  CLI::App* app = nullptr;
  std::function<int()> run;
};

}  // namespace warpline
