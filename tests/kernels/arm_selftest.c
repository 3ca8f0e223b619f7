/* Tests the CRC32C implementations that a processor has against the definition, bit by bit, without Python: so
 * that ARM code can be tested on another machine, by an emulator. test_arm.py compiles and runs it.
 * Exits with 0 and prints the implementations that ran; prints what differs and exits with 1 otherwise. */
#include "../../streamrec/kernels/src/crc32c.h"

#include <stdio.h>

static uint8_t data[3 * 24576 + 64];

static uint32_t
by_definition(uint32_t state, const uint8_t *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        state ^= bytes[i];
        for (int bit = 0; bit < 8; bit++) {
            state = (state >> 1) ^ ((state & 1) ? CRC32C_POLYNOMIAL : 0);
        }
    }
    return state;
}

static int
same(const struct crc32c_implementation *tested, size_t start, size_t size)
{
    uint32_t state = (uint32_t)(0x9E3779B9u * (start + 31 * size));
    uint32_t wanted = by_definition(state, data + start, size);
    uint32_t found = tested->extend(state, data + start, size);
    if (found != wanted) {
        printf("%s: start %zu, size %zu: found %08x, wanted %08x\n", tested->name, start, size, found, wanted);
    }
    return found == wanted;
}

static int
test(const struct crc32c_implementation *tested)
{
    static const size_t large[] = {191, 192, 6143, 6144, 6145, 24575, 24576, 24577, 49152, 60000, 73728};
    int good = 1;
    for (size_t start = 0; start < 8; start++) {
        for (size_t size = 0; size < 300; size++) {
            good &= same(tested, start, size);
        }
        for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
            good &= same(tested, start, large[i]);
        }
    }
    return good;
}

int
main(void)
{
    uint32_t noise = 1;
    for (size_t i = 0; i < sizeof data; i++) {
        noise = noise * 1664525u + 1013904223u;
        data[i] = (uint8_t)(noise >> 24);
    }
    crc32c_choose();
    int good = crc32c_masked((const uint8_t *)"123456789", 9) == crc32c_mask(0xE3069283u);
    for (const struct crc32c_implementation *const *each = crc32c_implementations; *each != NULL; each++) {
        if ((*each)->usable()) {
            good &= test(*each);
            printf("%s\n", (*each)->name);
        }
    }
    return good ? 0 : 1;
}
