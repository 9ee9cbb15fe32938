#include "lockstep/base/units.h"

#include <cmath>
#include <cstdlib>

#include "lockstep/base/error.h"

namespace lockstep {

int64_t parse_size(std::string_view value, std::string_view field) {
  const std::string copy(value);
  char* end = nullptr;
  const double number = std::strtod(copy.c_str(), &end);
  double unit = 1;
  switch (*end) {
    case 'k':
    case 'K':
      unit = 1024.0;
      ++end;
      break;
    case 'm':
    case 'M':
      unit = 1024.0 * 1024;
      ++end;
      break;
    case 'g':
    case 'G':
      unit = 1024.0 * 1024 * 1024;
      ++end;
      break;
    default:
      break;
  }
  if (end == copy.c_str() || *end != '\0' || !(number >= 0) || number * unit > 9e18) {
    throw InvalidArgument(Problem{std::string(field), copy, "must be a size such as 64, 4K, 64M or 1G", ""}.message());
  }
  return static_cast<int64_t>(std::llround(number * unit));
}

std::string format_size(int64_t bytes) {
  const char* const units[] = {"", "K", "M", "G", "T"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  std::ostringstream out;
  out.precision(value < 10 && unit > 0 ? 2 : 4);
  out << value << units[unit];
  return out.str();
}

}  // namespace lockstep
