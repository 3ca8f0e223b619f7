/* Columns out of Example and SequenceExample messages: what Python sees of decode_core.c.
 *
 * Arrays come from the caller wherever their size is known beforehand. What grows is handed over as a Result
 * (decode_result.c), without a copy.
 */
#include "support/args.h"
#include "support/block.h"
#include "native.h"

#include "example/decode_result.h"
#include "example/decode_core.h"
#include "example/decode_varints.h"

#include <stdlib.h>
#include <string.h>

static const char PLAN[] = "streamrec.decode_plan";

/* ---- the plan ---- */

static void
plan_free(PyObject *capsule)
{
    decode_plan *plan = PyCapsule_GetPointer(capsule, PLAN);
    for (int64_t slot = 0; slot < plan->count; slot++) {
        free((void *)plan->slots[slot].key.data);
        free((void *)plan->slots[slot].fill);
    }
    free(plan->slots);
    free(plan->table);
    free(plan);
}

static void *
copy_bytes(const char *data, Py_ssize_t size)
{
    void *copy = malloc(size ? (size_t)size : 1);
    return copy ? memcpy(copy, data, (size_t)size) : NULL;
}

/* Reads one slot: (key, kind, dense, padded, size, fill, required, empty_counts). */
static int
read_slot(PyObject *item, decode_slot *slot)
{
    char *key, *fill = NULL;
    Py_ssize_t key_size, fill_size = 0;
    PyObject *name, *filling;
    long long size;
    int kind, dense, padded, required, empty_counts;
    if (!PyArg_ParseTuple(item, "SippLOpp", &name, &kind, &dense, &padded, &size, &filling, &required, &empty_counts) ||
        PyBytes_AsStringAndSize(name, &key, &key_size) < 0 ||
        (filling != Py_None && PyBytes_AsStringAndSize(filling, &fill, &fill_size) < 0)) {
        return -1;
    }
    int64_t width = decode_width(kind);
    int filled = fill != NULL && kind != DECODE_BYTES;
    if (kind < DECODE_BYTES || kind > DECODE_INT64 || size < 0 || (size == 0 && !dense) ||
        (padded && (dense || !filled)) || (filled && fill_size / width < (padded ? 1 : size))) {
        PyErr_SetString(PyExc_ValueError, "a slot of an unknown kind, or with a size that does not fit");
        return -1;
    }
    slot->kind = (uint8_t)kind;
    slot->dense = (uint8_t)dense;
    slot->padded = (uint8_t)padded;
    slot->size = size;
    slot->required = (uint8_t)required;
    slot->empty_counts = (uint8_t)empty_counts;
    slot->key = (decode_slice){copy_bytes(key, key_size), key_size};
    slot->fill = filled ? copy_bytes(fill, fill_size) : NULL;
    if (slot->key.data == NULL || (filled && slot->fill == NULL)) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(plan_doc,
             "decode_plan(slots, /)\n--\n\n"
             "Compiles (key, kind, dense, padded, size, fill, required, empty_counts) tuples; keys must differ.");

static PyObject *
plan(PyObject *Py_UNUSED(module), PyObject *slots)
{
    if (!PyTuple_Check(slots)) {
        PyErr_SetString(PyExc_TypeError, "slots must be a tuple");
        return NULL;
    }
    Py_ssize_t count = PyTuple_Size(slots);
    uint64_t size = 2;
    while (size < 2 * (uint64_t)count + 2) {
        size *= 2;
    }
    decode_plan *made = calloc(1, sizeof *made);
    decode_slot *read = calloc((size_t)count + 1, sizeof *read);
    int32_t *table = malloc(size * sizeof *table);
    if (made == NULL || read == NULL || table == NULL) {
        free(made);
        free(read);
        free(table);
        return PyErr_NoMemory();
    }
    *made = (decode_plan){.slots = read, .count = count, .table = table};
    PyObject *capsule = PyCapsule_New(made, PLAN, plan_free);
    if (capsule == NULL) {
        free(made);
        free(read);
        free(table);
        return NULL;
    }
    for (Py_ssize_t slot = 0; slot < count; slot++) {
        if (read_slot(PyTuple_GetItem(slots, slot), &read[slot]) < 0) {
            Py_DECREF(capsule);
            return NULL;
        }
    }
    decode_plan_index(made, table, size);
    return capsule;
}

/* ---- the records ---- */

typedef struct {
    decode_slice *slices;
    Py_ssize_t count;
    struct buffers buffers; /* none where the records are a tuple of bytes */
} record_list;

static void
records_close(record_list *records)
{
    free(records->slices);
    release_buffers(&records->buffers);
}

static int
records_make(record_list *records, Py_ssize_t count)
{
    records->count = count;
    records->slices = malloc(((size_t)count + 1) * sizeof *records->slices);
    if (records->slices == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static int
records_of_items(record_list *records, PyObject *items)
{
    if (!PyTuple_Check(items)) {
        PyErr_SetString(PyExc_TypeError, "records must be a tuple of bytes, or None");
        return -1;
    }
    if (records_make(records, PyTuple_Size(items)) < 0) {
        return -1;
    }
    for (Py_ssize_t index = 0; index < records->count; index++) {
        PyObject *item = PyTuple_GetItem(items, index);
        char *data;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(item, &data, &size) < 0) {
            return -1;
        }
        records->slices[index] = (decode_slice){(const uint8_t *)data, size};
    }
    return 0;
}

/* Rows of `width` numbers, of which the first are start and end; of four, the third is `buffer << 32` (see pick in
 * shuffle.c), of two, the buffer is the only one. */
static int
records_of_rows(record_list *records, PyObject *buffers, PyObject *rows, Py_ssize_t width)
{
    Py_buffer view;
    if (!take_buffers(buffers, &records->buffers) || PyObject_GetBuffer(rows, &view, PyBUF_C_CONTIGUOUS) < 0) {
        return -1;
    }
    const int64_t *row = view.buf;
    int failed = records_make(records, view.len / (width * (Py_ssize_t)sizeof *row));
    for (Py_ssize_t index = 0; !failed && index < records->count; index++, row += width) {
        int64_t number = width > 2 ? row[2] >> 32 : 0;
        if (number < 0 || number >= records->buffers.count) {
            PyErr_Format(PyExc_ValueError, "a span lies in buffer %lld of %zd", (long long)number, records->buffers.count);
            failed = -1;
            break;
        }
        const Py_buffer *buffer = &records->buffers.views[number];
        if (row[0] < 0 || row[1] < row[0] || row[1] > buffer->len) {
            PyErr_Format(PyExc_ValueError, "span %lld to %lld leaves a buffer of %zd bytes", (long long)row[0],
                         (long long)row[1], buffer->len);
            failed = -1;
            break;
        }
        records->slices[index] = (decode_slice){(const uint8_t *)buffer->buf + row[0], row[1] - row[0]};
    }
    PyBuffer_Release(&view);
    return failed;
}

static int
records_of_spans(record_list *records, PyObject *buffer, PyObject *spans)
{
    PyObject *only = PyTuple_Pack(1, buffer);
    int failed = only == NULL ? -1 : records_of_rows(records, only, spans, 2);
    Py_XDECREF(only);
    return failed;
}

static int
records_open(record_list *records, PyObject *items, PyObject *source, PyObject *spans)
{
    *records = (record_list){0};
    int failed = PyTuple_Check(source)  ? records_of_rows(records, source, spans, 4)
                 : items == Py_None ? records_of_spans(records, source, spans)
                                    : records_of_items(records, items);
    if (failed) {
        records_close(records);
    }
    return failed;
}

/* ---- the columns ---- */

typedef struct {
    const decode_plan *plan;
    decode_column *columns;
    Py_buffer *views; /* of the caller's arrays */
    Py_ssize_t records;
    int part; /* 1 for feature lists */
} column_set;

static void
columns_close(column_set *set)
{
    for (int64_t slot = 0; set->views != NULL && slot < set->plan->count; slot++) {
        if (set->views[slot].obj != NULL) {
            PyBuffer_Release(&set->views[slot]);
        }
    }
    for (int64_t slot = 0; set->columns != NULL && slot < set->plan->count; slot++) {
        free(set->columns[slot].values.data);
        free(set->columns[slot].inner.data);
    }
    free(set->columns);
    free(set->views);
}

/* Borrows the array of one slot: dense numbers, or the splits of any slot that is not dense. */
static int
columns_borrow(column_set *set, int64_t index, PyObject *array, Py_ssize_t records)
{
    static int64_t nowhere[1];
    const decode_slot *slot = &set->plan->slots[index];
    int splits = set->part || !slot->dense;
    if (slot->padded || (!splits && slot->kind == DECODE_BYTES)) {
        return 0;
    }
    Py_buffer *view = &set->views[index];
    if (PyObject_GetBuffer(array, view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0) {
        return -1;
    }
    int64_t width = decode_width(slot->kind);
    int64_t needed = splits ? ((int64_t)records + 1) * 8 : (int64_t)records * slot->size * width;
    if (view->len < needed) {
        PyErr_SetString(PyExc_ValueError, "an array is too small for the records");
        return -1;
    }
    void *data = view->buf ? view->buf : nowhere;
    if (splits) {
        set->columns[index].ends = data;
    }
    else {
        set->columns[index].dense = data;
    }
    return 0;
}

static int
columns_open(column_set *set, PyObject *capsule, PyObject *arrays, Py_ssize_t records, int part)
{
    set->part = part;
    set->records = records;
    if ((set->plan = PyCapsule_GetPointer(capsule, PLAN)) == NULL) {
        return -1;
    }
    if (!PyTuple_Check(arrays) || PyTuple_Size(arrays) != set->plan->count) {
        PyErr_SetString(PyExc_ValueError, "there must be one array for each slot");
        return -1;
    }
    set->columns = calloc((size_t)set->plan->count + 1, sizeof *set->columns);
    set->views = calloc((size_t)set->plan->count + 1, sizeof *set->views);
    if (set->columns == NULL || set->views == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (int64_t slot = 0; slot < set->plan->count; slot++) {
        if (columns_borrow(set, slot, PyTuple_GetItem(arrays, (Py_ssize_t)slot), records) < 0) {
            return -1;
        }
    }
    return 0;
}

/* The rows of a padded slot, in a Block. */
static PyObject *
padded_rows(const decode_slot *slot, decode_column *column, Py_ssize_t records)
{
    PyObject *block = block_for_rows(records, (Py_ssize_t)column->longest, (Py_ssize_t)decode_width(slot->kind));
    if (block == NULL) {
        return NULL;
    }
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = decode_rows(slot, column, records, block_memory(block));
    Py_END_ALLOW_THREADS
    if (code == DECODE_OK) {
        return block;
    }
    Py_DECREF(block);
    if (code == DECODE_NO_MEMORY) {
        return PyErr_NoMemory();
    }
    PyErr_SetString(PyExc_ValueError, "the records were written to while they were read");
    return NULL;
}

/* One entry for each slot: None for dense numbers, a Block of padded ones, a Result of other values, or for feature
 * lists (values, inner). */
static PyObject *
columns_result(column_set *set)
{
    PyObject *list = PyList_New((Py_ssize_t)set->plan->count);
    for (int64_t slot = 0; list != NULL && slot < set->plan->count; slot++) {
        decode_column *column = &set->columns[slot];
        PyObject *entry = Py_None;
        if (set->part) {
            PyObject *values = decode_result(&column->values), *inner = decode_result(&column->inner);
            entry = values && inner ? PyTuple_Pack(2, values, inner) : NULL;
            Py_XDECREF(values);
            Py_XDECREF(inner);
        }
        else if (set->plan->slots[slot].padded) {
            entry = padded_rows(&set->plan->slots[slot], column, set->records);
        }
        else if (set->plan->slots[slot].dense && set->plan->slots[slot].kind != DECODE_BYTES) {
            Py_INCREF(entry);
        }
        else {
            entry = decode_result(&column->values);
        }
        if (entry == NULL || PyList_SetItem(list, (Py_ssize_t)slot, entry) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *
failure_result(const decode_failure *failure)
{
    if (failure->code == DECODE_NO_MEMORY) {
        return PyErr_NoMemory();
    }
    return Py_BuildValue("(iLLLi)", failure->code, (long long)failure->record, (long long)failure->slot,
                         (long long)failure->found, failure->list);
}

PyDoc_STRVAR(examples_doc,
             "decode_examples(plan, records, buffer, spans, arrays, /)\n--\n\n"
             "Decodes Examples: a tuple of bytes, spans over a buffer, or rows over a tuple of buffers. Returns [a list\n"
             "with an entry for each slot, how many features have none]; or (code, record, slot, found, list) of a failure.");

static PyObject *
examples(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *capsule, *items, *source, *spans, *arrays, *result = NULL;
    if (!PyArg_ParseTuple(args, "OOOOO", &capsule, &items, &source, &spans, &arrays)) {
        return NULL;
    }
    record_list records;
    column_set set = {0};
    if (records_open(&records, items, source, spans) < 0) {
        return NULL;
    }
    if (columns_open(&set, capsule, arrays, records.count, 0) == 0) {
        decode_failure failure;
        int code;
        Py_BEGIN_ALLOW_THREADS
        code = decode_examples(set.plan, records.slices, records.count, set.columns, &failure);
        Py_END_ALLOW_THREADS
        result = code == DECODE_OK ? Py_BuildValue("[NL]", columns_result(&set), (long long)failure.found)
                                   : failure_result(&failure);
    }
    columns_close(&set);
    records_close(&records);
    return result;
}

/* Whether a plan is for SequenceExamples, which have no padded slots. */
static int
has_no_padding(const column_set *set)
{
    for (int64_t slot = 0; slot < set->plan->count; slot++) {
        if (set->plan->slots[slot].padded) {
            PyErr_SetString(PyExc_ValueError, "only slots of Examples are padded");
            return 0;
        }
    }
    return 1;
}

PyDoc_STRVAR(sequences_doc,
             "decode_sequences(context, lists, records, buffer, spans, context_arrays, list_arrays, /)\n--\n\n"
             "Decodes SequenceExamples; see decode_examples. Returns a list of both parts' lists.");

static PyObject *
sequences(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *context, *lists, *items, *source, *spans, *context_arrays, *list_arrays, *result = NULL;
    if (!PyArg_ParseTuple(args, "OOOOOOO", &context, &lists, &items, &source, &spans, &context_arrays,
                          &list_arrays)) {
        return NULL;
    }
    record_list records;
    column_set features = {0}, steps = {0};
    if (records_open(&records, items, source, spans) < 0) {
        return NULL;
    }
    if (columns_open(&features, context, context_arrays, records.count, 0) == 0 &&
        columns_open(&steps, lists, list_arrays, records.count, 1) == 0 && has_no_padding(&features) &&
        has_no_padding(&steps)) {
        decode_failure failure;
        int code;
        Py_BEGIN_ALLOW_THREADS
        code = decode_sequences(features.plan, steps.plan, records.slices, records.count, features.columns,
                                steps.columns, &failure);
        Py_END_ALLOW_THREADS
        if (code == DECODE_OK) {
            PyObject *one = columns_result(&features), *other = columns_result(&steps);
            result = one && other ? Py_BuildValue("[OO]", one, other) : NULL;
            Py_XDECREF(one);
            Py_XDECREF(other);
        }
        else {
            result = failure_result(&failure);
        }
    }
    columns_close(&features);
    columns_close(&steps);
    records_close(&records);
    return result;
}

PyDoc_STRVAR(varints_doc,
             "decode_varints(data, array, way, /)\n--\n\n"
             "For tests: decodes a run of varints in way 0, 1, 2 or 3 (decode_varints.h); returns the number of\n"
             "values, -1 for damaged ones, or -2 where the processor prefers a simpler way.");

static PyObject *
varints(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *array;
    Py_buffer data, out;
    int way;
    if (!PyArg_ParseTuple(args, "y*Oi", &data, &array, &way)) {
        return NULL;
    }
    if (PyObject_GetBuffer(array, &out, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0) {
        PyBuffer_Release(&data);
        return NULL;
    }
    int64_t count = -2;
    if (way >= BY_MASKS && way <= best_way()) {
        const uint8_t *at = data.buf;
        if (read_varints_by(way, at, at + data.len, out.buf, out.len / (int64_t)sizeof(int64_t), &count) == NULL) {
            count = -1;
        }
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    return PyLong_FromLongLong(count);
}

PyMethodDef decode_methods[] = {
    {"decode_plan", plan, METH_O, plan_doc},
    {"decode_examples", examples, METH_VARARGS, examples_doc},
    {"decode_sequences", sequences, METH_VARARGS, sequences_doc},
    {"decode_varints", varints, METH_VARARGS, varints_doc},
    {NULL, NULL, 0, NULL},
};
