// For tests that hold a page of documentation to what the code draws: blocks of text after a mark
//
//   <!-- draw WORDS -->
//   ```text
//   ...
//   ```
#pragma once

#include <fstream>
#include <functional>
#include <sstream>
#include <string>

namespace lockstep {

inline std::string read_page(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path).rdbuf();
  return content.str();
}

// The page with each such block made anew from its words.
inline std::string redrawn(const std::string& page, const std::function<std::string(const std::string& words)>& draw) {
  const std::string mark = "<!-- draw ", mark_end = " -->\n```text\n", block_end = "```\n";
  std::string result;
  size_t at = 0;
  for (size_t found = page.find(mark); found != std::string::npos; found = page.find(mark, at)) {
    const size_t words = found + mark.size(), words_end = page.find(mark_end, words);
    if (words_end == std::string::npos) break;
    const size_t block = words_end + mark_end.size();
    result += page.substr(at, block - at) + draw(page.substr(words, words_end - words));
    at = page.find(block_end, block);
  }
  return result + page.substr(at);
}

}  // namespace lockstep
