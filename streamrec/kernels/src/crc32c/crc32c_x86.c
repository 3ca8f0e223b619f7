/* CRC32C with SSE4.2's crc32 instruction: eight bytes a cycle, if the processor is kept busy.
 *
 * The instruction takes three cycles, and one can start in each, so one chain of them runs at a third of the
 * speed. Three parts of a buffer therefore run side by side, and are joined at the end: the first part's
 * register is multiplied by x^(bits that follow it), as if that many zeros had been fed. See Gopal et al.,
 * "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel, 2011.
 *
 * With PCLMULQDQ a join costs about ten cycles, so buffers from SPLIT_BYTES on are split, into parts of any
 * number of words: powers[] has the constant for each. Without it (Nehalem), a join costs hundreds of cycles, and
 * only blocks of LONG_BLOCK bytes are split. Consecutive short buffers overlap by themselves, because the
 * processor executes out of order, as long as no branch on the way is mispredicted: hence the tail without one.
 */
#if defined(__x86_64__)
#include "crc32c/crc32c_x86.h"
#include "support/prefetch.h"

#define SSE42_PCLMUL __attribute__((target("sse4.2,pclmul")))
#define SPLIT_BYTES 192   /* below this, joining costs more than one chain loses */
#define LONG_WORDS 1024   /* the same where joining is slow */
#define LONG_BLOCK (3 * 8 * LONG_WORDS)
#define AHEAD_BYTES (3 * 8 * MAX_WORDS) /* to where the next block is at this place */

struct registers {
    uint64_t first, second, third;
};

uint32_t crc32c_word_powers[2 * MAX_WORDS + 1];
static uint32_t long_power, long_power_twice; /* x^(64 LONG_WORDS), x^(128 LONG_WORDS) mod P */

SSE42 static inline struct registers
extend_three(uint32_t state, const uint8_t *data, size_t words)
{
    const uint8_t *second = data + 8 * words, *third = second + 8 * words;
    struct registers r = {state, 0, 0};
    for (size_t i = 0; i < 8 * words; i += 8) {
        if (i % CACHE_LINE == 0) { /* the processor's own prefetching loses its way among three parts */
            prefetch_ahead(data + i, AHEAD_BYTES, CACHE_LINE);
            prefetch_ahead(second + i, AHEAD_BYTES, CACHE_LINE);
            prefetch_ahead(third + i, AHEAD_BYTES, CACHE_LINE);
        }
        r.first = _mm_crc32_u64(r.first, load_le64(data + i));
        r.second = _mm_crc32_u64(r.second, load_le64(second + i));
        r.third = _mm_crc32_u64(r.third, load_le64(third + i));
    }
    return r;
}

SSE42_PCLMUL static inline __m128i
carryless(uint64_t state, uint32_t power)
{
    return _mm_clmulepi64_si128(_mm_cvtsi64_si128((long long)state), _mm_cvtsi32_si128((int)power), 0);
}

SSE42_PCLMUL static inline uint32_t
join_pclmul(struct registers r, size_t words)
{
    __m128i first = carryless(r.first, crc32c_word_powers[2 * words]);
    __m128i second = carryless(r.second, crc32c_word_powers[words]);
    uint64_t sum = (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(first, second));
    return (uint32_t)(_mm_crc32_u64(0, sum) ^ r.third);
}

SSE42_PCLMUL static inline uint32_t
extend_pclmul(uint32_t state, const uint8_t *data, size_t size)
{
    if (size < 8) {
        return extend_under_8(state, data, size);
    }
    while (size >= SPLIT_BYTES) {
        size_t words = size / 24 < MAX_WORDS ? size / 24 : MAX_WORDS;
        state = join_pclmul(extend_three(state, data, words), words);
        data += 24 * words;
        size -= 24 * words;
    }
    return extend_chain(state, data, size);
}

SSE42 static inline uint32_t
extend_sse42(uint32_t state, const uint8_t *data, size_t size)
{
    if (size < 8) {
        return extend_under_8(state, data, size);
    }
    for (; size >= LONG_BLOCK; data += LONG_BLOCK, size -= LONG_BLOCK) {
        struct registers r = extend_three(state, data, LONG_WORDS);
        state = crc32c_multiply((uint32_t)r.first, long_power_twice) ^
                crc32c_multiply((uint32_t)r.second, long_power) ^ (uint32_t)r.third;
    }
    return extend_chain(state, data, size);
}

#define FIND_ATTRIBUTE SSE42
#define FIND_EXTEND_WORD extend_word
#include "framing/find_header.h"

#define GOOD_NAME good_records_pclmul
#define GOOD_ATTRIBUTE SSE42_PCLMUL
#define GOOD_EXTEND extend_pclmul
#define GOOD_EXTEND_WORD extend_word
#define GOOD_EXTEND_THREE extend_three_short
#include "framing/good_records.h"

#define GOOD_NAME good_records_sse42
#define GOOD_ATTRIBUTE SSE42
#define GOOD_EXTEND extend_sse42
#define GOOD_EXTEND_WORD extend_word
#define GOOD_EXTEND_THREE extend_three_short
#include "framing/good_records.h"

void
crc32c_make_word_powers(void)
{
    static const uint8_t zeros[8] = {0};
    crc32c_word_powers[1] = 1; /* x^31 */
    for (size_t words = 2; words <= 2 * MAX_WORDS; words++) {
        crc32c_word_powers[words] = crc32c_table.extend(crc32c_word_powers[words - 1], zeros, sizeof zeros);
    }
}

static int
usable_pclmul(void)
{
    crc32c_make_word_powers();
    return __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul");
}

static int
usable_sse42(void)
{
    long_power = crc32c_power(8 * LONG_WORDS);
    long_power_twice = crc32c_power(16 * LONG_WORDS);
    return __builtin_cpu_supports("sse4.2") != 0;
}

const struct crc32c_implementation crc32c_sse42_pclmul = {"sse42-pclmul", usable_pclmul, extend_pclmul,
                                                          extend_word, find_header, good_records_pclmul};
const struct crc32c_implementation crc32c_sse42 = {"sse42", usable_sse42, extend_sse42, extend_word,
                                                   find_header, good_records_sse42};
#else
typedef int no_x86; /* ISO C forbids an empty translation unit */
#endif
