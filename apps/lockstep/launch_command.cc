#include "command.h"
#include "lockstep/launch/launch.h"

namespace lockstep::cli {

void add_launch(CLI::App& app, Chosen& chosen) {
  struct Options {
    int ranks = 2;
    std::vector<std::string> command;
  };
  CLI::App* command = app.add_subcommand("launch", "starts any program as N ranks on this machine");
  command->footer("Example: lockstep launch --ranks 2 -- ./my_program");
  const auto options = std::make_shared<Options>();
  command->add_option("--ranks", options->ranks, "processes to start")
      ->check(within("--ranks", 1, 1024))
      ->capture_default_str();
  command->add_option("program", options->command, "-- PROGRAM [ARGS]")->required();
  command->callback([&chosen, options] {
    chosen = [options] {
      return launch::launch({.ranks = options->ranks, .command = options->command, .prefix_output = true});
    };
  });
}

}  // namespace lockstep::cli
