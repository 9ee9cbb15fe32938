// lockstep COMMAND ...: picks the command and turns errors into one line and an exit code.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "command.h"
#include "lockstep/base/log.h"

namespace lockstep::cli {
namespace {

constexpr std::array<AddCommand, 10> kCommands = {add_train,    add_launch, add_generate, add_verify,    add_bench,
                                                  add_schedule, add_trace,  add_flight,   add_calibrate, add_doctor};
constexpr std::array<std::string_view, 6> kLater = {"machine", "estimate", "plan", "scaling", "studio", "--resume"};

std::vector<std::string>& command_line() {
  static std::vector<std::string> arguments;
  return arguments;
}

// CLI11 explains at length; we say one line.
int usage_error(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& arguments) {
  std::string message = error.what();
  const auto later = std::find_first_of(arguments.begin(), arguments.end(), kLater.begin(), kLater.end());
  if (later != arguments.end()) {
    message = text(*later, ": not supported yet by this version");
  } else if (arguments.size() > 1 && !arguments[1].starts_with("-") && app.get_subcommands().empty()) {
    std::vector<std::string> known;
    for (const CLI::App* command : app.get_subcommands(nullptr)) known.push_back(command->get_name());
    message =
        Problem{"command", arguments[1], "must be one of " + join(known), nearest_name(arguments[1], known)}.message();
  }
  std::string path;
  for (const CLI::App* chosen = &app; !chosen->get_subcommands().empty();) {
    chosen = chosen->get_subcommands().front();
    path += chosen->get_name() + " ";
  }
  log::error(message, "; see lockstep ", path.empty() ? "help" : path + "--help");
  return 2;
}

int run(int argc, char** argv) {
  remember_command_line(argc, argv);
  CLI::App app("lockstep: distributed training of neural networks on libtorch", "lockstep");
  app.require_subcommand(1);
  Chosen chosen;
  for (const AddCommand add : kCommands) add(app, chosen);
  app.set_help_flag("-h,--help", "this text; after a command, the command's");
  try {
    if (argc == 2 && std::string_view(argv[1]) == "help") throw CLI::CallForHelp();
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    std::cout << app.help();
    return 0;
  } catch (const CLI::ParseError& error) {
    return usage_error(app, error, own_command_line());
  }
  return chosen();
}

}  // namespace

std::string own_path() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

void remember_command_line(int argc, char** argv) {
  command_line().assign(argv, argv + argc);
  command_line().front() = own_path();
}

std::vector<std::string> own_command_line() {
  return command_line();
}

std::vector<std::string> split_list(const std::string& comma_separated) {
  std::vector<std::string> result;
  std::stringstream stream(comma_separated);
  for (std::string item; std::getline(stream, item, ',');) {
    if (!item.empty()) result.push_back(item);
  }
  return result;
}

void refuse(const std::string& field, const std::string& value, const std::string& rule, const std::string& nearest) {
  throw InvalidArgument(Problem{field, value, rule, nearest}.message());
}

void refuse_name(const std::string& field, const std::string& value, const std::vector<std::string>& known) {
  refuse(field, value, "must be one of " + join(known), nearest_name(value, known));
}

CLI::Validator one_of(std::string option, std::vector<std::string> names) {
  return {[option = std::move(option), names = std::move(names)](const std::string& value) {
            if (std::ranges::find(names, value) != names.end()) return std::string();
            refuse_name(option, value, names);
          },
          ""};
}

}  // namespace lockstep::cli

int main(int argc, char** argv) {
  try {
    return lockstep::cli::run(argc, argv);
  } catch (const lockstep::Error& error) {
    lockstep::log::error(error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    lockstep::log::error("internal error: ", error.what());
    return 70;
  }
}
