// A command of the command line: its name, what it does, its options and the function that runs it. A new command is
// one file and one line in the list of main.cc.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/spec/plan.h"

namespace lockstep::cli {

// Adds the command to `app`. The function stored in `chosen` when the user picks it returns the exit code.
using Chosen = std::function<int()>;
using AddCommand = void (*)(CLI::App& app, Chosen& chosen);

void add_train(CLI::App& app, Chosen& chosen);
void add_launch(CLI::App& app, Chosen& chosen);
void add_generate(CLI::App& app, Chosen& chosen);
void add_verify(CLI::App& app, Chosen& chosen);
void add_bench(CLI::App& app, Chosen& chosen);
void add_flight(CLI::App& app, Chosen& chosen);
void add_trace(CLI::App& app, Chosen& chosen);
void add_schedule(CLI::App& app, Chosen& chosen);
void add_calibrate(CLI::App& app, Chosen& chosen);
void add_doctor(CLI::App& app, Chosen& chosen);

// This program's own file, to start ranks with.
std::string own_path();

// This process's arguments as it was started, own_path() first.
std::vector<std::string> own_command_line();
void remember_command_line(int argc, char** argv);

std::vector<std::string> split_list(const std::string& comma_separated);

// Throw InvalidArgument, whose one line names the field or option, its value, the rule and the nearest value that
// works.
[[noreturn]] void refuse(const std::string& field, const std::string& value, const std::string& rule,
                         const std::string& nearest = "");
[[noreturn]] void refuse_name(const std::string& field, const std::string& value,
                              const std::vector<std::string>& known);

// Checks of an option's value, for CLI::Option::check: they refuse.
CLI::Validator one_of(std::string option, std::vector<std::string> names);
template <class Number>
CLI::Validator within(std::string option, Number lowest, Number highest) {
  return {[=](const std::string& value) {
            Number number{};
            const std::string rule = text("must be a number, ", lowest, " to ", highest);
            if (!CLI::detail::lexical_cast(value, number)) refuse(option, value, rule);
            if (number >= lowest && number <= highest) return std::string();
            refuse(option, value, rule, text(number < lowest ? lowest : highest));
          },
          ""};
}

}  // namespace lockstep::cli
