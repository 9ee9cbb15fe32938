// lockstep flight: the records that ranks leave when a call between them fails, as one picture.
#include <iostream>

#include "command.h"
#include "lockstep/comm/flight_recorder.h"

namespace lockstep::cli {

void add_flight(CLI::App& app, Chosen& chosen) {
  CLI::App* command = app.add_subcommand("flight", "shows which rank was in which call when a run failed");
  command->footer("Example: lockstep flight runs/shakespeare");
  const auto folder = std::make_shared<std::string>();
  command->add_option("folder", *folder, "where ranks wrote flight.rankN.json: a run's directory")->required();
  command->callback([&chosen, folder] {
    chosen = [folder] {
      std::cout << comm::merge_flight_records(*folder);
      return 0;
    };
  });
}

}  // namespace lockstep::cli
