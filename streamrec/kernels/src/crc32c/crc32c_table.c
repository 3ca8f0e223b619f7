/* CRC32C for any processor: slicing-by-8, eight table look-ups for eight bytes.
 *
 * Kounavis and Berry, "A Systematic Approach to Building High Performance, Software-based, CRC Generators",
 * ISCC 2005. slices[k][b] is the register after byte b and k zero bytes, started at zero.
 */
#include "crc32c/crc32c.h"

static uint32_t slices[8][256];

static void
make_slices(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++) {
            state = (state >> 1) ^ (CRC32C_POLYNOMIAL & (0u - (state & 1)));
        }
        slices[0][byte] = state;
    }
    for (int k = 1; k < 8; k++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t state = slices[k - 1][byte];
            slices[k][byte] = (state >> 8) ^ slices[0][state & 0xFF];
        }
    }
}

static int
usable(void)
{
    make_slices();
    return 1;
}

static uint32_t
extend_word(uint32_t state, uint64_t word)
{
    word ^= state;
    return slices[7][word & 0xFF] ^ slices[6][(word >> 8) & 0xFF] ^ slices[5][(word >> 16) & 0xFF] ^
           slices[4][(word >> 24) & 0xFF] ^ slices[3][(word >> 32) & 0xFF] ^ slices[2][(word >> 40) & 0xFF] ^
           slices[1][(word >> 48) & 0xFF] ^ slices[0][word >> 56];
}

static uint32_t
extend(uint32_t state, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        state = extend_word(state, load_le64(data));
    }
    for (; size > 0; data++, size--) {
        state = (state >> 8) ^ slices[0][(state ^ *data) & 0xFF];
    }
    return state;
}

#define FIND_ATTRIBUTE
#define FIND_EXTEND_WORD extend_word
#include "framing/find_header.h"

#define GOOD_NAME good_records
#define GOOD_ATTRIBUTE
#define GOOD_EXTEND extend
#define GOOD_EXTEND_WORD extend_word
#include "framing/good_records.h"

const struct crc32c_implementation crc32c_table = {"table", usable, extend, extend_word, find_header,
                                                    good_records};
