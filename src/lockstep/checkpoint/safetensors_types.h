// The names that safetensors gives to element types.
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string_view>
#include <utility>

namespace lockstep::checkpoint {

inline constexpr std::pair<std::string_view, at::ScalarType> kSafetensorsTypes[] = {
    {"F64", at::kDouble}, {"F32", at::kFloat}, {"F16", at::kHalf}, {"BF16", at::kBFloat16}, {"I64", at::kLong},
    {"I32", at::kInt},    {"I16", at::kShort}, {"I8", at::kChar},  {"U8", at::kByte},       {"BOOL", at::kBool},
};

}  // namespace lockstep::checkpoint
