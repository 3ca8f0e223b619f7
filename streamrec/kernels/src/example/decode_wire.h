/* Reading the wire format: varints, tags and lengths; comparing and hashing keys.
 *
 * Every reader takes a place and the end of what it may read, and returns the place after what it read, or NULL
 * where the bytes are not what they should be. Runs of integers have
 * decode_varints.h to themselves.
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
