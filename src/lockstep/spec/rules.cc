#include "lockstep/spec/rules.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lockstep::spec {

std::string nearest_values(int64_t value, int64_t low, int64_t high, const std::function<bool(int64_t)>& works) {
  constexpr int64_t kReach = 100'000;
  std::vector<int64_t> found;
  const int64_t from = std::clamp(value, low, high);
  for (int64_t below = from; below >= low && from - below <= kReach; --below) {
    if (works(below)) {
      found.push_back(below);
      break;
    }
  }
  for (int64_t above = from + 1; above <= high && above - from <= kReach; ++above) {
    if (works(above)) {
      found.push_back(above);
      break;
    }
  }
  return join(found, " or ");
}

void Rules::broken(const std::string& field, const std::string& value, const std::string& rule,
                   const std::string& nearest) {
  problems_.push_back({field, value, rule, nearest});
}

bool Rules::within(const std::string& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return true;
  broken(field, value, text("must be from ", low, " to ", high), text(std::clamp(value, low, high)));
  return false;
}

bool Rules::at_least(const std::string& field, int64_t value, int64_t low) {
  if (value >= low) return true;
  broken(field, value, text("must be at least ", low), text(low));
  return false;
}

bool Rules::divides(const std::string& field, int64_t divisor, const std::string& whole_field, int64_t whole) {
  if (whole % divisor == 0) return true;
  broken(field, divisor, text("must divide ", whole_field, " = ", whole),
         nearest_values(divisor, 1, whole, [&](int64_t candidate) { return whole % candidate == 0; }));
  return false;
}

bool Rules::positive(const std::string& field, double value) {
  if (std::isfinite(value) && value > 0) return true;
  broken(field, value, "must be a finite number above 0");
  return false;
}

bool Rules::not_negative(const std::string& field, double value) {
  if (std::isfinite(value) && value >= 0) return true;
  broken(field, value, "must be a finite number, 0 or above", "0");
  return false;
}

bool Rules::fraction(const std::string& field, double value) {
  if (value >= 0 && value < 1) return true;
  broken(field, value, "must be at least 0 and below 1", value < 0 ? "0" : "");
  return false;
}

void Rules::add(const std::vector<Problem>& problems) {
  problems_.insert(problems_.end(), problems.begin(), problems.end());
}

}  // namespace lockstep::spec
