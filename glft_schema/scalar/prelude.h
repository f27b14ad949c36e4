typedef float f32 __attribute__((aligned(1), may_alias)); // numbers of fields, which begin at any byte
typedef double f64 __attribute__((aligned(1), may_alias));
typedef int16_t i16 __attribute__((aligned(1), may_alias));
typedef int32_t i32 __attribute__((aligned(1), may_alias));
typedef int64_t i64 __attribute__((aligned(1), may_alias));
typedef uint16_t u16 __attribute__((aligned(1), may_alias));
typedef uint32_t u32 __attribute__((aligned(1), may_alias));
typedef uint64_t u64 __attribute__((aligned(1), may_alias));
static inline float as_float(uint32_t bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
static inline uint32_t as_bits(float x) { uint32_t bits; __builtin_memcpy(&bits, &x, 4); return bits; }
static inline float root(float x) { return __builtin_sqrtf(x); }
static inline float abs_float32(float x) { return __builtin_fabsf(x); }
static inline int32_t abs_int32(int32_t x) { return x < 0 ? -x : x; }
static inline float min_float32(float x, float y) { return y < x ? y : x; }
static inline float max_float32(float x, float y) { return y > x ? y : x; }
static inline int32_t min_int32(int32_t x, int32_t y) { return y < x ? y : x; }
static inline int32_t max_int32(int32_t x, int32_t y) { return y > x ? y : x; }
static inline int32_t nearest(float x) { return (int32_t)(as_bits(x + 12582912.0f) & 0x7FFFFF) - 0x400000; }
static inline int32_t truncated(float x) { return x >= -2147483648.0f && x < 2147483648.0f ? (int32_t)x : -2147483647 - 1; }
static inline float of_bfloat(uint16_t upper) { return as_float((uint32_t)upper << 16); }
static inline float of_half(uint16_t half) { // subnormal numbers are integers times 2^-24
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3FF;
    if (exponent == 0) return as_float(sign | as_bits((float)mantissa * 5.9604644775390625e-8f));
    return as_float(sign | (exponent == 31 ? 0x7F800000 : (exponent + 112) << 23) | mantissa << 13);
}
static inline uint16_t to_half(float x) { // rounds half to even; the sum with 0.5 rounds subnormal numbers
    uint32_t bits = as_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    uint32_t normal = (size + 0xFFF + (size >> 13 & 1) - 0x38000000) >> 13;
    uint32_t subnormal = as_bits(as_float(size) + 0.5f) - 0x3F000000;
    uint32_t large = size > 0x7F800000 ? 0x7E00 : 0x7C00;
    return (uint16_t)(sign | (size < 0x38800000 ? subnormal : size >= 0x477FF000 ? large : normal));
}
static inline uint16_t to_bfloat(float x) { // rounds half to even
    uint32_t bits = as_bits(x);
    return (uint16_t)(x != x ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
