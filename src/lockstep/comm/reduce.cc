#include "lockstep/comm/reduce.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include "lockstep/base/error.h"

// The loops below may write to exactly the memory they read, element by element; the compiler cannot know that they
// overlap in no other way, and would take its slow path.
#if defined(__clang__)
#pragma clang diagnostic ignored "-Wpass-failed"  // builds that do not vectorise at all are fine
#define LOCKSTEP_INDEPENDENT_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define LOCKSTEP_INDEPENDENT_LOOP _Pragma("GCC ivdep")
#endif

namespace lockstep::comm {
namespace {

constexpr int64_t kTile = 1024;  // elements: inputs, accumulators and results of a tile stay in the first-level cache

// -- element types: how they are stored, and in what they are added -------------------------------------------------

template <class T>
struct Plain {
  using Stored = T;
  using Accumulator = T;
  [[gnu::always_inline]] static inline T load(T value) { return value; }
  [[gnu::always_inline]] static inline T store(T value) { return value; }
};

struct BFloat16 {
  using Stored = uint16_t;
  using Accumulator = float;
  [[gnu::always_inline]] static inline float load(uint16_t value) {
    return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
  }
  // To nearest, ties to even; NaN stays NaN.
  [[gnu::always_inline]] static inline uint16_t store(float value) {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    const uint32_t quiet_nan = bits >> 16 | 0x40;
    return static_cast<uint16_t>((bits & 0x7fffffff) > 0x7f800000 ? quiet_nan : rounded);
  }
};

struct Float16 {
  using Stored = _Float16;
  using Accumulator = float;
  [[gnu::always_inline]] static inline float load(_Float16 value) { return static_cast<float>(value); }
  [[gnu::always_inline]] static inline _Float16 store(float value) { return static_cast<_Float16>(value); }
};

// -- reductions -----------------------------------------------------------------------------------------------------

struct Sum {
  template <class T>
  [[gnu::always_inline]] static inline T of(T a, T b) {
    if constexpr (std::is_integral_v<T>) {
      using Unsigned = std::make_unsigned_t<T>;
      return static_cast<T>(static_cast<Unsigned>(static_cast<Unsigned>(a) + static_cast<Unsigned>(b)));
    } else {
      return a + b;
    }
  }
};

struct Min {
  template <class T>
  [[gnu::always_inline]] static inline T of(T a, T b) {
    return ((a < b) | (a != a)) ? a : b;  // b when it is NaN
  }
};

struct Max {
  template <class T>
  [[gnu::always_inline]] static inline T of(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};

// -- loops ----------------------------------------------------------------------------------------------------------

// The loops for one type and reduction, compiled for one instruction set.
template <class Type, class Op>
struct Loops {
  using Stored = typename Type::Stored;
  using Accumulator = typename Type::Accumulator;

  void (*load_1)(const Stored* const* inputs, Accumulator* to, int64_t n);
  void (*load_2)(const Stored* const* inputs, Accumulator* to, int64_t n);
  void (*load_4)(const Stored* const* inputs, Accumulator* to, int64_t n);
  void (*combine)(Accumulator* in_out, const Accumulator* right, int64_t n);
  void (*store)(const Accumulator* from, Stored* to, int64_t n);
  void (*store_divided)(const Accumulator* from, Stored* to, int64_t n, Accumulator divisor);
};

template <class Type, class Op, int kInputs>
[[gnu::always_inline]] inline void load_loop(const typename Type::Stored* const* inputs, typename Type::Accumulator* to,
                                             int64_t n) {
  const auto* const a = inputs[0];
  const auto* const b = inputs[kInputs > 1 ? 1 : 0];
  const auto* const c = inputs[kInputs > 2 ? 2 : 0];
  const auto* const d = inputs[kInputs > 2 ? 3 : 0];
  LOCKSTEP_INDEPENDENT_LOOP
  for (int64_t i = 0; i < n; ++i) {
    auto result = Type::load(a[i]);
    if constexpr (kInputs > 1) result = Op::of(result, Type::load(b[i]));
    if constexpr (kInputs > 2) result = Op::of(result, Op::of(Type::load(c[i]), Type::load(d[i])));
    to[i] = result;
  }
}

template <class Op, class Accumulator>
[[gnu::always_inline]] inline void combine_loop(Accumulator* in_out, const Accumulator* right, int64_t n) {
  LOCKSTEP_INDEPENDENT_LOOP
  for (int64_t i = 0; i < n; ++i) in_out[i] = Op::of(in_out[i], right[i]);
}

template <class Type>
[[gnu::always_inline]] inline void store_loop(const typename Type::Accumulator* from, typename Type::Stored* to,
                                              int64_t n) {
  LOCKSTEP_INDEPENDENT_LOOP
  for (int64_t i = 0; i < n; ++i) to[i] = Type::store(from[i]);
}

template <class Type>
[[gnu::always_inline]] inline void store_divided_loop(const typename Type::Accumulator* from, typename Type::Stored* to,
                                                      int64_t n, typename Type::Accumulator divisor) {
  LOCKSTEP_INDEPENDENT_LOOP
  for (int64_t i = 0; i < n; ++i) to[i] = Type::store(static_cast<typename Type::Accumulator>(from[i] / divisor));
}

// One set of loops; `target` is an attribute that names the instruction set.
#define LOCKSTEP_LOOPS(function, target)                                                                      \
  template <class Type, class Op>                                                                             \
  Loops<Type, Op> function() {                                                                                \
    using Stored = typename Type::Stored;                                                                     \
    using Accumulator = typename Type::Accumulator;                                                           \
    struct Compiled {                                                                                         \
      target static void load_1(const Stored* const* in, Accumulator* to, int64_t n) {                        \
        load_loop<Type, Op, 1>(in, to, n);                                                                    \
      }                                                                                                       \
      target static void load_2(const Stored* const* in, Accumulator* to, int64_t n) {                        \
        load_loop<Type, Op, 2>(in, to, n);                                                                    \
      }                                                                                                       \
      target static void load_4(const Stored* const* in, Accumulator* to, int64_t n) {                        \
        load_loop<Type, Op, 4>(in, to, n);                                                                    \
      }                                                                                                       \
      target static void combine(Accumulator* in_out, const Accumulator* right, int64_t n) {                  \
        combine_loop<Op>(in_out, right, n);                                                                   \
      }                                                                                                       \
      target static void store(const Accumulator* from, Stored* to, int64_t n) {                              \
        store_loop<Type>(from, to, n);                                                                        \
      }                                                                                                       \
      target static void store_divided(const Accumulator* from, Stored* to, int64_t n, Accumulator divisor) { \
        store_divided_loop<Type>(from, to, n, divisor);                                                       \
      }                                                                                                       \
    };                                                                                                        \
    return {Compiled::load_1,  Compiled::load_2, Compiled::load_4,                                            \
            Compiled::combine, Compiled::store,  Compiled::store_divided};                                    \
  }

LOCKSTEP_LOOPS(portable_loops, )
#if defined(__x86_64__)
LOCKSTEP_LOOPS(avx2_loops, __attribute__((target("avx2,f16c"))))
#endif

template <class Type, class Op>
Loops<Type, Op> loops_for_this_processor() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c")) return avx2_loops<Type, Op>();
#endif
  return portable_loops<Type, Op>();
}

// -- copies ---------------------------------------------------------------------------------------------------------

// The caller fences.
void stream_bytes(char* to, const char* from, int64_t bytes) {
  int64_t done = 0;
#if defined(__x86_64__)
  if (reinterpret_cast<uintptr_t>(to) % sizeof(__m128i) == 0) {
    for (; done + static_cast<int64_t>(sizeof(__m128i)) <= bytes; done += sizeof(__m128i)) {
      _mm_stream_si128(reinterpret_cast<__m128i*>(to + done),
                       _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + done)));
    }
  }
#endif
  std::memcpy(to + done, from + done, static_cast<size_t>(bytes - done));
}

void fence_streams() {
#if defined(__x86_64__)
  _mm_sfence();
#endif
}

// -- the reduction --------------------------------------------------------------------------------------------------

template <class Type, class Op>
class Reducer {
  using Stored = typename Type::Stored;
  using Accumulator = typename Type::Accumulator;

 public:
  // Divides by `divisor` unless that is 1.
  Reducer(std::span<const void* const> inputs, size_t divisor)
      : inputs_(inputs), divisor_(divisor), loops_(loops_for_this_processor<Type, Op>()) {}

  void run(std::span<void* const> outputs, int64_t count, bool streaming) const {
    alignas(64) Stored result[kTile];
    const size_t first_copy = streaming ? 0 : 1;
    for (int64_t begin = 0; begin < count; begin += kTile) {
      const int64_t n = std::min(kTile, count - begin);
      Stored* const first = streaming ? result : static_cast<Stored*>(outputs[0]) + begin;
      reduce_tile(begin, n, first);
      for (size_t i = first_copy; i < outputs.size(); ++i) {
        char* const to = reinterpret_cast<char*>(static_cast<Stored*>(outputs[i]) + begin);
        const int64_t bytes = n * static_cast<int64_t>(sizeof(Stored));
        if (streaming) {
          stream_bytes(to, reinterpret_cast<const char*>(first), bytes);
        } else {
          std::memcpy(to, first, static_cast<size_t>(bytes));
        }
      }
    }
    if (streaming) fence_streams();
  }

 private:
  static bool is_one_loop(size_t inputs) { return inputs == 1 || inputs == 2 || inputs == 4; }

  void reduce_tile(int64_t begin, int64_t n, Stored* to) const {
    if constexpr (std::is_same_v<Stored, Accumulator>) {
      // Every input has been read when an element is written, so `to` may be any of them.
      if (is_one_loop(inputs_.size())) {
        reduce_range(0, inputs_.size(), begin, n, to);
        if (divisor_ != 1) divide(to, to, n);
        return;
      }
    }
    alignas(64) Accumulator sums[kTile];
    reduce_range(0, inputs_.size(), begin, n, sums);
    if (divisor_ != 1) {
      divide(sums, to, n);
    } else {
      loops_.store(sums, to, n);
    }
  }

  void divide(const Accumulator* from, Stored* to, int64_t n) const {
    loops_.store_divided(from, to, n, static_cast<Accumulator>(divisor_));
  }

  // to[0, n) <- the tree over inputs [first, first + inputs).
  void reduce_range(size_t first, size_t inputs, int64_t begin, int64_t n, Accumulator* to) const {
    if (is_one_loop(inputs)) {
      const Stored* at[4] = {};
      for (size_t i = 0; i < inputs; ++i) at[i] = static_cast<const Stored*>(inputs_[first + i]) + begin;
      (inputs == 1 ? loops_.load_1 : inputs == 2 ? loops_.load_2 : loops_.load_4)(at, to, n);
      return;
    }
    const size_t left = std::bit_ceil(inputs) / 2;
    alignas(64) Accumulator right_result[kTile];
    reduce_range(first, left, begin, n, to);
    reduce_range(first + left, inputs - left, begin, n, right_result);
    loops_.combine(to, right_result, n);
  }

  std::span<const void* const> inputs_;
  size_t divisor_;
  Loops<Type, Op> loops_;
};

template <class Type>
void reduce_type(Reduction reduction, std::span<const void* const> inputs, std::span<void* const> outputs,
                 int64_t count, bool streaming) {
  switch (reduction) {
    case Reduction::sum:
    case Reduction::average:
      return Reducer<Type, Sum>(inputs, reduction == Reduction::average ? inputs.size() : 1)
          .run(outputs, count, streaming);
    case Reduction::min:
      return Reducer<Type, Min>(inputs, 1).run(outputs, count, streaming);
    case Reduction::max:
      return Reducer<Type, Max>(inputs, 1).run(outputs, count, streaming);
  }
}

}  // namespace

void reduce(DataType type, Reduction reduction, std::span<const void* const> inputs, std::span<void* const> outputs,
            int64_t count, bool streaming) {
  LOCKSTEP_CHECK(!inputs.empty() && !outputs.empty(), "a reduction of nothing");
  switch (type) {
    case DataType::f32:
      return reduce_type<Plain<float>>(reduction, inputs, outputs, count, streaming);
    case DataType::f64:
      return reduce_type<Plain<double>>(reduction, inputs, outputs, count, streaming);
    case DataType::bf16:
      return reduce_type<BFloat16>(reduction, inputs, outputs, count, streaming);
    case DataType::f16:
      return reduce_type<Float16>(reduction, inputs, outputs, count, streaming);
    case DataType::i32:
      return reduce_type<Plain<int32_t>>(reduction, inputs, outputs, count, streaming);
    case DataType::i64:
      return reduce_type<Plain<int64_t>>(reduction, inputs, outputs, count, streaming);
    case DataType::u8:
      return reduce_type<Plain<uint8_t>>(reduction, inputs, outputs, count, streaming);
  }
}

void divide(DataType type, void* in_out, int64_t count, int64_t divisor) {
  const void* const input = in_out;
  const auto run = [&]<class Type>(Type) {
    Reducer<Type, Sum>({&input, 1}, static_cast<size_t>(divisor)).run({&in_out, 1}, count, false);
  };
  switch (type) {
    case DataType::f32:
      return run(Plain<float>());
    case DataType::f64:
      return run(Plain<double>());
    case DataType::bf16:
      return run(BFloat16());
    case DataType::f16:
      return run(Float16());
    case DataType::i32:
    case DataType::i64:
    case DataType::u8:
      LOCKSTEP_CHECK(false, "a quotient of integers");
  }
}

void copy(void* to, const void* from, int64_t bytes, bool streaming) {
  if (to == from || bytes == 0) return;
  if (!streaming) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  stream_bytes(static_cast<char*>(to), static_cast<const char*>(from), bytes);
  fence_streams();
}

}  // namespace lockstep::comm
