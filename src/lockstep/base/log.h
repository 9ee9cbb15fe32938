// Lines for people, on standard error. Information is said once (rank 0), warnings and errors by every rank with its
// number; `show_all_ranks` lifts the first rule, `also_to_file` keeps every rank's lines apart in a file of its own.
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/text.h"

namespace lockstep::log {

struct Options {
  int rank = 0;
  int world_size = 1;
  bool show_all_ranks = false;
  std::string also_to_file;  // empty: none
};

// Applies to the whole process from now on. throws InvalidArgument when the file cannot be written.
// With ranks as threads, `rank` is per thread: see set_thread_rank.
void configure(const Options& options);
void set_thread_rank(int rank);

void write_info(std::string_view line);
void write_warning(std::string_view line);
void write_error(std::string_view line);

template <class... Parts>
void info(const Parts&... parts) {
  write_info(text(parts...));
}
template <class... Parts>
void warning(const Parts&... parts) {
  write_warning(text(parts...));
}
template <class... Parts>
void error(const Parts&... parts) {
  write_error(text(parts...));
}

}  // namespace lockstep::log
