// lockstep trace compare: a recorded run laid over its prediction.
#include <iostream>

#include "command.h"
#include "trace_report.h"

namespace lockstep::cli {

void add_trace(CLI::App& app, Chosen& chosen) {
  CLI::App* command = app.add_subcommand("trace", "reads the traces of runs");
  command->require_subcommand(1);
  CLI::App* compare =
      command->add_subcommand("compare",
                              "lays a recorded run over its prediction, term by term; exit 1 when ranks did "
                              "other actions than predicted");
  compare->footer("Example: lockstep trace compare runs/shakespeare");
  const auto paths = std::make_shared<std::vector<std::string>>();
  const auto as_json = std::make_shared<bool>(false);
  compare
      ->add_option("paths", *paths,
                   "RUN, a folder with simulated.json and trace.json; or PREDICTED RECORDED, two files")
      ->required()
      ->expected(1, 2);
  compare->add_flag("--json", *as_json, "print one JSON document");
  compare->callback([&chosen, paths, as_json] {
    chosen = [paths, as_json] {
      const trace::TraceComparison comparison =
          paths->size() == 1 ? compare_run(paths->front()) : compare_files(paths->front(), paths->back());
      if (*as_json) {
        std::cout << to_json(comparison).dump(1) << "\n";
      } else {
        std::cout << timelines(comparison) << "\n" << table(comparison);
      }
      return comparison.difference.empty() ? 0 : 1;
    };
  });
}

}  // namespace lockstep::cli
