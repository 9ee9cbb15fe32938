// Collects the rules that a plan breaks, all of them, each with the values nearest to the given one that would work.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::spec {

// The largest value below and the smallest above `value`, within [low, high], that `works`: "3 or 6"; empty when there
// is none. Looks at no more than 100,000 values on each side.
std::string nearest_values(int64_t value, int64_t low, int64_t high, const std::function<bool(int64_t)>& works);

// Each rule returns whether it holds. Fields are named as in the configuration ("train.lr").
class Rules {
 public:
  void broken(const std::string& field, const std::string& value, const std::string& rule,
              const std::string& nearest = "");
  template <class Value>
  void broken(const std::string& field, const Value& value, const std::string& rule, const std::string& nearest = "") {
    broken(field, text(value), rule, nearest);
  }

  bool within(const std::string& field, int64_t value, int64_t low, int64_t high);
  bool at_least(const std::string& field, int64_t value, int64_t low);
  // `divisor` divides `whole`; both at least 1.
  bool divides(const std::string& field, int64_t divisor, const std::string& whole_field, int64_t whole);
  bool positive(const std::string& field, double value);      // finite, above 0
  bool not_negative(const std::string& field, double value);  // finite, 0 or above
  bool fraction(const std::string& field, double value);      // in [0, 1)

  void add(const std::vector<Problem>& problems);
  std::vector<Problem> take() { return std::move(problems_); }

 private:
  std::vector<Problem> problems_;
};

}  // namespace lockstep::spec
