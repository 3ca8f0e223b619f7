/* Padded slots: numbers of which each record has some, as rows of one length. Only decode_core.c includes this.
 *
 * How long rows are is known when the last record was looked at. So values are only counted in the walk, which costs
 * a fraction of decoding them, and each record's Feature is kept; then row after row is decoded, in a buffer that stays
 * in the nearest cache, and written to where it belongs.
 */
#ifndef STREAMREC_DECODE_PADDED_H
#define STREAMREC_DECODE_PADDED_H

#include "example/decode_core.h"
#include "example/decode_values.h"
#include "example/pad_rows.h"

#include <stdlib.h>

/* First step: counts the values that one record has for the slot, and keeps its Feature. */
static inline int
count_row(task *work, decode_slice value)
{
    decode_column *column = work->column;
    int64_t nothing;
    work->dense = &nothing;
    work->room = 0;
    int code = take_value(work, value);
    if (code != DECODE_OK) {
        return code;
    }
    if (!reserve(&column->values, sizeof value, work)) {
        return DECODE_NO_MEMORY;
    }
    memcpy(column->values.data + column->values.used, &value, sizeof value);
    column->values.used += sizeof value;
    column->longest = work->count > column->longest ? work->count : column->longest;
    return DECODE_OK;
}

int
decode_rows(const decode_slot *slot, decode_column *column, int64_t count, uint8_t *target)
{
    int64_t width = width_of(slot), room = column->longest + BLOCK_ROOM; /* for the decoder's last block */
    row_form form = {column->longest, slot->fill, (size_t)width, streams((size_t)width, count * column->longest * width)};
    uint8_t *values = malloc((size_t)(room * width));
    int code = values == NULL ? DECODE_NO_MEMORY : DECODE_OK;
    for (int64_t record = 0; code == DECODE_OK && record < count; record++) {
        decode_slice value;
        memcpy(&value, column->values.data + record * (int64_t)sizeof value, sizeof value);
        task work = {.slot = slot, .column = column, .dense = values, .room = room};
        if (value.size > 0 && take_feature(&work, value.data, value.data + value.size) == NULL) {
            code = work.code;
        }
        else if (work.count > column->longest) {
            code = DECODE_COUNT;
        }
        else {
            target = write_row(&form, target, values, work.count);
        }
    }
    free(values);
    end_rows();
    return code;
}

#endif
