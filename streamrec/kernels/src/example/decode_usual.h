/* The usual entry of a Features message: a single number or a byte string, packed, with nothing else around it:
 *
 *     0A entry 0A size key.. 12 feature kind list 0A size value..
 *
 * where all lengths follow from the value's. So the entry of a known key is compared as a whole with what it must
 * look like, and the value goes straight into its column. Whatever looks different (longer than 127 bytes, in
 * another order or in parts) is left to decode_match.h and decode_values.h, which accept these bytes too and give
 * the same. Only decode_match.h includes this.
 */
#ifndef STREAMREC_DECODE_USUAL_H
#define STREAMREC_DECODE_USUAL_H

#include "example/decode_core.h"
#include "example/decode_varints.h"
#include "example/decode_wire.h"

#include <stdlib.h>

/* A key that was met or is looked for, and if it is a slot's with usual values: what its entry looks like with a value
 * of no bytes (a float's: of four), and where values go. */
typedef struct {
    decode_slice key;
    uint64_t start; /* the key's first eight bytes, as far as it has them */
    uint64_t mask;  /* which of them it has */
    uint64_t tail;  /* the eight bytes in front of the value */
    int64_t found;  /* the record that it was found in, as found_in() or taken_in() has it */
    void *out;      /* the place for the first record's value */
    uint32_t head;  /* the first four bytes */
    int32_t next;   /* the key that followed it last time */
    uint8_t kind;   /* 0: its values are not taken here */
    uint8_t most;   /* the largest size of a value with which all lengths have one byte */
} known;

enum { AROUND_KEY = 10, MIN_ENTRY = 12, ENTRY_LENGTH = 1 << 8 /* of head */ };
static const uint64_t TAIL_LENGTHS = 0x0100010001000000ULL; /* the three lengths in tail */

/* Dense byte strings have room for all records from the start. */
static int
known_open(known *want, const decode_slot *slot, decode_column *column, int64_t records)
{
    int64_t size = slot->key.size;
    if (!slot->dense || slot->size != 1 || size > 0x7F - AROUND_KEY - 4 || records == 0) {
        return DECODE_OK;
    }
    want->out = column->dense;
    if (slot->kind == DECODE_BYTES) {
        column->values.capacity = records * (int64_t)sizeof(decode_slice);
        if ((want->out = column->values.data = malloc((size_t)column->values.capacity)) == NULL) {
            return DECODE_NO_MEMORY;
        }
    }
    uint8_t value = slot->kind == DECODE_FLOAT ? 4 : 0, tag = (uint8_t)(slot->kind << 3 | 2), entry[0x80] = {0};
    const uint8_t before[] = {DELIMITED_1, (uint8_t)(size + AROUND_KEY - 2 + value), DELIMITED_1, (uint8_t)size};
    const uint8_t behind[] = {DELIMITED_2, (uint8_t)(value + 4), tag, (uint8_t)(value + 2), DELIMITED_1, value};
    memcpy(entry, before, sizeof before);
    memcpy(entry + 4, slot->key.data, (size_t)size);
    want->start = load_word(entry + 4);
    want->mask = size < 8 ? (1ULL << 8 * size) - 1 : UINT64_MAX;
    memcpy(entry + 4 + size, behind, sizeof behind);
    memcpy(&want->head, entry, sizeof want->head);
    want->tail = load_word(entry + size + AROUND_KEY - 8);
    want->most = (uint8_t)(0x7F - AROUND_KEY - size);
    want->kind = slot->kind;
    return DECODE_OK;
}

/* One varint of 1 to 8 bytes up to `end`, with 8 readable bytes before it. */
static inline int
take_usual_int(const uint8_t *end, uint64_t size, int64_t *out)
{
    if (size - 1 > 7) {
        return 0;
    }
    uint64_t unused = 64 - 8 * size, word = load_word(end - 8) >> unused;
    if ((word & 0x8080808080808080ULL) != 0x0080808080808080ULL >> unused) {
        return 0;
    }
    if (size <= 4) {
        uint32_t pairs = ((uint32_t)word & 0x007F007F) | ((uint32_t)word >> 1 & 0x3F803F80);
        *out = (int64_t)((pairs & 0x3FFF) | pairs >> 16 << 14);
    }
    else {
        *out = join_with_masks(word, (int64_t)size);
    }
    return 1;
}

/* Takes the entry at `at` if it is the usual one of this key. Returns its end, or NULL. */
static inline const uint8_t *
take_usual(const known *want, int64_t record, const uint8_t *at, const uint8_t *end)
{
    int64_t key_size = want->key.size, before = AROUND_KEY + key_size;
    if (want->kind == 0 || end - at < MIN_ENTRY || end - at < before ||
        (load_word(at + 4) & want->mask) != want->start ||
        (key_size > 8 && !same_bytes(at + 12, want->key.data + 8, key_size - 8))) {
        return NULL;
    }
    const uint8_t *value = at + before;
    uint64_t tail = load_word(value - 8), size = tail >> 56;
    uint32_t head;
    memcpy(&head, at, sizeof head);
    if ((int64_t)size > end - value) {
        return NULL;
    }
    if (want->kind == DECODE_FLOAT) {
        if (tail != want->tail || head != want->head) {
            return NULL;
        }
        memcpy((uint8_t *)want->out + 4 * record, value, 4);
        return value + 4;
    }
    if (size > want->most || tail != want->tail + size * TAIL_LENGTHS || head != want->head + size * ENTRY_LENGTH) {
        return NULL;
    }
    if (want->kind == DECODE_BYTES) {
        ((decode_slice *)want->out)[record] = (decode_slice){value, (int64_t)size};
        return value + size;
    }
    return take_usual_int(value + size, size, (int64_t *)want->out + record) ? value + size : NULL;
}

#endif
