/* Runs of packed integers, in blocks of 64 bytes.
 *
 * The bytes that end a varint (those without the high bit) are found first; each value is then taken out of one
 * word, without a branch for each of its bytes, and none waits for the one before. Where the processor has a fast
 * PEXT (x86-64 with BMI2, but not AMD's before Zen 3, which run it in microcode) one instruction takes a value out,
 * elsewhere three steps of masks and shifts do.
 */
#ifndef STREAMREC_DECODE_VARINTS_H
#define STREAMREC_DECODE_VARINTS_H

#include "decode_wire.h"

#if defined(__x86_64__) && defined(__GNUC__)
#define DECODE_HAS_PEXT 1
#include <immintrin.h>
#endif

enum { BLOCK = 64, BLOCK_READ = BLOCK + 8 /* a value that ends within a block is taken out of 8 bytes */ };

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

#define READ_BLOCKS read_blocks_with_masks
#define JOIN join_with_masks
#define TARGET
#include "decode_blocks.h"

#ifdef DECODE_HAS_PEXT
#define READ_BLOCKS read_blocks_with_pext
#define JOIN(word, size) ((int64_t)_pext_u64(_bzhi_u64(word, (unsigned)(8 * (size))), 0x7F7F7F7F7F7F7F7FULL))
#define TARGET __attribute__((target("bmi,bmi2,popcnt")))
#include "decode_blocks.h"
#endif

static inline int
fast_pext(void)
{
#ifdef DECODE_HAS_PEXT
    return __builtin_cpu_supports("bmi2") && !__builtin_cpu_is("znver1") && !__builtin_cpu_is("znver2");
#else
    return 0;
#endif
}

/* Decodes varints up to `end`. Of `*count` values found, the first `room` are written. */
static inline const uint8_t *
read_varints_by(int pext, const uint8_t *at, const uint8_t *end, int64_t *out, int64_t room, int64_t *count)
{
    int64_t found = 0;
    if (end - at >= BLOCK_READ && room >= BLOCK) {
#ifdef DECODE_HAS_PEXT
        at = pext ? read_blocks_with_pext(at, end, out, room, &found)
                  : read_blocks_with_masks(at, end, out, room, &found);
#else
        (void)pext;
        at = read_blocks_with_masks(at, end, out, room, &found);
#endif
    }
    while (at != NULL && at < end) {
        uint64_t value;
        if ((at = read_varint(at, end, &value)) != NULL) {
            if (found < room) {
                out[found] = (int64_t)value;
            }
            found++;
        }
    }
    *count = found;
    return at;
}

static inline const uint8_t *
read_varints(const uint8_t *at, const uint8_t *end, int64_t *out, int64_t room, int64_t *count)
{
    return read_varints_by(end - at >= BLOCK_READ && fast_pext(), at, end, out, room, count);
}

#endif
