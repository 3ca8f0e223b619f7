/* Columns to tf.train.Example records: the family `encode_methods`.
 *
 * A column holds one feature of all records: packed int64 or float32 values, byte strings as a tuple of bytes
 * objects, or byte strings as spans over one buffer. Its rows are equally wide, or split by int64 row splits.
 * The records are sized in one pass and written in a second one, into one buffer.
 *
 * What this file relies on, and what it does not:
 *  - The GIL is released during both passes, so another thread may change an array meanwhile. Splits and spans are
 *    therefore checked each time they are read, and every write is checked against the end of its record: changed
 *    columns give the code CHANGED, never a write past the buffer.
 *  - Byte strings come in a tuple, which nobody can change, so their pointers stay good.
 *  - The wire format is protobuf's, with TensorFlow's field numbers: Example.features = 1, Features.feature = 1
 *    (map: key = 1, value = 2), Feature.{bytes,float,int64}_list = {1,2,3}, list.value = 1, numbers packed.
 */
#include "support/block.h"
#include <limits.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "floats are copied as they lie in memory: this kernel needs a little-endian machine"
#endif

enum { KIND_NONE = 0, KIND_BYTES = 1, KIND_FLOAT = 2, KIND_INT64 = 3 };
enum { OK = 0, BAD_SPLITS = 1, BAD_SPANS = 2, TOO_LARGE = 3, CHANGED = 4 };
enum { LENGTH_DELIMITED_1 = 0x0a, LENGTH_DELIMITED_2 = 0x12, MAX_VARINT = 10 };

typedef struct {
    const char *data;
    Py_ssize_t size;
} slice;

typedef struct {
    slice key;
    int kind;
    int64_t count;        /* values in all rows together */
    const char *values;   /* int64s, floats, or the buffer that the spans lie in */
    int64_t values_size;  /* its bytes */
    const slice *strings; /* byte strings from a tuple; NULL where there are spans */
    const char *spans;    /* int64 pairs; NULL where there are strings */
    const char *splits;   /* rows + 1 int64s; NULL where all rows are `width` wide */
    int64_t width;
} column;

/* Where an error was found, for the message. */
typedef struct {
    int code;
    int64_t record;
    int64_t column;
} failure;

static int64_t
load_int64(const char *at, int64_t index)
{
    int64_t value;
    memcpy(&value, at + index * (int64_t)sizeof(value), sizeof(value));
    return value;
}

static uint64_t
varint_size(uint64_t value)
{
    unsigned bits = 64 - (unsigned)__builtin_clzll(value | 1);
    return (bits * 9 + 64) / 64;
}

/* A tag of one byte, the length, and what it counts. */
static uint64_t
field_size(uint64_t payload)
{
    return 1 + varint_size(payload) + payload;
}

static int
row_of(const column *col, int64_t row, int64_t *first, int64_t *last)
{
    if (col->splits == NULL) {
        *first = row * col->width;
        *last = *first + col->width;
    }
    else {
        *first = load_int64(col->splits, row);
        *last = load_int64(col->splits, row + 1);
    }
    return *first >= 0 && *first <= *last && *last <= col->count ? OK : BAD_SPLITS;
}

static int
string_of(const column *col, int64_t index, slice *string)
{
    if (col->strings != NULL) {
        *string = col->strings[index];
        return OK;
    }
    int64_t start = load_int64(col->spans, 2 * index);
    int64_t end = load_int64(col->spans, 2 * index + 1);
    if (start < 0 || start > end || end > col->values_size) {
        return BAD_SPANS;
    }
    string->data = col->values + start;
    string->size = (Py_ssize_t)(end - start);
    return OK;
}

/* Bytes of `value` in a BytesList, FloatList or Int64List: for numbers without the packed field's own header. */
static int
list_size(const column *col, int64_t first, int64_t last, uint64_t *size)
{
    uint64_t sum = 0;
    slice string;
    switch (col->kind) {
    case KIND_FLOAT:
        sum = (uint64_t)(last - first) * sizeof(float);
        break;
    case KIND_INT64:
        for (int64_t i = first; i < last; i++) {
            sum += varint_size((uint64_t)load_int64(col->values, i));
        }
        break;
    case KIND_BYTES:
        for (int64_t i = first; i < last; i++) {
            int code = string_of(col, i, &string);
            if (code != OK) {
                return code;
            }
            sum += field_size((uint64_t)string.size);
            if (sum > INT_MAX) {
                return TOO_LARGE;
            }
        }
        break;
    }
    *size = sum;
    return sum > INT_MAX ? TOO_LARGE : OK;
}

/* The sizes of one feature's nested messages, from the innermost to the outermost. */
typedef struct {
    int64_t first, last; /* its values in the column */
    uint64_t values;     /* as list_size counts */
    uint64_t list;       /* the BytesList, FloatList or Int64List */
    uint64_t feature;    /* the Feature */
    uint64_t entry;      /* the map entry: key and Feature */
} feature_sizes;

static int
measure_feature(const column *col, int64_t row, feature_sizes *sizes)
{
    int code = row_of(col, row, &sizes->first, &sizes->last);
    if (code == OK) {
        code = list_size(col, sizes->first, sizes->last, &sizes->values);
    }
    if (code != OK) {
        return code;
    }
    int packed = col->kind == KIND_FLOAT || col->kind == KIND_INT64;
    sizes->list = packed && sizes->values > 0 ? field_size(sizes->values) : sizes->values;
    sizes->feature = col->kind == KIND_NONE ? 0 : field_size(sizes->list);
    sizes->entry = field_size((uint64_t)col->key.size) + field_size(sizes->feature);
    return OK;
}

/* Fills `sizes` for every column and returns the bytes of the record's Features message, or an error code. */
static int
measure_record(const column *cols, int64_t columns, int64_t row, feature_sizes *sizes, uint64_t *features,
               failure *fail)
{
    uint64_t sum = 0;
    int code = OK;
    for (int64_t c = 0; c < columns && code == OK; c++) {
        code = measure_feature(&cols[c], row, &sizes[c]);
        if (code == OK) {
            sum += field_size(sizes[c].entry);
            code = sum > INT_MAX - 6 ? TOO_LARGE : OK; /* 6: the header of Example.features */
        }
        if (code != OK) {
            *fail = (failure){code, row, c};
        }
    }
    *features = sum;
    return code;
}

/* The unwritten part of one record. `at` never passes `end`; NULL after a write that did not fit. */
typedef struct {
    char *at;
    char *end;
} sink;

static void
put_varint(sink *out, uint64_t value)
{
    if (out->at == NULL || (out->end - out->at < MAX_VARINT && (uint64_t)(out->end - out->at) < varint_size(value))) {
        out->at = NULL;
        return;
    }
    while (value >= 0x80) {
        *out->at++ = (char)(value | 0x80);
        value >>= 7;
    }
    *out->at++ = (char)value;
}

static void
put_bytes(sink *out, const char *data, uint64_t size)
{
    if (out->at == NULL || (uint64_t)(out->end - out->at) < size) {
        out->at = NULL;
        return;
    }
    if (size > 0) {
        memcpy(out->at, data, (size_t)size);
        out->at += size;
    }
}

static void
put_header(sink *out, int tag, uint64_t size)
{
    put_varint(out, (uint64_t)tag);
    put_varint(out, size);
}

static void
put_values(sink *out, const column *col, const feature_sizes *sizes)
{
    slice string;
    switch (col->kind) {
    case KIND_FLOAT:
        put_bytes(out, col->values + sizes->first * (int64_t)sizeof(float), sizes->values);
        break;
    case KIND_INT64:
        for (int64_t i = sizes->first; i < sizes->last; i++) {
            put_varint(out, (uint64_t)load_int64(col->values, i));
        }
        break;
    case KIND_BYTES:
        for (int64_t i = sizes->first; i < sizes->last; i++) {
            if (string_of(col, i, &string) != OK) {
                out->at = NULL;
                return;
            }
            put_header(out, LENGTH_DELIMITED_1, (uint64_t)string.size);
            put_bytes(out, string.data, (uint64_t)string.size);
        }
        break;
    }
}

static void
put_feature(sink *out, const column *col, const feature_sizes *sizes)
{
    put_header(out, LENGTH_DELIMITED_1, sizes->entry);
    put_header(out, LENGTH_DELIMITED_1, (uint64_t)col->key.size);
    put_bytes(out, col->key.data, (uint64_t)col->key.size);
    put_header(out, LENGTH_DELIMITED_2, sizes->feature);
    if (col->kind == KIND_NONE) {
        return;
    }
    put_header(out, col->kind << 3 | 2, sizes->list);
    if (sizes->list > 0 && col->kind != KIND_BYTES) {
        put_header(out, LENGTH_DELIMITED_1, sizes->values);
    }
    put_values(out, col, sizes);
}

/* First pass: the span of every record in the output. */
static int
plan_spans(const column *cols, int64_t columns, int64_t rows, feature_sizes *sizes, int64_t *spans, failure *fail)
{
    int64_t end = 0;
    for (int64_t row = 0; row < rows; row++) {
        uint64_t features;
        int code = measure_record(cols, columns, row, sizes, &features, fail);
        if (code != OK) {
            return code;
        }
        spans[2 * row] = end;
        if (end > PY_SSIZE_T_MAX - INT_MAX) {
            *fail = (failure){TOO_LARGE, row, 0};
            return TOO_LARGE;
        }
        end += (int64_t)field_size(features);
        spans[2 * row + 1] = end;
    }
    return OK;
}

/* Second pass: writes every record into its span. */
static int
write_records(const column *cols, int64_t columns, int64_t rows, feature_sizes *sizes, const int64_t *spans,
              char *buffer, failure *fail)
{
    for (int64_t row = 0; row < rows; row++) {
        uint64_t features;
        int code = measure_record(cols, columns, row, sizes, &features, fail);
        if (code != OK) {
            return code;
        }
        sink out = {buffer + spans[2 * row], buffer + spans[2 * row + 1]};
        put_header(&out, LENGTH_DELIMITED_1, features);
        for (int64_t c = 0; c < columns; c++) {
            put_feature(&out, &cols[c], &sizes[c]);
        }
        if (out.at != out.end) {
            *fail = (failure){CHANGED, row, 0};
            return CHANGED;
        }
    }
    return OK;
}

/* ---- The Python side: what a call holds, how a column is read from its tuple, and the call itself. */

enum { VIEWS = 3 }; /* values, spans, splits */

typedef struct {
    Py_ssize_t columns;
    column *cols;
    Py_buffer *views;
    slice **strings;
    feature_sizes *sizes;
} job;

static void
job_clear(job *work)
{
    for (Py_ssize_t i = 0; work->views != NULL && i < work->columns * VIEWS; i++) {
        if (work->views[i].obj != NULL) {
            PyBuffer_Release(&work->views[i]);
        }
    }
    for (Py_ssize_t i = 0; work->strings != NULL && i < work->columns; i++) {
        PyMem_Free(work->strings[i]);
    }
    PyMem_Free(work->cols);
    PyMem_Free(work->views);
    PyMem_Free(work->strings);
    PyMem_Free(work->sizes);
}

static int
job_allocate(job *work, Py_ssize_t columns)
{
    size_t count = columns > 0 ? (size_t)columns : 1;
    work->columns = columns;
    work->cols = PyMem_Calloc(count, sizeof(*work->cols));
    work->views = PyMem_Calloc(count, VIEWS * sizeof(*work->views));
    work->strings = PyMem_Calloc(count, sizeof(*work->strings));
    work->sizes = PyMem_Calloc(count, sizeof(*work->sizes));
    if (work->cols == NULL || work->views == NULL || work->strings == NULL || work->sizes == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

/* Takes the buffer of `object`, whose length must be a multiple of `unit`. */
static int
take_buffer(PyObject *object, Py_ssize_t unit, Py_buffer *view)
{
    if (PyObject_GetBuffer(object, view, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    if (view->len % unit != 0) {
        PyErr_Format(PyExc_ValueError, "a buffer of %zd bytes does not hold items of %zd bytes", view->len, unit);
        return -1;
    }
    return 0;
}

static slice *
strings_of_tuple(PyObject *values)
{
    Py_ssize_t count = PyTuple_Size(values);
    slice *strings = PyMem_Calloc(count > 0 ? (size_t)count : 1, sizeof(*strings));
    if (strings == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        char *data;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(values, i), &data, &strings[i].size) < 0) {
            PyMem_Free(strings);
            return NULL;
        }
        strings[i].data = data;
    }
    return strings;
}

static int
read_values(job *work, Py_ssize_t index, PyObject *values, PyObject *spans)
{
    column *col = &work->cols[index];
    Py_buffer *views = &work->views[index * VIEWS];
    if (col->kind == KIND_NONE) {
        return 0;
    }
    if (col->kind == KIND_BYTES && spans == Py_None) {
        if (!PyTuple_Check(values)) {
            PyErr_SetString(PyExc_TypeError, "byte strings must be a tuple of bytes, or a buffer with spans");
            return -1;
        }
        col->strings = work->strings[index] = strings_of_tuple(values);
        col->count = PyTuple_Size(values);
        return col->strings == NULL ? -1 : 0;
    }
    Py_ssize_t unit = col->kind == KIND_BYTES ? 1 : col->kind == KIND_FLOAT ? sizeof(float) : sizeof(int64_t);
    if (take_buffer(values, unit, &views[0]) < 0) {
        return -1;
    }
    col->values = views[0].buf;
    col->values_size = views[0].len;
    col->count = views[0].len / unit;
    if (col->kind == KIND_BYTES) {
        if (take_buffer(spans, 2 * sizeof(int64_t), &views[1]) < 0) {
            return -1;
        }
        col->spans = views[1].buf;
        col->count = views[1].len / (Py_ssize_t)(2 * sizeof(int64_t));
    }
    return 0;
}

static int
read_splits(job *work, Py_ssize_t index, PyObject *splits, Py_ssize_t rows)
{
    column *col = &work->cols[index];
    Py_buffer *view = &work->views[index * VIEWS + 2];
    if (PyLong_Check(splits)) {
        col->width = PyLong_AsLongLong(splits);
        if (col->width == -1 && PyErr_Occurred()) {
            return -1;
        }
        /* The division keeps rows * width from overflowing. */
        if (col->width < 0 || (rows > 0 && col->width > col->count / rows) || rows * col->width != col->count) {
            PyErr_Format(PyExc_ValueError, "column %zd has %lld values, not %zd rows of %lld", index,
                         (long long)col->count, rows, (long long)col->width);
            return -1;
        }
        return 0;
    }
    if (take_buffer(splits, sizeof(int64_t), view) < 0) {
        return -1;
    }
    if (view->len / (Py_ssize_t)sizeof(int64_t) - 1 != rows) {
        PyErr_Format(PyExc_ValueError, "column %zd has row splits for another number of rows than %zd", index, rows);
        return -1;
    }
    col->splits = view->buf;
    return 0;
}

static int
read_column(job *work, Py_ssize_t index, PyObject *item, Py_ssize_t rows)
{
    column *col = &work->cols[index];
    char *data;
    Py_ssize_t size;
    PyObject *key, *values, *spans, *splits;
    if (!PyTuple_Check(item)) {
        PyErr_SetString(PyExc_TypeError, "a column must be a tuple (key, kind, values, spans, splits)");
        return -1;
    }
    if (!PyArg_ParseTuple(item, "SiOOO", &key, &col->kind, &values, &spans, &splits) ||
        PyBytes_AsStringAndSize(key, &data, &size) < 0) {
        return -1;
    }
    col->key = (slice){data, size};
    if (col->kind < KIND_NONE || col->kind > KIND_INT64) {
        PyErr_Format(PyExc_ValueError, "a column's kind must be 0 to 3, not %d", col->kind);
        return -1;
    }
    if (read_values(work, index, values, spans) < 0) {
        return -1;
    }
    return read_splits(work, index, splits, rows);
}

static PyObject *
failed(failure fail)
{
    return Py_BuildValue("iLLOO", fail.code, (long long)fail.record, (long long)fail.column, Py_None, Py_None);
}

/* What the records go into: bytes for one record, which the caller hands out as they are; for large batches a
 * Block, whose memory is used again. Fresh pages cost more than filling them. */
static PyObject *
output_buffer(Py_ssize_t rows, Py_ssize_t size, char **memory)
{
    int reused = rows > 1 && size >= BLOCK_SMALLEST;
    PyObject *buffer = reused ? block_new(size) : PyBytes_FromStringAndSize(NULL, size);
    if (buffer != NULL) {
        *memory = reused ? (char *)block_memory(buffer) : PyBytes_AsString(buffer);
    }
    return buffer;
}

/* Both passes; the output's bytes objects are made between them, when their size is known. */
static PyObject *
run_job(job *work, Py_ssize_t rows)
{
    if (rows > PY_SSIZE_T_MAX / (Py_ssize_t)(2 * sizeof(int64_t))) {
        return PyErr_NoMemory();
    }
    PyObject *spans = PyBytes_FromStringAndSize(NULL, rows * (Py_ssize_t)(2 * sizeof(int64_t)));
    if (spans == NULL) {
        return NULL;
    }
    int64_t *bounds = (int64_t *)PyBytes_AsString(spans);
    failure fail = {OK, 0, 0};
    int code;
    Py_BEGIN_ALLOW_THREADS
    code = plan_spans(work->cols, work->columns, rows, work->sizes, bounds, &fail);
    Py_END_ALLOW_THREADS
    if (code != OK) {
        Py_DECREF(spans);
        return failed(fail);
    }
    char *out;
    PyObject *buffer = output_buffer(rows, rows > 0 ? (Py_ssize_t)bounds[2 * rows - 1] : 0, &out);
    if (buffer == NULL) {
        Py_DECREF(spans);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    code = write_records(work->cols, work->columns, rows, work->sizes, bounds, out, &fail);
    Py_END_ALLOW_THREADS
    if (code != OK) {
        Py_DECREF(spans);
        Py_DECREF(buffer);
        return failed(fail);
    }
    return Py_BuildValue("iLLNN", OK, 0LL, 0LL, buffer, spans);
}

PyDoc_STRVAR(encode_examples_doc,
"encode_examples(columns, rows, /)\n--\n\n"
"Encodes columns as serialized tf.train.Example records, in one buffer.\n\n"
"Each column is a tuple (key, kind, values, spans, splits): the feature's name in UTF-8; 0 for no kind, 1 for\n"
"bytes, 2 for float, 3 for int64; a buffer of int64 or float32 values, a tuple of bytes, or a buffer whose\n"
"strings the int64 pairs of `spans` bound (else None); the width of every row or the rows + 1 int64 splits.\n\n"
"Returns (code, record, column, buffer, spans). Code 0: `buffer` holds the records and `spans` their int64\n"
"pairs of start and end. 1: splits out of order or range. 2: spans out of range. 3: a record over 2 GiB.\n"
"4: a column changed during the call. On an error the last two are None.");

static PyObject *
encode_examples(PyObject *module, PyObject *args)
{
    (void)module;
    PyObject *columns;
    Py_ssize_t rows;
    if (!PyArg_ParseTuple(args, "O!n:encode_examples", &PyTuple_Type, &columns, &rows)) {
        return NULL;
    }
    if (rows < 0) {
        PyErr_SetString(PyExc_ValueError, "rows must not be negative");
        return NULL;
    }
    job work = {0};
    PyObject *result = NULL;
    int failing = job_allocate(&work, PyTuple_Size(columns));
    for (Py_ssize_t i = 0; i < work.columns && !failing; i++) {
        failing = read_column(&work, i, PyTuple_GetItem(columns, i), rows);
    }
    if (!failing) {
        result = run_job(&work, rows);
    }
    job_clear(&work);
    return result;
}

PyMethodDef encode_methods[] = {
    {"encode_examples", encode_examples, METH_VARARGS, encode_examples_doc},
    {NULL, NULL, 0, NULL},
};
