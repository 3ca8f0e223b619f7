/* The search for a header, in terms of one processor's CRC instruction. Included by each crc32c_*.c, after
 *   #define FIND_ATTRIBUTE     the function's target attribute, or nothing
 *   #define FIND_EXTEND_WORD   the implementation's extend_word(state, word)
 * so that the instruction stands in the loop itself: a call through a pointer for each byte would cost more than
 * all of the rest. Defines find_header(), of the type that crc32c.h describes.
 *
 * A length that may be is below the limit, so its four highest bytes are zero (if the limit is below 4 GiB; other
 * limits search more slowly). Whole stretches are passed over because no four zero bytes stand in them: the
 * first loop has no branch and no dependency, and compilers make vector instructions of it.
 */
enum { STRETCH = 64, ZEROS_FROM = 4, FILTERED_LIMIT_BITS = 32 };

/* Whether a length below 4 GiB may begin at any of the STRETCH places from `data` on. */
FIND_ATTRIBUTE static inline int
length_may_begin(const uint8_t *data)
{
    const uint8_t *high = data + ZEROS_FROM;
    uint8_t found = 0;
    for (size_t i = 0; i < STRETCH; i++) {
        found |= (uint8_t)((high[i] | high[i + 1] | high[i + 2] | high[i + 3]) == 0);
    }
    return found;
}

/* Whether the four bytes behind eight others are their masked CRC32C: crc32c_mask() with its inversion drawn out. */
FIND_ATTRIBUTE static inline int
is_checked(const uint8_t *data)
{
    uint32_t state = FIND_EXTEND_WORD(0xFFFFFFFFu, load_le64(data));
    return ((state >> 15) | (state << 17)) + load_le32(data + 8) == CRC32C_MASK_DELTA - 1;
}

/* Whether that holds at any of the STRETCH places: without a branch, because data that is half zeros, like what a
 * ReLU leaves, would have it mispredicted at every other word. */
FIND_ATTRIBUTE static inline int
any_is_checked(const uint8_t *data)
{
    int found = 0;
    for (size_t i = 0; i < STRETCH; i++) {
        found |= is_checked(data + i);
    }
    return found;
}

FIND_ATTRIBUTE static size_t
find_header(const uint8_t *data, size_t start, size_t stop, uint64_t limit)
{
    int filtered = limit >> FILTERED_LIMIT_BITS == 0;
    size_t position = start;
    while (position < stop) {
        size_t end = stop - position < STRETCH ? stop : position + STRETCH;
        const uint8_t *here = data + position;
        if (end - position == STRETCH && ((filtered && !length_may_begin(here)) || !any_is_checked(here))) {
            position = end;
        }
        for (; position < end; position++) {
            if (is_checked(data + position) && load_le64(data + position) <= limit) {
                return position;
            }
        }
    }
    return stop;
}
#undef FIND_ATTRIBUTE
#undef FIND_EXTEND_WORD
