/* Second step of the walk: Features decoded into their columns. Only decode_core.c includes this.
 *
 * Functions that read return where the reading ended, or NULL with the reason in `work->code`.
 */
#ifndef STREAMREC_DECODE_VALUES_H
#define STREAMREC_DECODE_VALUES_H

#include "example/decode_core.h"
#include "example/decode_varints.h"
#include "example/decode_wire.h"

#include <stdlib.h>

/* A batch: its records, their bytes, and the bytes of the records before the present one. */
typedef struct {
    int64_t records;
    int64_t bytes;
    int64_t seen;
} extent;

/* What the decoding of one slot of one record needs to know. */
typedef struct {
    const decode_slot *slot;
    decode_column *column;
    const extent *all; /* how much there is to come; NULL where nothing is known */
    int sequence;      /* whether the rules of a SequenceExample hold */
    void *dense;       /* numbers that have a place: dense ones this record's in the column */
    int64_t room;      /* so many of them; those that are found beyond are only counted */
    int64_t count;     /* out: values found */
    int code;          /* out: why NULL was returned */
} task;

static int64_t
width_of(const decode_slot *slot)
{
    return slot->kind == DECODE_BYTES ? (int64_t)sizeof(decode_slice) : decode_width(slot->kind);
}

/* Where the values of a dense slot's record go. */
static inline void
task_start(task *work, int64_t record)
{
    int64_t place = record * work->slot->size * width_of(work->slot);
    if (work->column->dense != NULL) {
        work->dense = (uint8_t *)work->column->dense + place;
        work->room = work->slot->size;
    }
    else if (work->slot->dense) {
        work->column->values.used = place;
    }
}

/* What a buffer will hold in the end, if all records are like those before: in proportion to their bytes, so that all
 * buffers together stay in proportion to them too. Never above what the bytes can hold (8 for each of theirs), or
 * the places of dense strings. */
static int64_t
expected_size(int64_t used, const task *work)
{
    const extent *all = work->all;
    if (all == NULL || all->seen == 0) {
        return 0;
    }
    int64_t places = work->slot->dense ? all->records * work->slot->size * (int64_t)sizeof(decode_slice) : 0;
    int64_t limit = 8 * all->bytes + places;
    double expected = (double)used * 1.125 * (double)all->bytes / (double)all->seen;
    return expected < (double)limit ? (int64_t)expected : limit;
}

/* Makes room for `more` bytes. */
static int
reserve(decode_buffer *buffer, int64_t more, const task *work)
{
    int64_t wanted = buffer->used + more;
    if (DECODE_LIKELY(wanted <= buffer->capacity)) {
        return 1;
    }
    int64_t capacity = buffer->capacity / 2 * 3, expected = expected_size(buffer->used, work);
    capacity = capacity < expected ? expected : capacity;
    capacity = capacity < wanted ? wanted : capacity;
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
    if (work->dense != NULL) {
        *room = work->room;
        return work->dense;
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
    if (work->dense == NULL) {
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
        memcpy(work->dense, slot->fill, (size_t)(slot->size * decode_width(slot->kind)));
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
        task inner = {0};
        if (!reserve(&column->inner, sizeof values, &inner)) {
            return DECODE_NO_MEMORY;
        }
        memcpy(column->inner.data + column->inner.used, &values, sizeof values);
        column->inner.used += sizeof values;
    }
    return DECODE_OK;
}

#endif
