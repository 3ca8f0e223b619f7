/* libFuzzer target: the walk over Example and SequenceExample messages, on any bytes.
 *
 * The input's first byte chooses the kind of message and the description; what follows are one to three records
 * (the second byte says how many), cut at places that the next bytes choose. Whatever the bytes, the walk must end,
 * stay within its memory (ASan), do nothing undefined (UBSan), and hold no more than 8 bytes for each one of the
 * input beside what the description asks for.
 */
#include "../streamrec/kernels/src/example/decode_core.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 9, RECORDS = 3, SIZE = 4, SLACK = 256 };

static const int64_t fill[SIZE] = {1, 2, 3, 4};

/* Slots with keys a, b, c ...: every kind, dense, padded and neither, with and without default. */
static void
describe(decode_slot *slots, int choice)
{
    static const uint8_t keys[SLOTS + 1] = "abcdefghi";
    for (int slot = 0; slot < SLOTS; slot++) {
        int kind = slot % 3 + 1, form = (slot / 3 + choice) % 3;
        slots[slot] = (decode_slot){
            .key = {&keys[slot], 1},
            .kind = (uint8_t)kind,
            .dense = form == 0,
            .padded = form == 2 && kind != DECODE_BYTES && (choice & 160) == 32, /* not in SequenceExamples */
            .size = form == 0 ? (choice & 8 ? SIZE : 1) : form,
            .fill = kind != DECODE_BYTES ? fill : NULL,
            .required = (choice & 16) != 0 && slot == 0,
            .empty_counts = form == 1,
        };
    }
}

static void
check(const decode_column *columns, int64_t bytes)
{
    int64_t most = 8 * bytes + RECORDS * SIZE * (int64_t)sizeof(decode_slice) + SLACK;
    for (int slot = 0; slot < SLOTS; slot++) {
        if (columns[slot].values.capacity > most || columns[slot].inner.capacity > most) {
            fprintf(stderr, "slot %d holds %lld bytes of %lld\n", slot, (long long)columns[slot].values.capacity,
                    (long long)bytes);
            abort();
        }
    }
}

/* What was padded, in rows that are no longer than the values of one record. */
static void
check_rows(const decode_plan *plan, decode_column *columns, int64_t records, int64_t bytes)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        if (plan->slots[slot].padded) {
            int64_t size = records * columns[slot].longest * decode_width(plan->slots[slot].kind);
            uint8_t *rows = malloc(size ? (size_t)size : 1);
            if (columns[slot].longest > bytes || decode_rows(&plan->slots[slot], &columns[slot], records, rows)) {
                fprintf(stderr, "slot %d: rows of %lld values\n", slot, (long long)columns[slot].longest);
                abort();
            }
            free(rows);
        }
    }
}

typedef struct {
    decode_column columns[SLOTS];
    int64_t dense[SLOTS][RECORDS * SIZE];
    int64_t ends[SLOTS][RECORDS + 1];
} table;

static void
open_table(table *part, const decode_plan *plan, int lists)
{
    memset(part, 0, sizeof *part);
    for (int slot = 0; slot < SLOTS; slot++) {
        if (lists || !plan->slots[slot].dense) {
            part->columns[slot].ends = part->ends[slot];
        }
        else if (plan->slots[slot].kind != DECODE_BYTES) {
            part->columns[slot].dense = part->dense[slot];
        }
    }
}

static void
close_table(table *part)
{
    for (int slot = 0; slot < SLOTS; slot++) {
        free(part->columns[slot].values.data);
        free(part->columns[slot].inner.data);
    }
}

/* Each record in memory of its own, so that a read beyond its end is seen. */
static int
cut_records(const uint8_t *data, size_t size, decode_slice *records)
{
    int count = size ? *data % RECORDS + 1 : 1;
    size_t at = size ? 1 : 0;
    for (int record = 0; record < count; record++) {
        size_t left = size - at, length = left;
        if (record + 1 < count && left > 0) {
            length = data[at] < left ? data[at] : left - 1;
            at++;
        }
        uint8_t *copy = malloc(length ? length : 1);
        memcpy(copy, data + at, length);
        records[record] = (decode_slice){copy, (int64_t)length};
        at += length;
    }
    return count;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static table one, other;
    decode_slot slots[SLOTS];
    decode_slice records[RECORDS];
    int32_t index[32];
    decode_failure failure;
    int choice = size ? data[0] : 0;
    int count = cut_records(data + (size != 0), size - (size != 0), records);
    describe(slots, choice);
    decode_plan plan = {.slots = slots, .count = SLOTS};
    decode_plan_index(&plan, index, 32);
    open_table(&one, &plan, 0);
    open_table(&other, &plan, 1);
    if (choice & 128) {
        decode_sequences(&plan, &plan, records, count, one.columns, other.columns, &failure);
    }
    else if (decode_examples(&plan, records, count, one.columns, &failure) == DECODE_OK) {
        check_rows(&plan, one.columns, count, (int64_t)size);
    }
    check(one.columns, (int64_t)size);
    check(other.columns, (int64_t)size);
    close_table(&one);
    close_table(&other);
    for (int record = 0; record < count; record++) {
        free((void *)records[record].data);
    }
    return 0;
}
