/* The walk over Example and SequenceExample messages; decode_core.h has the contract.
 *
 * Each record is walked in two steps: decode_match.h finds where the Features of the wanted keys lie, so that of
 * duplicate keys the last one counts and nothing is decoded in vain; decode_values.h decodes them straight into
 * their columns. Single values in their usual form take the first step only: decode_usual.h. Padded ones take a third:
 * decode_padded.h.
 */
#include "example/decode_core.h"

#include "example/decode_match.h"
#include "example/decode_padded.h"
#include "example/decode_values.h"
#include "example/decode_wire.h"
#include "support/prefetch.h"

#include <string.h>

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

static decode_failure
failed(const task *work, int code, int64_t record, int64_t slot)
{
    int counted = code == DECODE_COUNT || code == DECODE_KIND;
    return (decode_failure){code, record, slot, counted ? work->count : 0, 0};
}

static int
take_values(const matcher *match, decode_column *columns, const extent *all, int sequence, decode_failure *failure)
{
    int64_t record = match->record;
    for (int64_t index = 0; match->left > 0 && index < match->plan->count; index++) {
        if (match->keys[index].found == taken_in(record)) {
            continue;
        }
        const decode_slot *slot = &match->plan->slots[index];
        decode_column *column = &columns[index];
        task work = {.slot = slot, .column = column, .all = all, .sequence = sequence};
        task_start(&work, record);
        decode_slice value = value_of(match, index);
        int code = slot->padded ? count_row(&work, value) : take_value(&work, value);
        if (code != DECODE_OK) {
            *failure = failed(&work, code, record, index);
            return code;
        }
        if (column->ends != NULL) {
            column->ends[record + 1] = column->values.used / width_of(slot);
        }
    }
    return DECODE_OK;
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

/* Dense byte strings are there for all records, whoever put the last ones in their place. */
static void
end_columns(const decode_plan *plan, decode_column *columns, int64_t records)
{
    for (int64_t slot = 0; slot < plan->count; slot++) {
        if (plan->slots[slot].dense && plan->slots[slot].kind == DECODE_BYTES) {
            columns[slot].values.used = records * plan->slots[slot].size * (int64_t)sizeof(decode_slice);
        }
    }
}

enum { FETCHED = 2048 }; /* bytes of the next record */

static extent
measure(const decode_slice *records, int64_t count)
{
    extent all = {count, 0, 0};
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
    code = code == DECODE_OK ? matcher_take(&match, columns, count) : code;
    *failure = (decode_failure){code, 0, -1, 0, 0};
    start_columns(plan, columns);
    for (int64_t record = 0; code == DECODE_OK && record < count; record++) {
        int64_t slot = -1;
        if (record + 1 < count) {
            prefetch_bytes(records[record + 1].data, (size_t)records[record + 1].size, FETCHED);
        }
        code = match_example(&match, records[record], &slot);
        if (code != DECODE_OK) {
            *failure = (decode_failure){code, record, slot, 0, 0};
            break;
        }
        code = take_values(&match, columns, &all, 0, failure);
        all.seen += records[record].size;
    }
    end_columns(plan, columns, code == DECODE_OK ? count : 0);
    failure->found = code == DECODE_OK ? match.others : failure->found;
    matcher_close(&match);
    return code;
}

static int
take_lists(const matcher *match, decode_column *columns, const extent *all, decode_failure *failure)
{
    int64_t record = match->record;
    for (int64_t index = 0; index < match->plan->count; index++) {
        decode_column *column = &columns[index];
        decode_slice list = value_of(match, index);
        task work = {.slot = &match->plan->slots[index], .column = column, .all = all, .sequence = 1};
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
        task work = {0};
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
        code = take_values(&features, context_columns, &all, 1, failure);
        code = code == DECODE_OK ? take_lists(&steps, list_columns, &all, failure) : code;
        all.seen += records[record].size;
    }
    matcher_close(&features);
    matcher_close(&steps);
    return code;
}
