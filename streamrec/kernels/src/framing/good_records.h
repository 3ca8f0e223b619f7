/* The walk over good records, in terms of one processor's CRC instructions. Included by each crc32c_*.c, after
 *   #define GOOD_NAME          the function's name
 *   #define GOOD_ATTRIBUTE     its target attribute, or nothing
 *   #define GOOD_EXTEND        the implementation's extend(state, data, size), inlined
 *   #define GOOD_EXTEND_WORD   the implementation's extend_word(state, word)
 *   #define GOOD_EXTEND_THREE  optional: its extend_three_short(payloads, lengths, states)
 * so that a record of 84 bytes, which is eleven CRC instructions, does not cost two calls through pointers.
 * Defines GOOD_NAME(), of the type that crc32c.h describes.
 *
 * Short records are checked three at a time, word by word. A CRC instruction takes three cycles and waits for the one
 * before it; of a record's whole chain, the processor's queue for them holds two, so one record after the
 * other runs at half the speed.
 */
#ifndef STREAMREC_GOOD_RECORDS_H
#define STREAMREC_GOOD_RECORDS_H
#include "support/prefetch.h"

enum { SHORT_BYTES = 256 }; /* longer payloads are split, or folded, themselves */

static inline uint32_t
stored_crc(const uint8_t *payload, uint64_t length)
{
    return load_le32(payload + length);
}
#endif

#define GOOD_LENGTH_NAME(name) name##_length
#define GOOD_LENGTH_OF(name) GOOD_LENGTH_NAME(name)
#define GOOD_THREE_NAME(name) name##_three
#define GOOD_THREE_OF(name) GOOD_THREE_NAME(name)

/* Whether a whole record lies at `position`, by its length. */
GOOD_ATTRIBUTE static inline int
GOOD_LENGTH_OF(GOOD_NAME)(const struct crc32c_records *records, size_t position, uint64_t *length)
{
    if (records->size - position < CRC32C_FRAME_BYTES) {
        return 0;
    }
    const uint8_t *header = records->data + position;
    *length = load_le64(header);
    return crc32c_mask(~GOOD_EXTEND_WORD(0xFFFFFFFFu, *length)) == load_le32(header + 8) &&
           *length <= records->max_record_bytes && *length <= records->size - position - CRC32C_FRAME_BYTES;
}

#ifdef GOOD_EXTEND_THREE
/* Whether three short good records follow each other from `position` on. */
GOOD_ATTRIBUTE static inline int
GOOD_THREE_OF(GOOD_NAME)(const struct crc32c_records *records, size_t position, uint64_t *lengths)
{
    const uint8_t *payloads[3];
    uint32_t states[3] = {0xFFFFFFFFu, 0xFFFFFFFFu, 0xFFFFFFFFu};
    for (int i = 0; i < 3; i++) {
        if (!GOOD_LENGTH_OF(GOOD_NAME)(records, position, &lengths[i]) || lengths[i] >= SHORT_BYTES) {
            return 0;
        }
        payloads[i] = records->data + position + CRC32C_HEADER_BYTES;
        prefetch_ahead(payloads[i], FAR_BYTES, 2 * CACHE_LINE); /* most are about that long, and no loop is foreseen as well */
        position += CRC32C_FRAME_BYTES + lengths[i];
    }
    GOOD_EXTEND_THREE(payloads, lengths, states);
    return crc32c_mask(~states[0]) == stored_crc(payloads[0], lengths[0]) &&
           crc32c_mask(~states[1]) == stored_crc(payloads[1], lengths[1]) &&
           crc32c_mask(~states[2]) == stored_crc(payloads[2], lengths[2]);
}
#endif

GOOD_ATTRIBUTE static size_t
GOOD_NAME(const struct crc32c_records *given, size_t position, uint64_t *lengths, size_t capacity, size_t *count)
{
    const struct crc32c_records copy = *given, *records = &copy; /* no store can change a copy: it stays in registers */
    size_t found = 0;
    while (found < capacity) {
        uint64_t length;
#ifdef GOOD_EXTEND_THREE
        while (records->verify && capacity - found >= 3 &&
               GOOD_THREE_OF(GOOD_NAME)(records, position, lengths + found)) {
            position += 3 * CRC32C_FRAME_BYTES + lengths[found] + lengths[found + 1] + lengths[found + 2];
            found += 3;
        }
        if (found == capacity) {
            break;
        }
#endif
        if (!GOOD_LENGTH_OF(GOOD_NAME)(records, position, &length)) {
            break;
        }
        const uint8_t *payload = records->data + position + CRC32C_HEADER_BYTES;
        if (records->verify &&
            crc32c_mask(~GOOD_EXTEND(0xFFFFFFFFu, payload, length)) != stored_crc(payload, length)) {
            break;
        }
        lengths[found++] = length;
        position += CRC32C_FRAME_BYTES + length;
    }
    *count = found;
    return position;
}
#undef GOOD_NAME
#undef GOOD_ATTRIBUTE
#undef GOOD_EXTEND
#undef GOOD_EXTEND_WORD
#undef GOOD_EXTEND_THREE
#undef GOOD_LENGTH_NAME
#undef GOOD_LENGTH_OF
#undef GOOD_THREE_NAME
#undef GOOD_THREE_OF
