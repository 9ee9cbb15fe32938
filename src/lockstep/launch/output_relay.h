// Passes on what the ranks print, line by line, each with the rank's number before it.
//
// A thread of its own does so: when whoever reads our output is slow, ranks wait with their output, but the launcher
// does not wait with watching them.
#pragma once

#include <string>
#include <thread>
#include <vector>

namespace lockstep::launch {

class OutputRelay {
 public:
  // Takes over reading ends of pipes. Lines of one stream stay whole.
  struct Stream {
    int pipe = -1;
    int to = 1;  // descriptor
    std::string prefix;
    std::string partial_line;
  };

  // Starts reading; after the children have been forked, which must not happen beside another thread.
  void start(std::vector<Stream> streams);
  // Returns when every stream has ended.
  void finish();
  ~OutputRelay() { finish(); }

 private:
  void run();
  static bool pass_on(Stream& stream);

  std::vector<Stream> streams_;
  std::thread thread_;
};

}  // namespace lockstep::launch
