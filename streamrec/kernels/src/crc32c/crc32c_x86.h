/* What CRC32C on x86-64 is made of: the crc32 instruction on short buffers, for each file that uses it. */
#ifndef STREAMREC_CRC32C_X86_H
#define STREAMREC_CRC32C_X86_H

#include "crc32c/crc32c.h"

#include <immintrin.h>

#define SSE42 __attribute__((target("sse4.2")))
#define MAX_WORDS 256 /* words of 8 bytes in each of three parts */

/* crc32c_word_powers[w]: x^(64w - 33) mod P, from w = 1 on. Carry-less products of reflected polynomials, 64 bits by 32,
 * come out times x^33: therefore the 33 less. */
extern uint32_t crc32c_word_powers[2 * MAX_WORDS + 1];
void crc32c_make_word_powers(void);

SSE42 static inline uint32_t
extend_under_8(uint32_t state, const uint8_t *data, size_t size)
{
    for (; size > 0; data++, size--) {
        state = _mm_crc32_u8(state, *data);
    }
    return state;
}

/* The last `size` % 8 bytes before `end`, without a branch; eight bytes before `end` must be readable.
 * Zero bytes in front of a message change nothing when the register starts at zero, so the tail is moved to the
 * end of a word of zeros, with the register added to its first four bytes; what of the register
 * lies behind a tail of under four bytes has only been shifted. */
SSE42 static inline uint32_t
extend_tail(uint64_t state, const uint8_t *end, size_t size)
{
    unsigned used = 8 * (size & 7), unused = 56 - used; /* in bits; used + unused + 8 = 64 */
    uint64_t tail = load_le64(end - 8) >> 8 >> unused;
    return (uint32_t)(_mm_crc32_u64(0, (tail ^ state) << unused << 8) ^ (state >> used));
}

/* One chain: for buffers of at least eight bytes before `data + size`. */
SSE42 static inline uint32_t
extend_chain(uint32_t state, const uint8_t *data, size_t size)
{
    uint64_t wide = state;
    const uint8_t *end = data + size;
    for (const uint8_t *stop = end - size % 8; data < stop; data += 8) {
        wide = _mm_crc32_u64(wide, load_le64(data));
    }
    return extend_tail(wide, end, size);
}

SSE42 static inline uint32_t
extend_word(uint32_t state, uint64_t word)
{
    return (uint32_t)_mm_crc32_u64(state, word);
}

/* Three payloads of records side by side, each behind a header, so that eight bytes before its end are readable. */
SSE42 static inline void
extend_three_short(const uint8_t *const *payloads, const uint64_t *lengths, uint32_t *states)
{
    /* compared in words: lengths that differ within a word are a branch that nobody can predict */
    uint64_t words = lengths[0] / 8;
    words = lengths[1] / 8 < words ? lengths[1] / 8 : words;
    words = lengths[2] / 8 < words ? lengths[2] / 8 : words;
    size_t together = 8 * (size_t)words;
    uint64_t first = states[0], second = states[1], third = states[2];
    for (size_t i = 0; i < together; i += 8) {
        first = _mm_crc32_u64(first, load_le64(payloads[0] + i));
        second = _mm_crc32_u64(second, load_le64(payloads[1] + i));
        third = _mm_crc32_u64(third, load_le64(payloads[2] + i));
    }
    states[0] = extend_chain((uint32_t)first, payloads[0] + together, lengths[0] - together);
    states[1] = extend_chain((uint32_t)second, payloads[1] + together, lengths[1] - together);
    states[2] = extend_chain((uint32_t)third, payloads[2] + together, lengths[2] - together);
}

#endif
