/* First step of the walk: where the Features of the wanted keys lie in a record; usual ones are taken at once
 * (decode_usual.h). Only decode_core.c includes this.
 *
 * Keys are matched without hashing where their order repeats: each key remembers which one followed it last time,
 * and is compared with that first. Keys that nobody asked for take part too, in a small cache.
 *
 * The functions return DECODE_OK or a code of decode_core.h.
 */
#ifndef STREAMREC_DECODE_MATCH_H
#define STREAMREC_DECODE_MATCH_H

#include "example/decode_core.h"
#include "example/decode_usual.h"
#include "example/decode_wire.h"

#include <stdlib.h>

enum { STRANGERS = 64 };

/* What one part of a message (features, context or feature lists) is matched with. */
typedef struct {
    const decode_plan *plan;
    decode_slice *values; /* for each slot: where its value lies, if it was found in this record */
    known *keys;          /* of the slots, of STRANGERS other keys, and of the start, which has none */
    int32_t last;
    int64_t record;
    int64_t left;   /* slots whose value was not taken yet */
    int64_t others; /* keys without a slot, in all records so far */
} matcher;

static int
matcher_open(matcher *match, const decode_plan *plan)
{
    int32_t keys = (int32_t)plan->count + STRANGERS + 1;
    match->plan = plan;
    match->record = -1;
    match->values = malloc((size_t)(plan->count + 1) * sizeof *match->values);
    match->keys = calloc((size_t)keys, sizeof *match->keys);
    if (match->values == NULL || match->keys == NULL) {
        return DECODE_NO_MEMORY;
    }
    for (int32_t key = 0; key < keys; key++) {
        match->keys[key].key = key < plan->count ? plan->slots[key].key : (decode_slice){NULL, -1};
        match->keys[key].next = keys - 1;
    }
    return DECODE_OK;
}

/* Lets usual values be taken at once, into the columns of `records` records. */
static int
matcher_take(matcher *match, decode_column *columns, int64_t records)
{
    int code = DECODE_OK;
    for (int64_t slot = 0; code == DECODE_OK && slot < match->plan->count; slot++) {
        code = known_open(&match->keys[slot], &match->plan->slots[slot], &columns[slot], records);
    }
    return code;
}

static void
matcher_close(matcher *match)
{
    free(match->values);
    free(match->keys);
}

static void
matcher_start(matcher *match)
{
    match->record++;
    match->left = match->plan->count;
    match->last = (int32_t)match->plan->count + STRANGERS;
}

static inline int64_t
found_in(int64_t record)
{
    return 2 * record + 1;
}

static inline int64_t
taken_in(int64_t record)
{
    return 2 * record + 2;
}

static inline void
keep_value(matcher *match, int32_t slot, decode_slice value)
{
    match->left += match->keys[slot].found == taken_in(match->record);
    match->keys[slot].found = found_in(match->record);
    match->values[slot] = value;
}

/* The value of a slot that was not taken; its data is NULL where there is none. */
static inline decode_slice
value_of(const matcher *match, int64_t slot)
{
    return match->keys[slot].found == found_in(match->record) ? match->values[slot] : (decode_slice){NULL, 0};
}

/* The number of a key that did not follow as last time: its slot's, or one for strangers. */
static int32_t
look_up(matcher *match, const uint8_t *data, int64_t size)
{
    const decode_plan *plan = match->plan;
    uint64_t hash = hash_bytes(data, size);
    for (uint64_t place = hash & plan->mask; plan->table[place] >= 0; place = (place + 1) & plan->mask) {
        int32_t slot = plan->table[place];
        if (plan->slots[slot].key.size == size && same_bytes(plan->slots[slot].key.data, data, size)) {
            return slot;
        }
    }
    int32_t stranger = (int32_t)plan->count + (int32_t)(hash >> 40 & (STRANGERS - 1));
    match->keys[stranger].key = (decode_slice){data, size};
    return stranger;
}

/* The slot of a key, or -1. */
static inline int32_t
match_key(matcher *match, const uint8_t *data, int64_t size)
{
    int32_t guess = match->keys[match->last].next;
    const decode_slice *key = &match->keys[guess].key;
    if (!DECODE_LIKELY(key->size == size && same_bytes(key->data, data, size))) {
        guess = look_up(match, data, size);
        match->keys[match->last].next = guess;
    }
    match->last = guess;
    match->others += guess >= match->plan->count;
    return guess < match->plan->count ? guess : -1;
}

/* Keeps a Feature of an Example, if it is asked for. `slot` is whose it is, or -1. */
static inline int
keep_feature(matcher *match, decode_slice key, decode_slice value, int32_t *slot)
{
    *slot = match_key(match, key.data, key.size);
    if (*slot < 0 || (value.size == 0 && !match->plan->slots[*slot].empty_counts)) {
        return DECODE_OK;
    }
    if (value.size > 0 && !is_kind(*value.data)) {
        return DECODE_KIND;
    }
    keep_value(match, *slot, value);
    return DECODE_OK;
}

/* Key and value of a map entry in either order, each of them once or one of them twice. */
static int
read_entry(const uint8_t *at, const uint8_t *end, decode_slice *key, decode_slice *value)
{
    *key = *value = (decode_slice){at, 0};
    for (int part = 0; part < 2; part++) {
        int64_t tag, length;
        if ((at = read_length(at, end, &tag)) == NULL || (tag != DELIMITED_1 && tag != DELIMITED_2)) {
            return 0;
        }
        if ((at = read_length(at, end, &length)) == NULL || length > end - at) {
            return 0;
        }
        *(tag == DELIMITED_1 ? key : value) = (decode_slice){at, length};
        at += length;
    }
    return at == end;
}

/* The usual form of a map entry: key, then value, one-byte lengths. Returns its end, or NULL for any other. */
static inline const uint8_t *
read_short_entry(const uint8_t *at, const uint8_t *end, decode_slice *key, decode_slice *value)
{
    if (end - at < 6 || at[1] >= 0x80 || at[1] < 4 || at[1] > end - at - 2 || at[2] != DELIMITED_1) {
        return NULL;
    }
    int64_t whole = at[1], size = at[3];
    if (size > whole - 4 || at[4 + size] != DELIMITED_2 || at[5 + size] != whole - size - 4) {
        return NULL;
    }
    *key = (decode_slice){at + 4, size};
    *value = (decode_slice){at + 6 + size, whole - size - 4};
    return at + 2 + whole;
}

/* Takes entries as long as each is the one that followed last time, in its usual form. Returns where others begin. */
static inline const uint8_t *
take_expected(matcher *match, const uint8_t *at, const uint8_t *end)
{
    int64_t record = match->record, taken = taken_in(record), left = match->left;
    known *keys = match->keys, *last = &keys[match->last];
    while (at < end) {
        known *guess = &keys[last->next];
        const uint8_t *next = take_usual(guess, record, at, end);
        if (next == NULL) {
            break;
        }
        left -= guess->found != taken;
        guess->found = taken;
        last = guess;
        at = next;
    }
    match->left = left;
    match->last = (int32_t)(last - keys);
    return at;
}

/* The entries of one Features message. `slot` says whose Feature is of no kind, for DECODE_KIND. */
static int
match_features(matcher *match, const uint8_t *at, const uint8_t *end, int64_t *slot)
{
    decode_slice key, value;
    *slot = -1;
    while (at < end) {
        int64_t length;
        if ((at = take_expected(match, at, end)) == end) {
            break;
        }
        if (*at != DELIMITED_1) {
            return DECODE_MESSAGE;
        }
        const uint8_t *next = read_short_entry(at, end, &key, &value);
        if (next == NULL) {
            if ((at = read_length(at + 1, end, &length)) == NULL) {
                return DECODE_MESSAGE;
            }
            next = cut(at, length, end);
            if (!read_entry(at, next, &key, &value)) {
                return DECODE_MESSAGE;
            }
        }
        at = next;
        int32_t found;
        if (keep_feature(match, key, value, &found) != DECODE_OK && *slot < 0) {
            *slot = found; /* a later entry that is damaged outweighs it */
        }
    }
    return *slot < 0 ? DECODE_OK : DECODE_KIND;
}

static int
match_example(matcher *match, decode_slice record, int64_t *slot)
{
    const uint8_t *at = record.data, *end = at + record.size;
    int64_t blamed = -1, found;
    matcher_start(match);
    while (at < end) {
        int64_t length;
        if (*at != DELIMITED_1) {
            if ((at = skip_field(at, end)) == NULL) {
                return DECODE_MESSAGE;
            }
            continue;
        }
        if ((at = read_length(at + 1, end, &length)) == NULL) {
            return DECODE_MESSAGE;
        }
        const uint8_t *stop = cut(at, length, end);
        if (match_features(match, at, stop, &found) == DECODE_MESSAGE) {
            return DECODE_MESSAGE;
        }
        blamed = blamed < 0 ? found : blamed;
        at = stop;
    }
    *slot = blamed;
    return blamed < 0 ? DECODE_OK : DECODE_KIND;
}

/* The entries of a context or of feature lists: the key comes first, and the last of one key counts. */
static int
match_map(matcher *match, const uint8_t *at, const uint8_t *end)
{
    while (at < end) {
        int64_t length, key_size;
        if (*at != DELIMITED_1 || (at = read_length(at + 1, end, &length)) == NULL) {
            return DECODE_MESSAGE;
        }
        const uint8_t *stop = cut(at, length, end);
        if (at == stop || *at != DELIMITED_1 || (at = read_length(at + 1, stop, &key_size)) == NULL ||
            key_size > stop - at) {
            return DECODE_MESSAGE;
        }
        const uint8_t *key = at;
        at += key_size;
        if (at == stop || *at != DELIMITED_2 || (at = read_length(at + 1, stop, &length)) == NULL ||
            length != stop - at) {
            return DECODE_MESSAGE;
        }
        int32_t slot = match_key(match, key, key_size);
        if (slot >= 0) {
            keep_value(match, slot, (decode_slice){at, length});
        }
        at = stop;
    }
    return DECODE_OK;
}

static int
match_sequence(matcher *context, matcher *lists, decode_slice record)
{
    const uint8_t *at = record.data, *end = at + record.size;
    matcher_start(context);
    matcher_start(lists);
    while (at < end) {
        int64_t length;
        uint8_t tag = *at;
        if (tag != DELIMITED_1 && tag != DELIMITED_2) {
            if ((at = skip_field(at, end)) == NULL) {
                return DECODE_MESSAGE;
            }
            continue;
        }
        if ((at = read_length(at + 1, end, &length)) == NULL) {
            return DECODE_MESSAGE;
        }
        const uint8_t *stop = cut(at, length, end);
        if (match_map(tag == DELIMITED_1 ? context : lists, at, stop) != DECODE_OK) {
            return DECODE_MESSAGE;
        }
        at = stop;
    }
    return DECODE_OK;
}

#endif
