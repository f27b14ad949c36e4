#ifndef LANES
#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif
#endif
typedef float vf __attribute__((vector_size(4 * LANES))); // a float32 of each block
typedef int32_t vi __attribute__((vector_size(4 * LANES))); // an int32 of each block, or a mask of 0 and -1
#define EACH_LANE for (int32_t l = 0; l < LANES; l++)
static inline vf all_f(float x) { return x - (vf){0}; }
static inline vi all_i(int32_t x) { return x - (vi){0}; }
static inline vi pick_i(vi m, vi x, vi y) { return (m & x) | (~m & y); }
static inline vf pick_f(vi m, vf x, vf y) { return (vf)((m & (vi)x) | (~m & (vi)y)); }
static inline vf lanes_min_float32(vf x, vf y) { return pick_f(y < x, y, x); }
static inline vf lanes_max_float32(vf x, vf y) { return pick_f(y > x, y, x); }
static inline vi lanes_min_int32(vi x, vi y) { return pick_i(y < x, y, x); }
static inline vi lanes_max_int32(vi x, vi y) { return pick_i(y > x, y, x); }
static inline vf lanes_abs_float32(vf x) { return (vf)((vi)x & 0x7FFFFFFF); }
static inline vi lanes_abs_int32(vi x) { return pick_i(x < 0, -x, x); }
static inline vi lanes_nearest(vf x) { return ((vi)(x + 12582912.0f) & 0x7FFFFF) - 0x400000; }
static inline vf lanes_float32(vi x) { return __builtin_convertvector(x, vf); }
static inline vi lanes_truncated(vf x) {
    vi fits = (x >= -2147483648.0f) & (x < 2147483648.0f);
    return pick_i(fits, __builtin_convertvector((vf)(fits & (vi)x), vi), all_i(-2147483647 - 1));
}
static inline vf lanes_root(vf x) { EACH_LANE x[l] = root(x[l]); return x; }
static inline vf lanes_float16(vf x) { EACH_LANE x[l] = of_half(to_half(x[l])); return x; }
static inline vf lanes_as_float16(vi x) { vf y = {0}; EACH_LANE y[l] = of_half((uint16_t)x[l]); return y; }
#if defined(__AVX__) && LANES >= 8
typedef float eight __attribute__((vector_size(32), may_alias));
typedef int32_t eight_i __attribute__((vector_size(32), may_alias));
static inline int32_t any(vi m) { // by the signs of eight lanes
    eight_i bits = *(eight_i *)&m;
    for (uint32_t at = 1; at < LANES / 8; at++) bits |= ((eight_i *)&m)[at];
    return __builtin_ia32_movmskps256((eight)bits);
}
#else
static inline int32_t any(vi m) { int32_t bits = 0; EACH_LANE bits |= m[l]; return bits; }
#endif
#define LOOKED_UP(TYPE, TABLE, AT) ({ vi at_ = AT; TYPE found_ = {0}; EACH_LANE found_[l] = TABLE[at_[l]]; found_; })
#define GATHERED(TYPE, ARRAY, AT) ({ vi at_ = AT; TYPE found_ = {0}; EACH_LANE found_[l] = (ARRAY)[at_[l]][l]; found_; })
#define SCATTER(MASK, ARRAY, AT, X) { \
    vi mask_ = MASK, at_ = AT; \
    __typeof__((ARRAY)[0]) x_ = X; \
    __typeof__((ARRAY)[0][0]) *to_ = (void *)(ARRAY); \
    EACH_LANE if (mask_[l]) to_[at_[l] * LANES + l] = x_[l]; \
}
// The product of weights and rows of x. A sum is 16 sums, of every 16th weight each, added in one order,
// so that its bits do not depend on LANES.
#define SUMS 16
typedef float vf_of_x __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
static inline void add_products(float *sums, const float *w, const float *x, int64_t n) {
    vf_of_x s[SUMS / LANES];
    int64_t i = 0;
    for (int32_t k = 0; k < SUMS / LANES; k++) s[k] = ((vf_of_x *)sums)[k];
    for (; i + SUMS <= n; i += SUMS)
        for (int32_t k = 0; k < SUMS / LANES; k++) s[k] += ((vf_of_x *)(w + i))[k] * ((vf_of_x *)(x + i))[k];
    for (int32_t k = 0; k < SUMS / LANES; k++) ((vf_of_x *)sums)[k] = s[k];
    for (; i < n; i++) sums[i % SUMS] += w[i] * x[i];
}
static inline float total(float *sums) {
    for (int32_t half = SUMS / 2; half; half /= 2)
        for (int32_t i = 0; i < half; i++) sums[i] += sums[half + i];
    return sums[0];
}
// Its names end in _, because DECODE has names of types.
#define MULTIPLY(PIECE, DECODE) { \
    float w_[PIECE], sums_[16][SUMS]; \
    for (int64_t r_ = 0; r_ < rows_; r_++) { \
        for (int64_t b_ = 0; b_ < batch_; b_++) \
            for (int32_t i_ = 0; i_ < SUMS; i_++) sums_[b_][i_] = 0; \
        for (int64_t c_ = 0; c_ < columns_; c_ += PIECE) { \
            int64_t n_ = columns_ - c_ < PIECE ? columns_ - c_ : PIECE; \
            DECODE; \
            for (int64_t b_ = 0; b_ < batch_; b_++) add_products(sums_[b_], w_, x_ + b_ * columns_ + c_, n_); \
        } \
        for (int64_t b_ = 0; b_ < batch_; b_++) out_[b_ * stride_ + r_] = total(sums_[b_]); \
    } \
}
