/* Reading the wire format: varints, tags, lengths, and runs of packed integers.
 *
 * Every reader takes a place and the end of what it may read, and returns the place after what it read, or NULL
 * where the bytes are not what they should be. Runs of integers are read in blocks of 64 bytes: the bytes that
 * end a varint (those without the high bit) are found first, and each value is then taken out of one word, without
 * a branch for each of its bytes.
 */
#ifndef STREAMREC_DECODE_WIRE_H
#define STREAMREC_DECODE_WIRE_H

#include <stdint.h>
#include <string.h>

#define DECODE_LIKELY(condition) __builtin_expect(!!(condition), 1)

enum { MAX_VARINT = 10, DELIMITED_1 = 0x0A, DELIMITED_2 = 0x12, VARINT_1 = 0x08, FIXED32_1 = 0x0D };

static inline const uint8_t *
read_varint(const uint8_t *at, const uint8_t *end, uint64_t *value)
{
    uint64_t sum = 0;
    for (int count = 0; count < MAX_VARINT && at < end; count++) {
        uint64_t byte = *at++;
        sum |= (byte & 0x7F) << (7 * count);
        if (byte < 0x80) {
            *value = sum;
            return at;
        }
    }
    return NULL;
}

/* A length: of a longer varint the low 32 bits count. */
static inline const uint8_t *
read_length(const uint8_t *at, const uint8_t *end, int64_t *length)
{
    if (DECODE_LIKELY(at < end && *at < 0x80)) {
        *length = *at;
        return at + 1;
    }
    uint64_t value = 0;
    at = read_varint(at, end, &value);
    *length = (int64_t)(value & 0xFFFFFFFF);
    return at;
}

/* The end of a message of `length` bytes at `at`, cut to the enclosing one. */
static inline const uint8_t *
cut(const uint8_t *at, int64_t length, const uint8_t *end)
{
    return length < end - at ? at + length : end;
}

/* The end of an unknown field at the top level; groups are refused. */
static inline const uint8_t *
skip_field(const uint8_t *at, const uint8_t *end)
{
    uint64_t value;
    int64_t tag, length;
    if ((at = read_length(at, end, &tag)) == NULL) {
        return NULL;
    }
    switch (tag & 7) {
    case 0:
        return read_varint(at, end, &value);
    case 1:
        return end - at >= 8 ? at + 8 : NULL;
    case 2: /* one of 2 GiB and more is not skipped at all: TensorFlow's int turns negative */
        at = read_length(at, end, &length);
        return at == NULL || length > INT32_MAX ? at : cut(at, length, end);
    case 5:
        return end - at >= 4 ? at + 4 : NULL;
    default:
        return NULL;
    }
}

/* Whether a Feature that starts with this byte holds one of the three lists. */
static inline int
is_kind(uint8_t tag)
{
    return tag == 0x0A || tag == 0x12 || tag == 0x1A;
}

static inline uint64_t
load_word(const uint8_t *at)
{
    uint64_t word;
    memcpy(&word, at, sizeof word);
    return word;
}

/* Drops the high bit of each byte and closes the gaps. */
static inline int64_t
join_sevens(uint64_t word)
{
    word = (word & 0x007F007F007F007FULL) | ((word & 0x7F007F007F007F00ULL) >> 1);
    word = (word & 0x00003FFF00003FFFULL) | ((word & 0x3FFF00003FFF0000ULL) >> 2);
    word = (word & 0x000000000FFFFFFFULL) | ((word & 0x0FFFFFFF00000000ULL) >> 4);
    return (int64_t)word;
}

/* One bit for each of 64 bytes: whether a varint ends there, that is, its high bit is not set. */
static inline uint64_t
varint_ends(const uint8_t *block)
{
    uint64_t ends = 0;
    for (int word = 0; word < 8; word++) {
        uint64_t high = (~load_word(block + 8 * word) & 0x8080808080808080ULL) >> 7;
        ends |= (high * 0x0102040810204080ULL >> 56) << (8 * word);
    }
    return ends;
}

/* Decodes the varints that end within a block of 64 bytes, of which the first starts at `at`, in the block or
 * up to 10 bytes before it. Eight bytes behind the block must be readable, and `out` have room for 64 values.
 * Where each one ends is known beforehand, so that none waits for the one before. */
static inline const uint8_t *
read_block(const uint8_t *at, const uint8_t *block, int64_t *out, int64_t *found)
{
    uint64_t ends = varint_ends(block);
    int64_t count = 0;
    if (ends == UINT64_MAX && at == block) {
        for (int i = 0; i < 64; i++) {
            out[i] = block[i];
        }
        *found += 64;
        return block + 64;
    }
    for (; ends != 0; ends &= ends - 1, count++) {
        const uint8_t *stop = block + __builtin_ctzll(ends) + 1;
        int64_t size = stop - at;
        if (DECODE_LIKELY(size <= 8)) {
            out[count] = join_sevens(load_word(at) & UINT64_MAX >> (64 - 8 * size));
        }
        else {
            uint64_t value;
            if (read_varint(at, stop, &value) == NULL) {
                return NULL;
            }
            out[count] = (int64_t)value;
        }
        at = stop;
    }
    *found += count;
    return at;
}

/* Decodes varints up to `end`. Of `*count` values found, the first `room` are written. */
static inline const uint8_t *
read_varints(const uint8_t *at, const uint8_t *end, int64_t *out, int64_t room, int64_t *count)
{
    int64_t found = 0;
    for (const uint8_t *block = at; end - block >= 64 + 8 && room - found >= 64; block += 64) {
        if ((at = read_block(at, block, out + found, &found)) == NULL || block + 64 - at > MAX_VARINT) {
            return NULL;
        }
    }
    while (at < end) {
        uint64_t value;
        if ((at = read_varint(at, end, &value)) == NULL) {
            return NULL;
        }
        if (found < room) {
            out[found] = (int64_t)value;
        }
        found++;
    }
    *count = found;
    return at;
}

/* Whether two strings of one length are equal; most keys are short, so this is faster than memcmp. */
static inline int
same_bytes(const uint8_t *one, const uint8_t *other, int64_t size)
{
    if (size >= 8) {
        for (int64_t at = 0; at + 8 < size; at += 8) {
            if (load_word(one + at) != load_word(other + at)) {
                return 0;
            }
        }
        return load_word(one + size - 8) == load_word(other + size - 8);
    }
    if (size >= 4) {
        uint32_t heads[2], tails[2];
        memcpy(&heads[0], one, 4);
        memcpy(&heads[1], other, 4);
        memcpy(&tails[0], one + size - 4, 4);
        memcpy(&tails[1], other + size - 4, 4);
        return heads[0] == heads[1] && tails[0] == tails[1];
    }
    for (int64_t at = 0; at < size; at++) {
        if (one[at] != other[at]) {
            return 0;
        }
    }
    return 1;
}

static inline uint64_t
hash_bytes(const uint8_t *data, int64_t size)
{
    uint64_t hash = (uint64_t)size * 0x9E3779B97F4A7C15ULL;
    for (; size >= 8; data += 8, size -= 8) {
        hash = (hash ^ load_word(data)) * 0xD6E8FEB86659FD93ULL;
        hash ^= hash >> 32;
    }
    for (; size > 0; data++, size--) {
        hash = (hash ^ *data) * 0xD6E8FEB86659FD93ULL;
    }
    return hash ^ hash >> 32;
}

#endif
