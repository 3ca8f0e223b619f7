/* Tests the CRC32C implementations that a processor has against the definition, bit by bit, without Python: so
 * that ARM code can be tested on another machine, by an emulator. test_build.py compiles and runs it, here too.
 * Exits with 0 and prints the implementations that ran; prints what differs and exits with 1 otherwise. */
#include "../../streamrec/kernels/src/crc32c/crc32c.h"

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

/* A header at each of some places, near the start, in the middle and as the last that is looked at. */
static int
finds(const struct crc32c_implementation *tested)
{
    static uint8_t noise[400];
    int good = 1;
    for (size_t place = 0; place < 300; place++) {
        memcpy(noise, data, sizeof noise);
        uint8_t *header = noise + place;
        memset(header, 0, 8);
        header[0] = (uint8_t)place;
        uint32_t crc = crc32c_mask(~by_definition(0xFFFFFFFFu, header, 8));
        for (int i = 0; i < 4; i++) {
            header[8 + i] = (uint8_t)(crc >> 8 * i);
        }
        for (uint64_t limit = 299; limit < 1ull << 40; limit <<= 30) { /* with the filter and without */
            size_t found = tested->find_header(noise, place / 2, 300, limit);
            size_t none = tested->find_header(noise, place / 2, place, limit);
            if (found != place || none != place) {
                printf("%s: header at %zu, found at %zu, %zu\n", tested->name, place, found, none);
                good = 0;
            }
        }
    }
    return good;
}

static void
store_le32(uint8_t *target, uint32_t value)
{
    for (int i = 0; i < 4; i++) {
        target[i] = (uint8_t)(value >> 8 * i);
    }
}

enum { RECORDS = 60 };

/* Records of many lengths, short and long ones in turn; gives where each ends, and the bytes of all. */
static size_t
make_records(uint8_t *target, size_t *ends)
{
    size_t end = 0;
    for (size_t i = 0; i < RECORDS; i++) {
        size_t length = i % 7 == 6 ? 150 + i : 3 * i;
        uint8_t *header = target + end;
        memset(header, 0, 8);
        header[0] = (uint8_t)length;
        store_le32(header + 8, crc32c_mask(~by_definition(0xFFFFFFFFu, header, 8)));
        memcpy(header + 12, data + i, length);
        store_le32(header + 12 + length, crc32c_mask(~by_definition(0xFFFFFFFFu, header + 12, length)));
        ends[i] = end += 16 + length;
    }
    return end;
}

/* Walks over all of them, over as many as there is room for, and up to a damaged one. */
static int
walks(const struct crc32c_implementation *tested)
{
    static uint8_t stream[RECORDS * 300];
    static size_t ends[RECORDS];
    uint64_t lengths[RECORDS + 1];
    size_t size = make_records(stream, ends), count;
    int good = 1;
    for (size_t wanted = 0; wanted <= RECORDS; wanted++) {
        size_t end = wanted > 0 ? ends[wanted - 1] : 0;
        struct crc32c_records whole = {stream, size, 300, 1}, cut = {stream, end + (wanted < RECORDS ? 13 : 0), 300, 1};
        good &= tested->good_records(&whole, 0, lengths, wanted, &count) == end && count == wanted;
        good &= tested->good_records(&cut, 0, lengths, RECORDS + 1, &count) == end && count == wanted;
        for (size_t at = 0; wanted < RECORDS && at < ends[wanted] - end; at += 5) {
            stream[end + at] ^= 0x10;
            good &= tested->good_records(&whole, 0, lengths, RECORDS + 1, &count) == end && count == wanted;
            stream[end + at] ^= 0x10;
        }
    }
    if (!good) {
        printf("%s: the walk over records went wrong\n", tested->name);
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
            good &= test(*each) & finds(*each) & walks(*each);
            printf("%s\n", (*each)->name);
        }
    }
    return good ? 0 : 1;
}
