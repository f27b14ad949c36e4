#if defined(__x86_64__)
#define _MM_MALLOC_H_INCLUDED // the header of gcc needs libc for it
#include <immintrin.h>
#endif
// The lanes of a vector: those of the machine, or fewer in loops of 8 or 4 numbers.
#ifndef LANES_16
#if defined(__AVX512BW__)
#define LANES_16 16
#elif defined(__AVX2__)
#define LANES_16 8
#else
#define LANES_16 4
#endif
#endif
#if LANES_16 == 4
#define LANES_8 4
#else
#define LANES_8 8
#endif
#define LANES_4 4
#define LANES LANES_16
#define JOINED_(NAME, LANES) NAME##LANES
#define JOINED(NAME, LANES) JOINED_(NAME, LANES)
typedef uint8_t u8 __attribute__((may_alias));
typedef int8_t i8 __attribute__((may_alias));
// Of N lanes: a float32 of each, an int32 of each, or a mask of 0 and -1; and numbers in memory.
#define VECTORS(N) \
    typedef float vf##N __attribute__((vector_size(4 * N))); \
    typedef int32_t vi##N __attribute__((vector_size(4 * N))); \
    typedef uint8_t u8_##N __attribute__((vector_size(N), aligned(1), may_alias)); \
    typedef int8_t i8_##N __attribute__((vector_size(N), aligned(1), may_alias)); \
    typedef uint16_t u16_##N __attribute__((vector_size(2 * N), aligned(1), may_alias)); \
    typedef int16_t i16_##N __attribute__((vector_size(2 * N), aligned(1), may_alias)); \
    typedef int32_t i32_##N __attribute__((vector_size(4 * N), aligned(1), may_alias)); \
    typedef float f32_##N __attribute__((vector_size(4 * N), aligned(1), may_alias));
VECTORS(4) VECTORS(8) VECTORS(16)
#define vf JOINED(vf, LANES)
#define vi JOINED(vi, LANES)
#define NUMBERS(KIND) JOINED(KIND##_, LANES)
#define lane_numbers_4 (vi4){0, 1, 2, 3}
#define lane_numbers_8 (vi8){0, 1, 2, 3, 4, 5, 6, 7}
#define lane_numbers_16 (vi16){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
#define LANE_NUMBERS JOINED(lane_numbers_, LANES)
#define EACH_LANE for (int32_t l = 0; l < LANES; l++)
#define all_f(X) ((X) - (vf){0})
#define all_i(X) ((X) - (vi){0})
#define pick_i(M, X, Y) ({ vi m_ = M; (m_ & (X)) | (~m_ & (Y)); })
#define pick_f(M, X, Y) (vf)pick_i(M, (vi)(X), (vi)(Y))
#define lanes_min_float32(X, Y) ({ vf x_ = X, y_ = Y; pick_f(y_ < x_, y_, x_); })
#define lanes_max_float32(X, Y) ({ vf x_ = X, y_ = Y; pick_f(y_ > x_, y_, x_); })
#define lanes_min_int32(X, Y) ({ vi x_ = X, y_ = Y; pick_i(y_ < x_, y_, x_); })
#define lanes_max_int32(X, Y) ({ vi x_ = X, y_ = Y; pick_i(y_ > x_, y_, x_); })
#define lanes_abs_float32(X) (vf)((vi)(X) & 0x7FFFFFFF)
#define lanes_abs_int32(X) ({ vi x_ = X; pick_i(x_ < 0, -x_, x_); })
#define lanes_nearest(X) (((vi)((X) + 12582912.0f) & 0x7FFFFF) - 0x400000)
#define lanes_float32(X) __builtin_convertvector(X, vf)
#define lanes_truncated(X) ({ \
    vf x_ = X; \
    vi fits_ = (x_ >= -2147483648.0f) & (x_ < 2147483648.0f); \
    pick_i(fits_, __builtin_convertvector((vf)(fits_ & (vi)x_), vi), all_i(-2147483647 - 1)); \
})
#define lanes_root(X) ({ vf x_ = X; EACH_LANE x_[l] = root(x_[l]); x_; })
#define lanes_float16(X) ({ vf x_ = X; EACH_LANE x_[l] = of_half(to_half(x_[l])); x_; })
#define lanes_as_float16(X) ({ vi x_ = X; vf y_ = {0}; EACH_LANE y_[l] = of_half((uint16_t)x_[l]); y_; })
#define any(M) ({ vi m_ = M; any_of(&m_, LANES); })
#if defined(__AVX__)
typedef float eight_f __attribute__((vector_size(32), may_alias));
typedef int32_t eight_i __attribute__((vector_size(32), may_alias));
#endif
static inline int32_t any_of(const void *m, int32_t lanes) {
#if defined(__AVX__)
    if (lanes >= 8) { // by the signs of eight lanes
        eight_i bits = *(eight_i *)m;
        for (int32_t at = 1; at < lanes / 8; at++) bits |= ((eight_i *)m)[at];
        return __builtin_ia32_movmskps256((eight_f)bits);
    }
#endif
    int32_t bits = 0;
    for (int32_t l = 0; l < lanes; l++) bits |= ((const int32_t *)m)[l];
    return bits;
}
#define SCATTER(MASK, ARRAY, AT, X) { \
    vi mask_ = MASK, at_ = AT; \
    __typeof__((ARRAY)[0]) x_ = X; \
    __typeof__((ARRAY)[0][0]) *to_ = (void *)(ARRAY); \
    EACH_LANE if (mask_[l]) to_[at_[l] * LANES + l] = x_[l]; \
}
#define GATHERED(TYPE, ARRAY, AT) ({ vi at_ = AT; TYPE found_ = {0}; EACH_LANE found_[l] = (ARRAY)[at_[l]][l]; found_; })
#define LOOKED_UP(TYPE, TABLE, AT) ({ \
    vi at_ = AT; \
    TYPE found_ = {0}; \
    if (SHUFFLES && sizeof(TABLE) == 16 && sizeof((TABLE)[0]) == 1) { \
        found_ = (TYPE)SHUFFLED(TABLE, at_); \
        if ((__typeof__((TABLE)[0]))-1 < 0) found_ = (TYPE)((vi)found_ << 24 >> 24); \
    } else { \
        EACH_LANE found_[l] = (TABLE)[at_[l]]; \
    } \
    found_; \
})
// The numbers of a field, each for STEP lanes, as vectors.
#define LOADED(KIND, FIRST, STEP) ({ const void *at_ = &(FIRST); LOADED_##KIND(at_, STEP); })
#define REPEATED(TYPE, KIND, AT, STEP) ({ TYPE to_ = {0}; EACH_LANE to_[l] = ((const KIND *)AT)[l / (STEP)]; to_; })
#define EXTENDED(TYPE, KIND, AT, STEP) \
    ((STEP) == 1 ? __builtin_convertvector(*(const NUMBERS(KIND) *)AT, TYPE) : REPEATED(TYPE, KIND, AT, STEP))
#define LOADED_i16(AT, STEP) EXTENDED(vi, i16, AT, STEP)
#define LOADED_i32(AT, STEP) EXTENDED(vi, i32, AT, STEP)
#define LOADED_u32(AT, STEP) EXTENDED(vi, i32, AT, STEP)
#define LOADED_f32(AT, STEP) EXTENDED(vf, f32, AT, STEP)
#define STORE_f32(FIRST, X) *(NUMBERS(f32) *)&(FIRST) = X;
#define OF_HALVES(AT, STEP) ({ vf to_ = {0}; EACH_LANE to_[l] = of_half(((const u16 *)AT)[l / (STEP)]); to_; })
#define STORE_bf16(FIRST, X) { \
    vf x_ = X; \
    vi bits_ = pick_i(x_ == x_, ((vi)x_ + 0x7FFF + ((vi)x_ >> 16 & 1)) >> 16, all_i(0x7FC0)); \
    *(NUMBERS(u16) *)&(FIRST) = __builtin_convertvector(bits_, NUMBERS(u16)); \
}
#if defined(__SSE2__)
static inline __m128i bytes_at(const void *start, int32_t n) { // the first n, a power of 2
    if (n >= 16) return _mm_loadu_si128(start);
    if (n >= 8) return _mm_loadl_epi64(start);
    return _mm_cvtsi32_si128(n >= 4 ? *(const i32 *)start : n >= 2 ? *(const u16 *)start : *(const u8 *)start);
}
static inline __m128i repeated_bytes(__m128i bytes, int32_t step) {
    for (; step > 1; step /= 2) bytes = _mm_unpacklo_epi8(bytes, bytes);
    return bytes;
}
#define BYTES(AT, STEP) repeated_bytes(bytes_at(AT, LANES / (STEP)), STEP)
#define LOADED_WORDS
#define LOADED_u8(AT, STEP) ((STEP) < LANES ? JOINED(u8_to_, LANES)(BYTES(AT, STEP)) : all_i(*(const u8 *)AT))
#define LOADED_i8(AT, STEP) ((STEP) < LANES ? JOINED(i8_to_, LANES)(BYTES(AT, STEP)) : all_i(*(const i8 *)AT))
#endif
#if defined(__AVX2__) && defined(__F16C__) && (LANES_16 < 16 || defined(__AVX512BW__))
#define u8_to_4(X) (vi4)_mm_cvtepu8_epi32(X)
#define i8_to_4(X) (vi4)_mm_cvtepi8_epi32(X)
#define u8_to_8(X) (vi8)_mm256_cvtepu8_epi32(X)
#define i8_to_8(X) (vi8)_mm256_cvtepi8_epi32(X)
#define u8_to_16(X) (vi16)_mm512_cvtepu8_epi32(X)
#define i8_to_16(X) (vi16)_mm512_cvtepi8_epi32(X)
#define u16_to_4(AT) (vi4)_mm_cvtepu16_epi32(_mm_loadl_epi64(AT))
#define u16_to_8(AT) (vi8)_mm256_cvtepu16_epi32(_mm_loadu_si128(AT))
#define u16_to_16(AT) (vi16)_mm512_cvtepu16_epi32(_mm256_loadu_si256(AT))
#define LOADED_u16(AT, STEP) ((STEP) == 1 ? JOINED(u16_to_, LANES)(AT) : REPEATED(vi, u16, AT, STEP))
#define of_half(X) _cvtsh_ss(X)
#define halves_to_4(AT) (vf4)_mm_cvtph_ps(_mm_loadl_epi64(AT))
#define halves_to_8(AT) (vf8)_mm256_cvtph_ps(_mm_loadu_si128(AT))
#define halves_to_16(AT) (vf16)_mm512_cvtph_ps(_mm256_loadu_si256(AT))
#define LOADED_f16(AT, STEP) ((STEP) == 1 ? JOINED(halves_to_, LANES)(AT) : OF_HALVES(AT, STEP))
#define to_halves_4(TO, X) _mm_storel_epi64(TO, _mm_cvtps_ph((__m128)(X), 0))
#define to_halves_8(TO, X) _mm_storeu_si128(TO, _mm256_cvtps_ph((__m256)(X), 0))
#define to_halves_16(TO, X) _mm256_storeu_si256(TO, _mm512_cvtps_ph((__m512)(X), 0))
#define STORE_f16(FIRST, X) JOINED(to_halves_, LANES)((void *)&(FIRST), X);
// Entries of a table of 16 bytes: a byte of an index whose high bit is set gives 0.
#define SHUFFLES 1
#define shuffled_4(TABLE, AT) _mm_shuffle_epi8(TABLE, (__m128i)(AT))
#define shuffled_8(TABLE, AT) _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(TABLE), (__m256i)(AT))
#define shuffled_16(TABLE, AT) _mm512_shuffle_epi8(_mm512_broadcast_i32x4(TABLE), (__m512i)(AT))
#define SHUFFLED(TABLE, AT) (vi)JOINED(shuffled_, LANES)(_mm_loadu_si128((const void *)(TABLE)), (AT) | -0x7F7F8000)
#else
#if defined(__SSE2__) && LANES_16 == 4
#define u8_to_4(X) (vi4)_mm_unpacklo_epi16(_mm_unpacklo_epi8(X, _mm_setzero_si128()), _mm_setzero_si128())
#define i8_to_4(X) ({ __m128i x_ = _mm_unpacklo_epi8(X, X); (vi4)_mm_unpacklo_epi16(x_, x_) >> 24; })
#else
#undef LOADED_WORDS
#undef LOADED_u8
#undef LOADED_i8
#define LOADED_u8(AT, STEP) EXTENDED(vi, u8, AT, STEP)
#define LOADED_i8(AT, STEP) EXTENDED(vi, i8, AT, STEP)
#endif
#define LOADED_u16(AT, STEP) EXTENDED(vi, u16, AT, STEP)
#define LOADED_f16 OF_HALVES
#define STORE_f16(FIRST, X) { vf x_ = X; u16 *to_ = &(FIRST); EACH_LANE to_[l] = to_half(x_[l]); }
#define SHUFFLES 0
#define SHUFFLED(TABLE, AT) AT
#endif
// A decoder of blocks that rounds the weights.
#define TO_HALVES(NAME, SUFFIX, ROUNDED, SIZE, WEIGHTS) \
    void NAME##SUFFIX(const uint8_t *blocks, uint16_t *w, int64_t n) { \
        float block[WEIGHTS]; \
        for (int64_t b = 0; b < n; b++, blocks += SIZE, w += WEIGHTS) { \
            int32_t i = 0; \
            NAME(blocks, block, 1); \
            for (; i + LANES <= WEIGHTS; i += LANES) STORE##SUFFIX(w[i], *(const NUMBERS(f32) *)&block[i]) \
            for (; i < WEIGHTS; i++) w[i] = ROUNDED(block[i]); \
        } \
    }
// Runs of numbers, each one after the other. ELEMENT is the number for lane 0 of an index I.
#define AT_LANE(I, LANE, X) ({ int32_t at_ = (I) + (LANE); ({ int32_t I = at_; X; }); })
#define RUNS(KIND, RUN, I, ELEMENT) RUNS_##KIND(RUN, I, ELEMENT)
#define EACH_OF_RUNS(TYPE, RUN, I, ELEMENT) ({ TYPE to_ = {0}; EACH_LANE to_[l] = AT_LANE(I, l, ELEMENT); to_; })
#if defined(LOADED_WORDS)
#define WORDS(KIND, I, ELEMENT) ({ \
    vi4 words_ = {0}; \
    for (int32_t run_ = 0; run_ < LANES / 4; run_++) words_[run_] = AT_LANE(I, 4 * run_, *(const i32 *)&(ELEMENT)); \
    JOINED(KIND##_to_, LANES)((__m128i)words_); \
})
#define RUNS_u8(RUN, I, ELEMENT) ((RUN) % 4 ? EACH_OF_RUNS(vi, RUN, I, ELEMENT) : WORDS(u8, I, ELEMENT))
#define RUNS_i8(RUN, I, ELEMENT) ((RUN) % 4 ? EACH_OF_RUNS(vi, RUN, I, ELEMENT) : WORDS(i8, I, ELEMENT))
#else
#define RUNS_u8(RUN, I, ELEMENT) EACH_OF_RUNS(vi, RUN, I, ELEMENT)
#define RUNS_i8(RUN, I, ELEMENT) EACH_OF_RUNS(vi, RUN, I, ELEMENT)
#endif
#define RUNS_u16(RUN, I, ELEMENT) EACH_OF_RUNS(vi, RUN, I, ELEMENT)
#define RUNS_i16(RUN, I, ELEMENT) EACH_OF_RUNS(vi, RUN, I, ELEMENT)
#define RUNS_i32(RUN, I, ELEMENT) EACH_OF_RUNS(vi, RUN, I, ELEMENT)
#define RUNS_u32(RUN, I, ELEMENT) EACH_OF_RUNS(vi, RUN, I, ELEMENT)
#define RUNS_f32(RUN, I, ELEMENT) EACH_OF_RUNS(vf, RUN, I, ELEMENT)
#define RUNS_f16(RUN, I, ELEMENT) EACH_OF_RUNS(vf, RUN, I, of_half(ELEMENT))
// The product of weights and rows of x. A sum is SUMS sums, of every SUMS-th product each, added in one
// order, so that its bits do not depend on LANES.
#define SUMS 16
#define ROWS 4 // of weights that are multiplied at once: sums that do not wait for each other
#define FLOATS(AT) (*(const NUMBERS(f32) *)(AT))
// Adds the products of one or two rows of x to sums [COUNT, ROWS, SUMS].
#define ADD_PRODUCTS(COUNT) \
    for (int32_t k = 0; k < SUMS; k += LANES) { \
        vf s[COUNT][ROWS]; \
        for (int32_t b = 0; b < COUNT; b++) \
            for (int32_t r = 0; r < ROWS; r++) s[b][r] = FLOATS(sums + (b * ROWS + r) * SUMS + k); \
        for (int64_t i = k; i < n; i += SUMS) \
            for (int32_t r = 0; r < ROWS; r++) { \
                vf weights = FLOATS(w + r * piece + i); \
                for (int32_t b = 0; b < COUNT; b++) s[b][r] += weights * FLOATS(x + b * columns + i); \
            } \
        for (int32_t b = 0; b < COUNT; b++) \
            for (int32_t r = 0; r < ROWS; r++) STORE_f32(sums[(b * ROWS + r) * SUMS + k], s[b][r]) \
    }
static inline void add_products(
    float *sums, const float *w, int64_t piece, const float *x, int64_t columns, int64_t n, int64_t batch
) {
    for (; batch > 1; batch -= 2, x += 2 * columns, sums += 2 * ROWS * SUMS) ADD_PRODUCTS(2)
    if (batch) ADD_PRODUCTS(1)
}
static inline float sum_of_lanes(const float *sums) {
    vf4 s = (*(vf4 *)sums + *(vf4 *)(sums + 8)) + (*(vf4 *)(sums + 4) + *(vf4 *)(sums + 12));
    return (s[0] + s[2]) + (s[1] + s[3]);
}
// The names end in _, because DECODE contains names of types.
#define MULTIPLY(MOST_ROWS, PIECE, DECODE) { \
    float __attribute__((aligned(64))) decoded_[ROWS * PIECE] = {0}, sums_[MOST_ROWS * ROWS * SUMS]; \
    for (int64_t first_ = 0; first_ < rows_; first_ += ROWS) { \
        int64_t last_ = first_ + ROWS < rows_ ? first_ + ROWS : rows_; \
        for (int64_t i_ = 0; i_ < batch_ * ROWS * SUMS; i_++) sums_[i_] = 0; \
        for (int64_t c_ = 0; c_ < columns_; c_ += PIECE) { \
            int64_t n_ = columns_ - c_ < PIECE ? columns_ - c_ : PIECE; \
            float *w_ = decoded_; \
            for (int64_t r_ = first_; r_ < last_; r_++, w_ += PIECE) DECODE; \
            add_products(sums_, decoded_, PIECE, x_ + c_, columns_, n_ & -SUMS, batch_); \
            for (int64_t i_ = n_ & -SUMS; i_ < n_; i_++) \
                for (int64_t b_ = 0; b_ < batch_; b_++) \
                    for (int32_t r_ = 0; r_ < ROWS; r_++) \
                        sums_[(b_ * ROWS + r_) * SUMS + i_ % SUMS] += decoded_[r_ * PIECE + i_] * x_[b_ * columns_ + c_ + i_]; \
        } \
        for (int64_t b_ = 0; b_ < batch_; b_++) \
            for (int64_t r_ = first_; r_ < last_; r_++) \
                out_[b_ * stride_ + r_] = sum_of_lanes(sums_ + (b_ * ROWS + r_ - first_) * SUMS); \
    } \
}
