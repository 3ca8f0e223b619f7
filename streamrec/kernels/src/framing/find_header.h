/* The search for a header, in terms of one processor's CRC instruction. Included by each crc32c_*.c, after
 *   #define FIND_ATTRIBUTE     the function's target attribute, or nothing
 *   #define FIND_EXTEND_WORD   the implementation's extend_word(state, word)
 * so that the instruction stands in the loop itself: a call through a pointer for each place would cost more than
 * all of the rest. Defines find_header(), of the type that crc32c.h describes.
 *
 * Most places are ruled out sixteen or more at a time, by loops without a branch that compilers make vector
 * instructions of: the four highest bytes of a length below 4 GiB are zero (with a higher limit every place is
 * looked at, which is slower); and where the CRC's bytes are zero too, as in data that is full of zeros, the length
 * can only be the one whose masked CRC32C is zero (over lengths below 4 GiB it takes each value once). The places
 * that remain have their CRC computed.
 */
enum { STRETCH = 64, FILTERED_LIMIT_BITS = 32, LOW_BYTE_OF_ZERO_CRC = 0x85 }; /* of 0x0DE7AA85, 233,286,277 */

/* One byte for each of the STRETCH places from `data` on: 1 where a length below 4 GiB and its CRC may stand. */
FIND_ATTRIBUTE static inline void
mark_places(const uint8_t *data, uint8_t *marks)
{
    const uint8_t *high = data + 4, *crc = data + 8;
    for (size_t i = 0; i < STRETCH; i++) {
        uint8_t none = high[i] | high[i + 1] | high[i + 2] | high[i + 3];
        uint8_t some = crc[i] | crc[i + 1] | crc[i + 2] | crc[i + 3];
        marks[i] = (uint8_t)((none == 0) & ((some != 0) | (data[i] == LOW_BYTE_OF_ZERO_CRC)));
    }
}

/* The marks as bits, the first place lowest: a product moves eight bytes' lowest bits side by side. */
static inline uint64_t
as_bits(const uint8_t *marks)
{
    uint64_t bits = 0;
    for (size_t i = 0; i < STRETCH; i += 8) {
        bits |= (load_le64(marks + i) * 0x0102040810204080u >> 56) << i;
    }
    return bits;
}

FIND_ATTRIBUTE static inline int
is_header(const uint8_t *data, uint64_t limit)
{
    uint64_t length = load_le64(data);
    return (length <= limit) & (crc32c_mask(~FIND_EXTEND_WORD(0xFFFFFFFFu, length)) == load_le32(data + 8));
}

FIND_ATTRIBUTE static size_t
find_header(const uint8_t *data, size_t start, size_t stop, uint64_t limit)
{
    uint8_t marks[STRETCH];
    size_t position = start;
    if (limit >> FILTERED_LIMIT_BITS == 0) {
        for (; stop - position >= STRETCH; position += STRETCH) {
            mark_places(data + position, marks);
            for (uint64_t bits = as_bits(marks); bits != 0; bits &= bits - 1) {
                size_t place = position + (size_t)__builtin_ctzll(bits);
                if (is_header(data + place, limit)) {
                    return place;
                }
            }
        }
    }
    while (position < stop && !is_header(data + position, limit)) {
        position++;
    }
    return position;
}
#undef FIND_ATTRIBUTE
#undef FIND_EXTEND_WORD
