/* CRC32C by folding: carry-less multiplications of 64 bytes at a time, with AVX-512 and VPCLMULQDQ (Ice Lake, Zen 4).
 *
 * Sixteen bytes that lie D bits before the end of a message may be replaced by their product with x^D mod P at its
 * end: two multiplications and an exclusive or, and sixteen bytes less. So four vectors run over the buffer, each
 * folded by 256 bytes in a step; at the end all sixteen lanes are folded onto the last one, and the crc32
 * instruction reduces that. See Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ
 * Instruction", Intel, 2009.
 *
 * Zero bytes in front of a message change nothing when the register starts at zero. So the first step takes what is
 * no whole step, moved to the end of four vectors of zeros by masked loads, which do not touch what they leave out; the
 * register is added to its first four bytes. No branch depends on how much that is.
 */
#if defined(__x86_64__)
#include "crc32c/crc32c_x86.h"
#include "support/prefetch.h"

#define AVX512 __attribute__((target("sse4.2,pclmul,avx512f,vpclmulqdq")))
#define FOLD_BYTES 256 /* shorter buffers are one chain of crc32 instructions */
#define STEP_WORDS 32  /* words of 8 bytes in four vectors */
#define STEP_BYTES (8 * STEP_WORDS)

struct vectors {
    __m512i first, second, third, fourth;
};

static uint64_t step_powers[2];      /* what folds a lane over one step: for its first word, and its second */
static uint64_t end_powers[4][8];    /* what folds each lane of the four vectors onto the last one, which has zeros */

AVX512 static inline __m512i
fold(__m512i lanes, __m512i powers, __m512i onto)
{
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(lanes, powers, 0x00),
                                     _mm512_clmulepi64_epi128(lanes, powers, 0x11), onto, 0x96 /* a ^ b ^ c */);
}

AVX512 static inline struct vectors
load_step(const uint8_t *data)
{
    return (struct vectors){_mm512_loadu_si512(data), _mm512_loadu_si512(data + 64), _mm512_loadu_si512(data + 128),
                            _mm512_loadu_si512(data + 192)};
}

/* Words number i to i + 7 of a step that ends at `end` and of which only `wanted` are there; the rest is zero. */
AVX512 static inline __m512i
load_wanted(const uint8_t *end, uint32_t wanted, uint32_t first, uint32_t state, int i)
{
    uintptr_t start = (uintptr_t)end - STEP_BYTES + 8 * (uintptr_t)i; /* may lie before the buffer */
    return _mm512_xor_si512(_mm512_maskz_loadu_epi64((__mmask8)(wanted >> i), (const void *)start),
                            _mm512_maskz_set1_epi64((__mmask8)(first >> i), (long long)state));
}

/* The first 1 to STEP_WORDS words of a message, at the end of a step, with the register added. */
AVX512 static inline struct vectors
load_first(const uint8_t *data, uint32_t state, unsigned words)
{
    const uint8_t *end = data + 8 * words;
    uint32_t first = 1u << (STEP_WORDS - words), wanted = 0u - first;
    return (struct vectors){load_wanted(end, wanted, first, state, 0), load_wanted(end, wanted, first, state, 8),
                            load_wanted(end, wanted, first, state, 16), load_wanted(end, wanted, first, state, 24)};
}

/* The register after all lanes of a step. */
AVX512 static inline uint64_t
reduce(struct vectors v)
{
    __m512i last = _mm512_maskz_mov_epi64(0xC0, v.fourth); /* its last lane stays where it is */
    __m512i early = fold(v.first, _mm512_loadu_si512(end_powers[0]),
                         fold(v.second, _mm512_loadu_si512(end_powers[1]), last));
    __m512i late = fold(v.third, _mm512_loadu_si512(end_powers[2]),
                        fold(v.fourth, _mm512_loadu_si512(end_powers[3]), early));
    __m256i half = _mm256_xor_si256(_mm512_castsi512_si256(late), _mm512_extracti64x4_epi64(late, 1));
    __m128i lane = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    uint64_t state = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(lane));
    return _mm_crc32_u64(state, (uint64_t)_mm_extract_epi64(lane, 1));
}

/* A buffer of at least eight bytes. */
AVX512 static inline uint32_t
extend_folding(uint32_t state, const uint8_t *data, size_t size)
{
    const uint8_t *end = data + size;
    unsigned words = (unsigned)((size / 8 - 1) % STEP_WORDS) + 1;
    prefetch_ahead(data, FAR_BYTES, STEP_BYTES);
    struct vectors v = load_first(data, state, words);
    const __m512i powers = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)step_powers));
    for (data += 8 * words; data < end - size % 8; data += STEP_BYTES) {
        prefetch_ahead(data, FAR_BYTES, STEP_BYTES);
        struct vectors next = load_step(data);
        v.first = fold(v.first, powers, next.first);
        v.second = fold(v.second, powers, next.second);
        v.third = fold(v.third, powers, next.third);
        v.fourth = fold(v.fourth, powers, next.fourth);
    }
    return extend_tail(reduce(v), end, size);
}

AVX512 static inline uint32_t
extend(uint32_t state, const uint8_t *data, size_t size)
{
    return size >= FOLD_BYTES ? extend_folding(state, data, size)
           : size >= 8        ? extend_chain(state, data, size)
                              : extend_under_8(state, data, size);
}

#define FIND_ATTRIBUTE SSE42
#define FIND_EXTEND_WORD extend_word
#include "framing/find_header.h"

#define GOOD_NAME good_records
#define GOOD_ATTRIBUTE AVX512
#define GOOD_EXTEND extend
#define GOOD_EXTEND_WORD extend_word
#define GOOD_EXTEND_THREE extend_three_short
#include "framing/good_records.h"

static int
usable(void)
{
    crc32c_make_word_powers();
    step_powers[0] = crc32c_word_powers[STEP_WORDS + 1];
    step_powers[1] = crc32c_word_powers[STEP_WORDS];
    for (size_t word = 0; word < STEP_WORDS - 2; word += 2) {
        size_t behind = STEP_WORDS - 2 - word;
        end_powers[word / 8][word % 8] = crc32c_word_powers[behind + 1];
        end_powers[word / 8][word % 8 + 1] = crc32c_word_powers[behind];
    }
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul") &&
           __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq");
}

const struct crc32c_implementation crc32c_avx512 = {"avx512-vpclmul", usable, extend, extend_word, find_header,
                                                     good_records};
#else
typedef int no_avx512; /* ISO C forbids an empty translation unit */
#endif
