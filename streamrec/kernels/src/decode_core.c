/* The walk over Example and SequenceExample messages; decode_core.h has the contract.
 *
 * A record is walked in two steps. First its map entries: each key is matched with a slot, and the slot keeps
 * where its Feature lies, so that of duplicate keys the last one counts and nothing is decoded in vain. Then each
 * slot's Feature is decoded straight to its column.
 *
 * Keys are matched without hashing where their order repeats: each key remembers which one followed it last time,
 * and is compared with that first. Keys that nobody asked for take part too, in a small cache.
 */
#include "decode_core.h"
#include "decode_wire.h"

#include <stdlib.h>

enum { STRANGERS = 64 };

/* What one part of a message (features, context or feature lists) is matched with. */
typedef struct {
    const decode_plan *plan;
    decode_slice *values; /* for each slot: where its value lies in this record */
    decode_slice *keys;   /* of the slots, of STRANGERS other keys, and of the start, which has none */
    int32_t *next;        /* for each of the keys: the one that followed it last time */
    int32_t last;
} matcher;

/* What the decoding of one slot of one record needs to know. */
typedef struct {
    const decode_slot *slot;
    decode_column *column;
    int64_t expected; /* bytes that its buffer will hold in the end, as far as can be told */
    int64_t limit;    /* bytes that its buffer can need at most */
    int sequence;     /* whether the rules of a SequenceExample hold */
    int64_t count;    /* out: values found */
    int code;         /* out: why NULL was returned */
} task;

void
decode_plan_index(decode_plan *plan, int32_t *table, uint64_t size)
{
    plan->table = table;
    plan->mask = size - 1;
    memset(table, 0xFF, size * sizeof *table);
    for (int64_t slot = 0; slot < plan->count; slot++) {
        uint64_t place = hash_bytes(plan->slots[slot].key.data, plan->slots[slot].key.size) & plan->mask;
        while (table[place] >= 0) {
            place = (place + 1) & plan->mask;
        }
        table[place] = (int32_t)slot;
    }
}

static int
matcher_open(matcher *match, const decode_plan *plan)
{
    size_t keys = (size_t)plan->count + STRANGERS + 1;
    match->plan = plan;
    match->values = malloc((size_t)(plan->count + 1) * sizeof *match->values);
    match->keys = malloc(keys * sizeof *match->keys);
    match->next = malloc(keys * sizeof *match->next);
    if (match->values == NULL || match->keys == NULL || match->next == NULL) {
        return DECODE_NO_MEMORY;
    }
    for (size_t key = 0; key < keys; key++) {
        match->keys[key] = (decode_slice){NULL, -1};
        match->next[key] = (int32_t)keys - 1;
    }
    for (int64_t slot = 0; slot < plan->count; slot++) {
        match->keys[slot] = plan->slots[slot].key;
    }
    return DECODE_OK;
}

static void
matcher_close(matcher *match)
{
    free(match->values);
    free(match->keys);
    free(match->next);
}

static void
matcher_start(matcher *match)
{
    memset(match->values, 0, (size_t)match->plan->count * sizeof *match->values);
    match->last = (int32_t)match->plan->count + STRANGERS;
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
    match->keys[stranger] = (decode_slice){data, size};
    return stranger;
}

/* The slot of a key, or -1. */
static inline int32_t
match_key(matcher *match, const uint8_t *data, int64_t size)
{
    int32_t guess = match->next[match->last];
    const decode_slice *key = &match->keys[guess];
    if (!DECODE_LIKELY(key->size == size && same_bytes(key->data, data, size))) {
        guess = look_up(match, data, size);
        match->next[match->last] = guess;
    }
    match->last = guess;
    return guess < match->plan->count ? guess : -1;
}

static inline int
is_kind(uint8_t tag)
{
    return tag == 0x0A || tag == 0x12 || tag == 0x1A;
}

/* Makes room for `more` bytes. It grows to what the records so far let expect, never beyond `limit`. */
static int
reserve(decode_buffer *buffer, int64_t more, const task *work)
{
    int64_t wanted = buffer->used + more;
    if (DECODE_LIKELY(wanted <= buffer->capacity)) {
        return 1;
    }
    int64_t capacity = buffer->capacity + buffer->capacity / 2 + 64;
    if (capacity < work->expected) {
        capacity = work->expected;
    }
    if (capacity > work->limit) {
        capacity = work->limit;
    }
    if (capacity < wanted) {
        capacity = wanted;
    }
    uint8_t *data = realloc(buffer->data, (size_t)capacity);
    if (data == NULL) {
        return 0;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return 1;
}

/* Where up to `most` numbers of `width` bytes go, and how many of them. */
static void *
room_for(task *work, int64_t most, int64_t width, int64_t *room)
{
    decode_column *column = work->column;
    if (column->dense != NULL) {
        *room = work->slot->size;
        return column->dense;
    }
    if (!reserve(&column->values, most * width + 1, work)) { /* at least one byte, so that there is a place */
        work->code = DECODE_NO_MEMORY;
        return NULL;
    }
    *room = most;
    return column->values.data + column->values.used;
}

static const uint8_t *
done(task *work, const uint8_t *at, int64_t count, int64_t width)
{
    work->count = count;
    if (work->column->dense == NULL) {
        work->column->values.used += count * width;
    }
    return at;
}

static const uint8_t *
take_ints(task *work, const uint8_t *at, const uint8_t *end)
{
    int64_t room, length, count = 0;
    int packed = *at == DELIMITED_1;
    if (packed) {
        if ((at = read_length(at + 1, end, &length)) == NULL) {
            return NULL;
        }
        end = cut(at, length, end);
    }
    int64_t *out = room_for(work, packed ? end - at : (end - at) / 2, sizeof *out, &room);
    if (out == NULL) {
        return NULL;
    }
    if (packed) {
        at = read_varints(at, end, out, room, &count);
        return at == NULL ? NULL : done(work, at, count, sizeof *out);
    }
    for (; at < end; count++) {
        uint64_t value;
        if (*at != VARINT_1 || (at = read_varint(at + 1, end, &value)) == NULL) {
            return NULL;
        }
        if (count < room) {
            out[count] = (int64_t)value;
        }
    }
    return done(work, at, count, sizeof *out);
}

static const uint8_t *
take_packed_floats(task *work, const uint8_t *at, const uint8_t *end)
{
    int64_t room, length;
    if ((at = read_length(at + 1, end, &length)) == NULL) {
        return NULL;
    }
    if (work->sequence && length > end - at) {
        length = end - at;
    }
    int64_t count = length / 4;
    if (4 * count > end - at || (work->sequence && length % 4)) {
        return NULL;
    }
    void *out = room_for(work, count, 4, &room);
    if (out == NULL) {
        return NULL;
    }
    if (count > 0) {
        memcpy(out, at, 4 * (size_t)(count < room ? count : room));
    }
    return done(work, at + 4 * count, count, 4);
}

static const uint8_t *
take_floats(task *work, const uint8_t *at, const uint8_t *end)
{
    int64_t room, count = 0;
    if (*at == DELIMITED_1) {
        return take_packed_floats(work, at, end);
    }
    uint8_t *out = room_for(work, (end - at) / 5, 4, &room);
    if (out == NULL) {
        return NULL;
    }
    for (; at < end; at += 5, count++) {
        if (*at != FIXED32_1 || end - at < 5) {
            return NULL;
        }
        if (count < room) {
            memcpy(out + 4 * count, at + 1, 4);
        }
    }
    return done(work, at, count, 4);
}

static const uint8_t *
take_strings(task *work, const uint8_t *at, const uint8_t *end)
{
    decode_buffer *values = &work->column->values;
    for (; at < end; work->count++) {
        int64_t length;
        if (*at != DELIMITED_1 || (at = read_length(at + 1, end, &length)) == NULL || length > end - at) {
            return NULL;
        }
        decode_slice string = {at, length};
        if (!reserve(values, sizeof string, work)) {
            work->code = DECODE_NO_MEMORY;
            return NULL;
        }
        memcpy(values->data + values->used, &string, sizeof string);
        values->used += sizeof string;
        at += length;
    }
    return at;
}

/* Decodes the list whose length stands at `at`. Returns where the reading ended. */
static inline const uint8_t *
take_list(task *work, const uint8_t *at, const uint8_t *end)
{
    int64_t length;
    work->count = 0;
    work->code = DECODE_LIST;
    if ((at = read_length(at, end, &length)) == NULL) {
        return NULL;
    }
    end = cut(at, length, end);
    if (work->slot->kind == DECODE_BYTES) {
        return take_strings(work, at, end);
    }
    if (at == end) {
        return work->sequence && length ? NULL : at;
    }
    return work->slot->kind == DECODE_INT64 ? take_ints(work, at, end) : take_floats(work, at, end);
}

/* Decodes a Feature that is not empty. Returns where the reading ended. */
static inline const uint8_t *
take_feature(task *work, const uint8_t *at, const uint8_t *end)
{
    if (*at != (work->slot->kind << 3 | 2)) {
        work->code = DECODE_KIND;
        work->count = is_kind(*at) ? *at >> 3 : 0;
        return NULL;
    }
    return take_list(work, at + 1, end);
}

static int
take_default(task *work)
{
    const decode_slot *slot = work->slot;
    int numbers = slot->kind != DECODE_BYTES;
    if (slot->required || (slot->dense && numbers && slot->fill == NULL)) {
        return DECODE_MISSING;
    }
    work->count = slot->dense ? slot->size : 0;
    if (!slot->dense) {
        return DECODE_OK;
    }
    if (numbers) {
        memcpy(work->column->dense, slot->fill, (size_t)slot->size * (slot->kind == DECODE_FLOAT ? 4 : 8));
        return DECODE_OK;
    }
    decode_buffer *values = &work->column->values;
    int64_t bytes = slot->size * (int64_t)sizeof(decode_slice);
    if (!reserve(values, bytes, work)) {
        return DECODE_NO_MEMORY;
    }
    memset(values->data + values->used, 0, (size_t)bytes);
    values->used += bytes;
    return DECODE_OK;
}

/* Decodes what one record has for one slot of an Example or of a context. */
static inline int
take_value(task *work, decode_slice value)
{
    const decode_slot *slot = work->slot;
    work->count = 0;
    if (value.data == NULL) {
        return take_default(work);
    }
    if (value.size > 0 && take_feature(work, value.data, value.data + value.size) == NULL) {
        return work->code;
    }
    if (slot->dense ? work->count != slot->size : slot->size > 1 && work->count % slot->size) {
        return DECODE_COUNT;
    }
    return DECODE_OK;
}

static int64_t
width_of(const decode_slot *slot)
{
    return slot->kind == DECODE_BYTES ? (int64_t)sizeof(decode_slice) : slot->kind == DECODE_FLOAT ? 4 : 8;
}

/* What is left of a batch: how many records, of how many bytes in all. */
typedef struct {
    int64_t records;
    int64_t bytes;
} extent;

/* Sets what a buffer may grow to: in proportion to the records so far, and never above what the bytes of all
 * records can hold (8 bytes for each of theirs), or the defaults of dense strings. */
static void
set_limits(task *work, const decode_buffer *buffer, extent all, int64_t record)
{
    int64_t defaults = work->slot->dense ? all.records * work->slot->size * (int64_t)sizeof(decode_slice) : 0;
    work->limit = 8 * all.bytes + defaults;
    double expected = (double)(buffer->used + 64) * (double)all.records / (double)(record ? record : 1) * 1.125;
    work->expected = expected < (double)work->limit ? (int64_t)expected : work->limit;
}

static decode_failure
failed(const task *work, int code, int64_t record, int64_t slot)
{
    int counted = code == DECODE_COUNT || code == DECODE_KIND;
    return (decode_failure){code, record, slot, counted ? work->count : 0, 0};
}

static int
take_values(const matcher *match, decode_column *columns, int64_t record, extent all, int sequence,
            decode_failure *failure)
{
    for (int64_t index = 0; index < match->plan->count; index++) {
        decode_column *column = &columns[index];
        task work = {.slot = &match->plan->slots[index], .column = column, .sequence = sequence};
        if (column->dense == NULL) {
            set_limits(&work, &column->values, all, record);
        }
        int code = take_value(&work, match->values[index]);
        if (code != DECODE_OK) {
            *failure = failed(&work, code, record, index);
            return code;
        }
        if (column->dense != NULL) {
            column->dense = (uint8_t *)column->dense + work.slot->size * width_of(work.slot);
        }
        else if (column->ends != NULL) {
            column->ends[record + 1] = column->values.used / width_of(work.slot);
        }
    }
    return DECODE_OK;
}

/* Keeps a Feature of an Example, if it is asked for. Returns its slot, or -1, or -2 for a Feature of no kind. */
static inline int
keep_feature(matcher *match, decode_slice key, decode_slice value, int64_t *slot)
{
    *slot = match_key(match, key.data, key.size);
    if (*slot < 0) {
        return DECODE_OK;
    }
    if (value.size == 0) {
        if (match->plan->slots[*slot].empty_counts) {
            match->values[*slot] = value;
        }
        return DECODE_OK;
    }
    if (!is_kind(*value.data)) {
        return DECODE_KIND;
    }
    match->values[*slot] = value;
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

/* The entries of one Features message. `slot` says whose Feature is of no kind, for DECODE_KIND. */
static int
match_features(matcher *match, const uint8_t *at, const uint8_t *end, int64_t *slot)
{
    decode_slice key, value;
    *slot = -1;
    while (at < end) {
        int64_t length;
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
        int64_t found;
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

static void
start_columns(const decode_plan *plan, decode_column *columns)
{
    for (int64_t slot = 0; slot < plan->count; slot++) {
        if (columns[slot].ends != NULL) {
            columns[slot].ends[0] = 0;
        }
    }
}

static extent
measure(const decode_slice *records, int64_t count)
{
    extent all = {count, 0};
    for (int64_t record = 0; record < count; record++) {
        all.bytes += records[record].size;
    }
    return all;
}

int
decode_examples(const decode_plan *plan, const decode_slice *records, int64_t count, decode_column *columns,
                decode_failure *failure)
{
    matcher match = {0};
    extent all = measure(records, count);
    int code = matcher_open(&match, plan);
    *failure = (decode_failure){code, 0, -1, 0, 0};
    start_columns(plan, columns);
    for (int64_t record = 0; code == DECODE_OK && record < count; record++) {
        int64_t slot = -1;
        code = match_example(&match, records[record], &slot);
        if (code != DECODE_OK) {
            *failure = (decode_failure){code, record, slot, 0, 0};
            break;
        }
        code = take_values(&match, columns, record, all, 0, failure);
    }
    matcher_close(&match);
    return code;
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
            match->values[slot] = (decode_slice){at, length};
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

/* Decodes one step of a feature list. Returns where the next one starts: where the reading ended. */
static const uint8_t *
take_step(task *work, const uint8_t *at, const uint8_t *end)
{
    int64_t length, size;
    work->count = 0;
    work->code = DECODE_LIST;
    if (*at != DELIMITED_1 || (at = read_length(at + 1, end, &length)) == NULL || length == 1) {
        return NULL;
    }
    if (length == 0) {
        return at;
    }
    if (length > 2) {
        end = cut(at, length, end);
        if (at == end) {
            work->code = DECODE_KIND;
            return NULL;
        }
        return take_feature(work, at, end);
    }
    /* a kind and a list of length 0, which TensorFlow reads without a limit */
    if (at == end || *at != (work->slot->kind << 3 | 2) || (at = read_length(at + 1, end, &size)) == NULL) {
        return NULL;
    }
    return size == 0 ? at : NULL;
}

static int
take_steps(task *work, decode_slice list)
{
    decode_column *column = work->column;
    const uint8_t *at = list.data, *end = list.data + list.size;
    while (at < end) {
        if ((at = take_step(work, at, end)) == NULL) {
            return work->code;
        }
        if (work->slot->dense && work->count != work->slot->size) {
            return DECODE_COUNT;
        }
        int64_t values = column->values.used / width_of(work->slot);
        task inner = {.limit = work->limit};
        if (!reserve(&column->inner, sizeof values, &inner)) {
            return DECODE_NO_MEMORY;
        }
        memcpy(column->inner.data + column->inner.used, &values, sizeof values);
        column->inner.used += sizeof values;
    }
    return DECODE_OK;
}

static int
take_lists(const matcher *match, decode_column *columns, int64_t record, extent all, decode_failure *failure)
{
    for (int64_t index = 0; index < match->plan->count; index++) {
        decode_column *column = &columns[index];
        decode_slice list = match->values[index];
        task work = {.slot = &match->plan->slots[index], .column = column, .sequence = 1};
        set_limits(&work, &column->values, all, record);
        int code = DECODE_OK;
        if (list.data == NULL) {
            code = work.slot->required ? DECODE_MISSING : DECODE_OK;
        }
        else {
            code = take_steps(&work, list);
        }
        if (code != DECODE_OK) {
            *failure = failed(&work, code, record, index);
            failure->list = 1;
            return code;
        }
        column->ends[record + 1] = column->inner.used / (int64_t)sizeof(int64_t) - 1;
    }
    return DECODE_OK;
}

/* The leading 0 of the ends of steps. */
static int
start_lists(const decode_plan *plan, decode_column *columns)
{
    int64_t zero = 0;
    for (int64_t slot = 0; slot < plan->count; slot++) {
        task work = {.limit = 64};
        if (!reserve(&columns[slot].inner, sizeof zero, &work)) {
            return DECODE_NO_MEMORY;
        }
        memcpy(columns[slot].inner.data, &zero, sizeof zero);
        columns[slot].inner.used = sizeof zero;
    }
    return DECODE_OK;
}

int
decode_sequences(const decode_plan *context, const decode_plan *lists, const decode_slice *records,
                 int64_t count, decode_column *context_columns, decode_column *list_columns,
                 decode_failure *failure)
{
    matcher features = {0}, steps = {0};
    extent all = measure(records, count);
    int code = matcher_open(&features, context);
    code = code == DECODE_OK ? matcher_open(&steps, lists) : code;
    start_columns(context, context_columns);
    start_columns(lists, list_columns);
    code = code == DECODE_OK ? start_lists(lists, list_columns) : code;
    *failure = (decode_failure){code, 0, -1, 0, 0};
    for (int64_t record = 0; code == DECODE_OK && record < count; record++) {
        code = match_sequence(&features, &steps, records[record]);
        if (code != DECODE_OK) {
            *failure = (decode_failure){code, record, -1, 0, 0};
            break;
        }
        code = take_values(&features, context_columns, record, all, 1, failure);
        code = code == DECODE_OK ? take_lists(&steps, list_columns, record, all, failure) : code;
    }
    matcher_close(&features);
    matcher_close(&steps);
    return code;
}
