/* CRC32C (Castagnoli, polynomial 0x1EDC6F41, reflected), in several implementations of one signature.
 *
 * The interface works on the raw register: it starts at 0xFFFFFFFF and is inverted at the end, as RFC 3720
 * appendix B.4 has it; crc32c_of() does both. An implementation is a plain C function without Python, so that
 * it can be compiled and tested alone (tests/kernels/arm_selftest.c does).
 *
 * Feeding n zero bytes multiplies the register by x^(8n) mod P. That one fact is all the polynomial arithmetic
 * here: it makes the tables, and the constants that join streams which were computed side by side.
 */
#ifndef STREAMREC_CRC32C_H
#define STREAMREC_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define CRC32C_POLYNOMIAL 0x82F63B78u /* 0x1EDC6F41 with its bits reversed */
#define CRC32C_MASK_DELTA 0xA282EAD8u /* TFRecord's mask, from tensorflow/core/lib/hash/crc32c.h */

typedef uint32_t (*crc32c_extend)(uint32_t state, const uint8_t *data, size_t size);
typedef uint32_t (*crc32c_extend_word)(uint32_t state, uint64_t word);
/* Bytes of records, and what is asked of them; the frames.c family has the rest of the format. */
struct crc32c_records {
    const uint8_t *data;
    size_t size;
    uint64_t max_record_bytes;
    int verify; /* the payloads' CRCs too */
};
enum { CRC32C_HEADER_BYTES = 12, CRC32C_FRAME_BYTES = 16 };

typedef size_t (*crc32c_good_records)(const struct crc32c_records *records, size_t position, uint64_t *lengths,
                                      size_t capacity, size_t *count);
typedef size_t (*crc32c_find_header)(const uint8_t *data, size_t start, size_t stop, uint64_t limit);

struct crc32c_implementation {
    const char *name;
    int (*usable)(void); /* does this processor have the instructions? Makes the constants if so */
    crc32c_extend extend;
    crc32c_extend_word extend_word; /* by eight bytes, little-endian: every record's length is that long */
    /* The first place from start on, and before stop, of eight bytes that are no more than limit (little-endian)
     * and of which the next four are the masked CRC32C; stop if there is none. Reads up to stop + 10. */
    crc32c_find_header find_header;
    /* Walks over whole good records from position on, to the first other one or until `capacity` are found;
     * gives their lengths, their number, and where it stands. */
    crc32c_good_records good_records;
};

/* The implementations compiled in, best first; the last runs everywhere. NULL ends the list. */
extern const struct crc32c_implementation *const crc32c_implementations[];
extern const struct crc32c_implementation crc32c_table;
#if defined(__x86_64__)
extern const struct crc32c_implementation crc32c_avx512;
extern const struct crc32c_implementation crc32c_sse42_pclmul;
extern const struct crc32c_implementation crc32c_sse42;
#elif defined(__aarch64__)
extern const struct crc32c_implementation crc32c_armv8;
#endif

/* The best implementation of this processor. Set by crc32c_choose(). */
extern struct crc32c_implementation crc32c_best;

/* Makes the tables and picks the implementation. Call once before anything else; again does no harm. */
void crc32c_choose(void);

/* a * b mod P, bit by bit: some hundred cycles, for use once in many kilobytes. */
uint32_t crc32c_multiply(uint32_t a, uint32_t b);

/* x^(8 * bytes) mod P. */
uint32_t crc32c_power(size_t bytes);

static inline uint64_t
load_le64(const uint8_t *bytes)
{
    uint64_t value;
    memcpy(&value, bytes, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

static inline uint32_t
load_le32(const uint8_t *bytes)
{
    uint32_t value;
    memcpy(&value, bytes, sizeof value);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap32(value);
#endif
    return value;
}

static inline uint32_t
crc32c_of(const uint8_t *data, size_t size)
{
    return ~crc32c_best.extend(0xFFFFFFFFu, data, size);
}

/* TFRecord stores CRCs masked, so that the CRC of bytes which hold CRCs stays a good one. */
static inline uint32_t
crc32c_mask(uint32_t crc)
{
    return ((crc >> 15) | (crc << 17)) + CRC32C_MASK_DELTA;
}

static inline uint32_t
crc32c_masked_word(uint64_t word)
{
    return crc32c_mask(~crc32c_best.extend_word(0xFFFFFFFFu, word));
}

static inline uint32_t
crc32c_masked(const uint8_t *data, size_t size)
{
    return crc32c_mask(crc32c_of(data, size));
}

#endif
