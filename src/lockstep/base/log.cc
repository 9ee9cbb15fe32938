#include "lockstep/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <mutex>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep::log {
namespace {

struct State {
  std::mutex mutex;
  Options options;
  std::shared_ptr<spdlog::logger> terminal;
  std::shared_ptr<spdlog::logger> file;

  State() {
    terminal = std::make_shared<spdlog::logger>("terminal", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    terminal->set_pattern("%v");
    terminal->flush_on(spdlog::level::info);
  }
};

State& state() {
  static State* const instance = new State;  // never destroyed: threads may log until the process ends
  return *instance;
}

thread_local int thread_rank = -1;

void write(spdlog::level::level_enum level, std::string_view line) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  const int rank = thread_rank >= 0 ? thread_rank : s.options.rank;
  const bool is_info = level == spdlog::level::info;
  if (s.file) s.file->log(level, "{}", line);
  if (is_info && rank != 0 && !s.options.show_all_ranks) return;
  const bool name_rank = s.options.world_size > 1 && (!is_info || s.options.show_all_ranks);
  std::string prefix = name_rank ? text("rank ", rank, ": ") : "";
  if (!is_info && line.starts_with(prefix))
    line.remove_prefix(prefix.size());  // errors of comm/ name their rank themselves
  const char* const kind = level == spdlog::level::warn ? "warning: " : level == spdlog::level::err ? "error: " : "";
  s.terminal->log(level, "{}{}{}", prefix, kind, line);
}

}  // namespace

void configure(const Options& options) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.options = options;
  s.file.reset();
  if (options.also_to_file.empty()) return;
  try {
    auto sink = std::make_shared<spdlog::sinks::basic_file_sink_mt>(options.also_to_file, true);
    s.file = std::make_shared<spdlog::logger>("file", sink);
    s.file->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
    s.file->flush_on(spdlog::level::info);
  } catch (const spdlog::spdlog_ex& error) {
    throw InvalidArgument(text("cannot write the log ", options.also_to_file, ": ", error.what()));
  }
}

void set_thread_rank(int rank) {
  thread_rank = rank;
}
void write_info(std::string_view line) {
  write(spdlog::level::info, line);
}
void write_warning(std::string_view line) {
  write(spdlog::level::warn, line);
}
void write_error(std::string_view line) {
  write(spdlog::level::err, line);
}

}  // namespace lockstep::log
