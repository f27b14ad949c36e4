#include <stdint.h>

#define HELPER static inline __attribute__((unused))

// Numbers of fields, which may begin at any byte.
typedef float f32 __attribute__((aligned(1)));
typedef int16_t i16 __attribute__((aligned(1)));
typedef int32_t i32 __attribute__((aligned(1)));
typedef uint16_t u16 __attribute__((aligned(1)));
typedef uint32_t u32 __attribute__((aligned(1)));

HELPER float as_float(uint32_t bits) { float x; __builtin_memcpy(&x, &bits, 4); return x; }
HELPER uint32_t as_bits(float x) { uint32_t bits; __builtin_memcpy(&bits, &x, 4); return bits; }
HELPER float root(float x) { return __builtin_sqrtf(x); }
HELPER float abs_float32(float x) { return __builtin_fabsf(x); }
HELPER int32_t abs_int32(int32_t x) { return x < 0 ? -x : x; }
HELPER float min_float32(float x, float y) { return y < x ? y : x; }
HELPER float max_float32(float x, float y) { return y > x ? y : x; }
HELPER int32_t min_int32(int32_t x, int32_t y) { return y < x ? y : x; }
HELPER int32_t max_int32(int32_t x, int32_t y) { return y > x ? y : x; }
HELPER int32_t nearest(float x) { return (int32_t)(as_bits(x + 12582912.0f) & 0x7FFFFF) - 0x400000; }

// float16 as float32; subnormal numbers are integers times 2^-24
HELPER float of_half(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 0x3FF;
    if (exponent == 0) return as_float(sign | as_bits((float)mantissa * 0x1p-24f));
    return as_float(sign | (exponent == 31 ? 0x7F800000 : (exponent + 112) << 23) | mantissa << 13);
}

// rounds half to even; the sum with 0.5 rounds subnormal numbers
HELPER uint16_t to_half(float x) {
    uint32_t bits = as_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7FFFFFFF;
    uint32_t normal = (size + 0xFFF + (size >> 13 & 1) - 0x38000000) >> 13;
    uint32_t subnormal = as_bits(as_float(size) + 0.5f) - 0x3F000000;
    uint32_t large = size > 0x7F800000 ? 0x7E00 : 0x7C00;
    return (uint16_t)(sign | (size < 0x38800000 ? subnormal : size >= 0x477FF000 ? large : normal));
}

// bfloat16, rounded half to even
HELPER uint16_t to_bfloat(float x) {
    uint32_t bits = as_bits(x);
    return (uint16_t)(x != x ? 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

#define TO_HALVES(NAME, SUFFIX, CONVERTED, SIZE, WEIGHTS) \
    void NAME##SUFFIX(const uint8_t *blocks, uint16_t *w, int64_t n) { \
        float block[WEIGHTS]; \
        for (int64_t b = 0; b < n; b++, blocks += SIZE, w += WEIGHTS) { \
            NAME(blocks, block, 1); \
            for (int32_t i = 0; i < WEIGHTS; i++) w[i] = CONVERTED(block[i]); \
        } \
    }
