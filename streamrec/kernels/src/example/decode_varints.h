/* Runs of packed integers, in blocks of 64 bytes.
 *
 * The bytes that end a varint (those without the high bit) are found first; then the values are taken out without
 * a branch for each byte, and none waits for the one before. There are four ways, and the processor decides:
 *  - masks and shifts on one word for each value, anywhere;
 *  - one PEXT for each value: x86-64 with BMI2, but not AMD's before Zen 3, which run it in microcode;
 *  - eight values at a time, of sixteen bytes: AVX2 with BMI2, where PEXT and PDEP also list where values begin and end.
 *    Each value gets a lane of four bytes, where multiplications close the gaps that the high bits leave. A block with a
 *    value of more than four bytes is left to PEXT alone.
 *  - sixteen values at a time: AVX-512 with VBMI2 (Intel's from Ice Lake on, AMD's from Zen 4 on). Otherwise
 *    as with AVX2.
 * The last bytes, or those for which there is no room left, are decoded from a copy into a copy of a block.
 */
#ifndef STREAMREC_DECODE_VARINTS_H
#define STREAMREC_DECODE_VARINTS_H

#include "example/decode_wire.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define DECODE_X86 1
#include <immintrin.h>
#endif

enum { BLOCK = 64 };
enum { BLOCK_READ = BLOCK + 16 /* a value that ends within a block is taken out of 8 or 16 bytes */ };
enum { BLOCK_PARTS = 5 /* of 16 bytes, of which the last three may belong to a value of the next one */ };
enum { BLOCK_STEP = BLOCK - 9 /* of what is only counted: ten bytes in a row lie in one block */ };
enum { BLOCK_ROOM = BLOCK + 8 /* values are written eight or sixteen at a time */ };
enum { FEW_BYTES = 16 /* not worth a block */ };
enum { BY_MASKS, BY_PEXT, BY_AVX2, BY_AVX512 };

/* One bit for each byte of a block: whether a varint ends there. */
static inline uint64_t
varint_ends(const uint8_t *block)
{
    uint64_t inside = 0;
#ifdef __SSE2__
    for (int part = 0; part < BLOCK / 16; part++) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)(block + 16 * part));
        inside |= (uint64_t)(uint32_t)_mm_movemask_epi8(bytes) << (16 * part);
    }
#else
    for (int word = 0; word < BLOCK / 8; word++) {
        uint64_t high = (load_word(block + 8 * word) & 0x8080808080808080ULL) >> 7;
        inside |= (high * 0x0102040810204080ULL >> 56) << (8 * word);
    }
#endif
    return ~inside;
}

/* Whether no value is too long in a block where values end so. */
static inline int
are_varints(uint64_t ends)
{
    uint64_t inside = ~ends;
    inside &= inside >> 1;
    inside &= inside >> 2; /* four in a row */
    inside &= inside >> 4; /* eight */
    return (inside & inside >> 2) == 0; /* ten: a value of eleven bytes */
}

/* Drops the high bit of each of the first `size` bytes, 1 to 8, and closes the gaps. */
static inline int64_t
join_with_masks(uint64_t word, int64_t size)
{
    word &= UINT64_MAX >> (64 - 8 * size);
    word = (word & 0x007F007F007F007FULL) | ((word & 0x7F007F007F007F00ULL) >> 1);
    word = (word & 0x00003FFF00003FFFULL) | ((word & 0x3FFF00003FFF0000ULL) >> 2);
    word = (word & 0x000000000FFFFFFFULL) | ((word & 0x0FFFFFFF00000000ULL) >> 4);
    return (int64_t)word;
}

/* The functions take_..: values of the block at `at` that end where `ends` has a bit, at least one. They write up to
 * BLOCK_ROOM values, of which those that `ends` does not count mean nothing. They return 0 where a value is too long. */

#define TAKE_EACH(JOIN)                                                                                             \
    for (const uint8_t *block = at; ends != 0; ends &= ends - 1, out++) {                                           \
        const uint8_t *stop = block + __builtin_ctzll(ends) + 1;                                                    \
        uint64_t value;                                                                                             \
        if (DECODE_LIKELY(stop - at <= 8)) {                                                                        \
            *out = JOIN(load_word(at), stop - at);                                                                  \
        }                                                                                                           \
        else if (read_varint(at, stop, &value) != NULL) {                                                           \
            *out = (int64_t)value;                                                                                  \
        }                                                                                                           \
        else {                                                                                                      \
            return 0;                                                                                               \
        }                                                                                                           \
        at = stop;                                                                                                  \
    }                                                                                                               \
    return 1;

static inline int
take_by_masks(const uint8_t *at, uint64_t ends, int64_t *out)
{
    TAKE_EACH(join_with_masks)
}

#define READ_RUN read_run_by_masks
#define COUNT_RUN count_run_by_masks
#define TAKE take_by_masks
#define TARGET
#include "example/decode_blocks.h"

#ifdef DECODE_X86
#define WITH_PEXT __attribute__((target("bmi,bmi2,popcnt")))
#define WITH_AVX2 __attribute__((target("bmi,bmi2,popcnt,lzcnt,avx2")))
#define WITH_AVX512 __attribute__((target("bmi,bmi2,popcnt,lzcnt,avx512f,avx512bw,avx512vbmi,avx512vbmi2")))
#define JOIN_PEXT(word, size) ((int64_t)_pext_u64(_bzhi_u64(word, (unsigned)(8 * (size))), 0x7F7F7F7F7F7F7F7FULL))

WITH_PEXT static inline int
take_by_pext(const uint8_t *at, uint64_t ends, int64_t *out)
{
    TAKE_EACH(JOIN_PEXT)
}

#define READ_RUN read_run_by_pext
#define COUNT_RUN count_run_by_pext
#define TAKE take_by_pext
#define TARGET WITH_PEXT
#include "example/decode_blocks.h"

/* Whether any value of a block has more than four bytes, or the one that its end cuts off may have. */
static inline int
has_long_values(uint64_t ends)
{
    uint64_t pairs = ~ends & ~ends >> 1;
    return (pairs & pairs >> 2) != 0;
}

/* Where the bits of sixteen that are set are, in order, in four bits each. */
WITH_AVX2 static inline uint64_t
places_of(uint64_t bits)
{
    return _pext_u64(0xFEDCBA9876543210ULL, _pdep_u64(bits, 0x1111111111111111ULL) * 15);
}

/* Eight values of up to four bytes each, of sixteen bytes without their high bits, which are in `window` twice: where
 * the last byte of each is, in a byte of `last`, and of that before each in a byte of `before`. */
WITH_AVX2 static inline void
take_eight(__m256i window, uint64_t before, uint64_t last, int64_t *out)
{
    const __m256i lane = _mm256_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, /**/
                                          4, 4, 4, 4, 5, 5, 5, 5, 6, 6, 6, 6, 7, 7, 7, 7);
    const __m256i sevens = _mm256_set1_epi16(0x8001 - 0x10000); /* bytes: times 1, times 128 */
    const __m256i fourteens = _mm256_set1_epi32(1 << 14 << 16 | 1); /* words: times 1, times 2^14 */
    __m256i earlier = _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)before), lane);
    __m256i place = _mm256_add_epi8(earlier, _mm256_set1_epi32(0x04030201));
    __m256i outside = _mm256_cmpgt_epi8(place, _mm256_shuffle_epi8(_mm256_set1_epi64x((long long)last), lane));
    __m256i lanes = _mm256_shuffle_epi8(window, _mm256_or_si256(place, outside));
    __m256i values = _mm256_madd_epi16(_mm256_maddubs_epi16(sevens, lanes), fourteens);
    _mm256_storeu_si256((__m256i *)(void *)out, _mm256_cvtepu32_epi64(_mm256_castsi256_si128(values)));
    _mm256_storeu_si256((__m256i *)(void *)(out + 4), _mm256_cvtepu32_epi64(_mm256_extracti128_si256(values, 1)));
}

WITH_AVX2 static inline int
take_by_avx2(const uint8_t *at, uint64_t ends, int64_t *out)
{
    if (has_long_values(ends)) {
        return take_by_pext(at, ends, out);
    }
    const uint64_t nibbles = 0x0F0F0F0F0F0F0F0FULL;
    const __m128i low = _mm_set1_epi8(0x7F);
    for (int part = 0; part < BLOCK_PARTS; part++) { /* the next value begins at bit 0; maybe there is none any more */
        uint64_t here = ends & 0xFFFF, places = places_of(here), last = _pdep_u64(places, nibbles);
        __m128i bytes = _mm_and_si128(_mm_loadu_si128((const __m128i *)(const void *)at), low);
        __m256i window = _mm256_broadcastsi128_si256(bytes);
        int64_t count = __builtin_popcountll(here), taken = 64 - (int64_t)_lzcnt_u64(here);
        take_eight(window, last << 8 | 0xFF, last, out); /* 0xFF: -1, before the first byte */
        if (count > 8) {
            take_eight(window, _pdep_u64(places >> 28, nibbles), _pdep_u64(places >> 32, nibbles), out + 8);
        }
        out += count;
        at += taken;
        ends >>= taken;
    }
    return 1;
}

#define READ_RUN read_run_by_avx2
#define COUNT_RUN count_run_by_avx2
#define TAKE take_by_avx2
#define TARGET WITH_AVX2
#include "example/decode_blocks.h"

/* Sixteen values of up to four bytes each: their bytes are at first[i] to last[i] of a block without its high bits. */
WITH_AVX512 static inline void
take_sixteen(__m512i block, __m512i first, __m512i last, int64_t *out)
{
    const __m512i sevens = _mm512_set1_epi16(0x8001 - 0x10000); /* bytes: times 1, times 128 */
    const __m512i fourteens = _mm512_set1_epi32(1 << 14 << 16 | 1); /* words: times 1, times 2^14 */
    __m512i place = _mm512_add_epi8(first, _mm512_set1_epi32(0x03020100));
    __m512i lanes = _mm512_maskz_permutexvar_epi8(_mm512_cmple_epu8_mask(place, last), place, block);
    __m512i values = _mm512_madd_epi16(_mm512_maddubs_epi16(sevens, lanes), fourteens);
    _mm512_storeu_si512(out, _mm512_cvtepu32_epi64(_mm512_castsi512_si256(values)));
    _mm512_storeu_si512(out + 8, _mm512_cvtepu32_epi64(_mm512_extracti64x4_epi64(values, 1)));
}

WITH_AVX512 static inline int
take_by_avx512(const uint8_t *at, uint64_t ends, int64_t *out)
{
    static const uint8_t numbers[BLOCK] = {
        0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
        22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
        44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
    if (has_long_values(ends)) {
        return take_by_pext(at, ends, out);
    }
    const __m512i count = _mm512_loadu_si512(numbers);
    const __m512i four = _mm512_srli_epi16(_mm512_and_si512(count, _mm512_set1_epi8(0x3C)), 2); /* 0 0 0 0 1 1 .. */
    __m512i block = _mm512_and_si512(_mm512_loadu_si512(at), _mm512_set1_epi8(0x7F));
    __m512i firsts = _mm512_maskz_compress_epi8(ends << 1 | 1, count);
    __m512i lasts = _mm512_maskz_compress_epi8(ends, count);
    int left = __builtin_popcountll(ends);
    for (__m512i lane = four; left > 0; left -= 16, out += 16) {
        take_sixteen(block, _mm512_permutexvar_epi8(lane, firsts), _mm512_permutexvar_epi8(lane, lasts), out);
        lane = _mm512_add_epi8(lane, _mm512_set1_epi8(16));
    }
    return 1;
}

#define READ_RUN read_run_by_avx512
#define COUNT_RUN count_run_by_avx512
#define TAKE take_by_avx512
#define TARGET WITH_AVX512
#include "example/decode_blocks.h"
#endif

/* The fastest way on this processor. */
static inline int
best_way(void)
{
#ifdef DECODE_X86
    if (__builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vbmi") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("bmi2")) {
        return BY_AVX512;
    }
    if (__builtin_cpu_supports("bmi2") && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2")) {
        return __builtin_cpu_supports("avx2") ? BY_AVX2 : BY_PEXT;
    }
#endif
    return BY_MASKS;
}

/* Counts varints up to `end`; see read_varints_by(). */
static inline const uint8_t *
count_varints_by(int way, const uint8_t *at, const uint8_t *end, int64_t *count)
{
    switch (way) {
#ifdef DECODE_X86
    case BY_PEXT:
        return count_run_by_pext(at, end, count);
    case BY_AVX2:
        return count_run_by_avx2(at, end, count);
    case BY_AVX512:
        return count_run_by_avx512(at, end, count);
#endif
    default:
        return count_run_by_masks(at, end, count);
    }
}

/* Decodes varints up to `end`. Of `*count` values found, the first `room` are written: without room, they are only
 * counted. Returns `end`, or NULL where a varint is cut off or too long. */
static inline const uint8_t *
read_varints_by(int way, const uint8_t *at, const uint8_t *end, int64_t *out, int64_t room, int64_t *count)
{
    if (room == 0) {
        return count_varints_by(way, at, end, count);
    }
    switch (way) {
#ifdef DECODE_X86
    case BY_PEXT:
        return read_run_by_pext(at, end, out, room, count);
    case BY_AVX2:
        return read_run_by_avx2(at, end, out, room, count);
    case BY_AVX512:
        return read_run_by_avx512(at, end, out, room, count);
#endif
    default:
        return read_run_by_masks(at, end, out, room, count);
    }
}

static inline const uint8_t *
read_varints(const uint8_t *at, const uint8_t *end, int64_t *out, int64_t room, int64_t *count)
{
    if (end - at >= FEW_BYTES) {
        return read_varints_by(best_way(), at, end, out, room, count);
    }
    int64_t found = 0;
    for (uint64_t value; at != NULL && at < end; found++) {
        if ((at = read_varint(at, end, &value)) != NULL && found < room) {
            out[found] = (int64_t)value;
        }
    }
    *count = found;
    return at;
}

#endif
