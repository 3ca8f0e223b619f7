/* The frames family: finding TFRecord's records in a buffer, and writing them.
 *
 * A record is: uint64 length (little-endian), masked CRC32C of those 8 bytes, payload, masked CRC32C of the
 * payload (tensorflow/core/lib/io/record_writer.h).
 *
 *  - The length's CRC is always checked before the length is believed; a length above the limit is a code,
 *    never an allocation; all comparisons are arranged so that no length can overflow them.
 *  - Records before a bad one are returned.
 */
#include "support/args.h"
#include "support/block.h"
#include "crc32c/crc32c.h"

#define FIRST_CAPACITY 1024
#define WINDOW 768 /* lengths that are held at a time, a multiple of the three records that are checked together */

enum { OK = 0, BAD_LENGTH_CRC = 1, BAD_PAYLOAD_CRC = 2, TOO_LONG = 3 }; /* the same as in codes.py */

struct verdict {
    int code;
    uint64_t bytes; /* of the whole record, or of its header as long as that is all to be had or to be trusted */
};

struct scan {
    struct crc32c_records records;
    size_t start, position;
    PyObject *spans; /* a Block of int64 [capacity, 2]; its memory */
    uint8_t *memory;
    size_t count, capacity;
    struct verdict verdict; /* on what lies at position in the end */
};

/* Makes room for as many spans as there will be if the records go on as they began, and an eighth more. A record has
 * 16 bytes at least, so this is at most as much as the data, or double what was needed before. */
static int
grow(struct scan *scan)
{
    size_t capacity = FIRST_CAPACITY;
    if (scan->count > 0) {
        size_t mean = (scan->position - scan->start) / scan->count;
        size_t expected = (scan->records.size - scan->start) / mean;
        capacity = expected > scan->count ? expected + expected / 8 : 2 * scan->count;
    }
    PyObject *spans = block_new((Py_ssize_t)(capacity * SPAN_BYTES));
    if (spans == NULL) {
        return -1;
    }
    if (scan->count > 0) {
        memcpy(block_memory(spans), scan->memory, scan->count * SPAN_BYTES);
    }
    Py_XDECREF(scan->spans);
    scan->spans = spans;
    scan->memory = block_memory(spans);
    scan->capacity = capacity;
    return 0;
}

/* Adds the spans of records that lie in a row from `position` on. */
static void
add_spans(struct scan *scan, size_t position, const uint64_t *lengths, size_t found)
{
    uint8_t *target = scan->memory + scan->count * SPAN_BYTES;
    int64_t start = (int64_t)position + CRC32C_HEADER_BYTES;
    for (size_t i = 0; i < found; i++) {
        int64_t span[2] = {start, start + (int64_t)lengths[i]};
        memcpy(target + SPAN_BYTES * i, span, SPAN_BYTES);
        start = span[1] + CRC32C_FRAME_BYTES;
    }
    scan->count += found;
}

/* Looks at the record whose header begins at `position`: its code, and how many bytes it has or wants. */
static inline struct verdict
look_at(const struct crc32c_records *records, size_t position)
{
    size_t left = records->size - position;
    if (left < CRC32C_HEADER_BYTES) {
        return (struct verdict){OK, CRC32C_HEADER_BYTES};
    }
    const uint8_t *header = records->data + position, *payload = header + CRC32C_HEADER_BYTES;
    uint64_t length = load_le64(header);
    if (crc32c_masked_word(length) != load_le32(header + 8)) {
        return (struct verdict){BAD_LENGTH_CRC, CRC32C_HEADER_BYTES};
    }
    if (length > records->max_record_bytes) {
        return (struct verdict){TOO_LONG, CRC32C_HEADER_BYTES};
    }
    struct verdict good = {OK, CRC32C_FRAME_BYTES + length};
    if (left < CRC32C_FRAME_BYTES || length > left - CRC32C_FRAME_BYTES || !records->verify ||
        crc32c_masked(payload, length) == load_le32(payload + length)) {
        return good;
    }
    return (struct verdict){BAD_PAYLOAD_CRC, CRC32C_FRAME_BYTES + length};
}

/* Scans until the bytes end, one record is bad, or there is no room for another: then it returns 0. */
static int
scan_records(struct scan *scan)
{
    uint64_t lengths[WINDOW];
    while (scan->count < scan->capacity) {
        size_t found, position = scan->position, room = scan->capacity - scan->count;
        room = room < WINDOW ? room : WINDOW;
        scan->position = crc32c_best.good_records(&scan->records, position, lengths, room, &found);
        add_spans(scan, position, lengths, found);
        if (found < room) {
            break;
        }
    }
    scan->verdict = look_at(&scan->records, scan->position);
    return scan->verdict.code != OK || scan->verdict.bytes > scan->records.size - scan->position;
}

static void
store_le64(uint8_t *target, uint64_t value)
{
    value = load_le64((const uint8_t *)&value); /* swaps on big-endian machines */
    memcpy(target, &value, sizeof value);
}

static void
store_le32(uint8_t *target, uint32_t value)
{
    value = load_le32((const uint8_t *)&value);
    memcpy(target, &value, sizeof value);
}

/* Bytes of all frames; -1 with *bad set to the first span outside the buffer, or to n where the sum overflows. */
static Py_ssize_t
framed_bytes(const Py_buffer *buffer, const void *spans, Py_ssize_t n, Py_ssize_t *bad)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        size_t start, length;
        *bad = i;
        if (!span_at(spans, i, buffer->len, &start, &length)) {
            return -1;
        }
        *bad = n;
        if (__builtin_add_overflow(total, (Py_ssize_t)length, &total) ||
            __builtin_add_overflow(total, (Py_ssize_t)CRC32C_FRAME_BYTES, &total)) {
            return -1;
        }
    }
    return total;
}

/* Writes the frames. The spans may have changed since they were measured (another thread's array), so they are
 * checked again. Returns the index of a span that does not fit, or -1. */
static Py_ssize_t
write_frames(const Py_buffer *buffer, const void *spans, Py_ssize_t n, uint8_t *target, size_t room)
{
    for (Py_ssize_t i = 0; i < n; i++) {
        size_t start, length;
        if (!span_at(spans, i, buffer->len, &start, &length) || room < CRC32C_FRAME_BYTES ||
            length > room - CRC32C_FRAME_BYTES) {
            return i;
        }
        const uint8_t *payload = (const uint8_t *)buffer->buf + start;
        store_le64(target, length);
        store_le32(target + 8, crc32c_masked_word(length));
        if (length > 0) {
            memcpy(target + CRC32C_HEADER_BYTES, payload, length);
        }
        store_le32(target + CRC32C_HEADER_BYTES + length, crc32c_masked(target + CRC32C_HEADER_BYTES, length));
        target += CRC32C_FRAME_BYTES + length;
        room -= CRC32C_FRAME_BYTES + length;
    }
    return -1;
}

/* The spans as an object of their size: few of them as bytes, which cost less than a Block. */
static PyObject *
spans_found(const struct scan *scan)
{
    Py_ssize_t size = (Py_ssize_t)(scan->count * SPAN_BYTES);
    if (size < BLOCK_SMALLEST) {
        return PyBytes_FromStringAndSize((const char *)scan->memory, size);
    }
    block_shrink(scan->spans, size);
    return Py_NewRef(scan->spans);
}

/* Scans; what is found goes into more and more room. */
static PyObject *
scanned(struct scan *scan)
{
    int done = 0;
    while (!done) {
        if (grow(scan) < 0) {
            return NULL;
        }
        Py_BEGIN_ALLOW_THREADS
        done = scan_records(scan);
        Py_END_ALLOW_THREADS
    }
    PyObject *spans = spans_found(scan);
    return spans == NULL ? NULL
                         : Py_BuildValue("NniK", spans, (Py_ssize_t)scan->position, scan->verdict.code,
                                         (unsigned long long)scan->verdict.bytes);
}

static PyObject *
py_scan_frames(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    struct stream stream;
    if (!take_stream(args, kwargs, "O&O&pO&:scan_frames", &stream)) {
        return NULL;
    }
    struct scan scan = {
        .records = {stream.data.buf, (size_t)stream.data.len, (uint64_t)stream.max_record_bytes, stream.verify},
        .start = (size_t)stream.start,
        .position = (size_t)stream.start,
    };
    PyObject *result = scanned(&scan);
    Py_XDECREF(scan.spans);
    PyBuffer_Release(&stream.data);
    return result;
}

static PyObject *
encode(const Py_buffer *buffer, const Py_buffer *spans)
{
    Py_ssize_t n = spans->shape[0], bad;
    Py_ssize_t size = framed_bytes(buffer, spans->buf, n, &bad);
    if (size < 0) {
        return bad == n ? PyErr_NoMemory() : raise_bad_span(spans->buf, bad, buffer->len);
    }
    PyObject *frames = PyBytes_FromStringAndSize(NULL, size);
    if (frames == NULL) {
        return NULL;
    }
    uint8_t *target = (uint8_t *)PyBytes_AsString(frames);
    Py_BEGIN_ALLOW_THREADS
    bad = write_frames(buffer, spans->buf, n, target, (size_t)size);
    Py_END_ALLOW_THREADS
    if (bad >= 0) {
        Py_DECREF(frames);
        return raise_bad_span(spans->buf, bad, buffer->len);
    }
    return frames;
}

static PyObject *
py_encode_frames(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"buffer", "spans", NULL};
    (void)module;
    Py_buffer buffer, spans;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&:encode_frames", names, take_buffer, &buffer, take_spans,
                                     &spans)) {
        return NULL;
    }
    PyObject *frames = encode(&buffer, &spans);
    PyBuffer_Release(&spans);
    PyBuffer_Release(&buffer);
    return frames;
}

PyMethodDef frames_methods[] = {
    {"scan_frames", KEYWORD_FUNCTION(py_scan_frames), KEYWORDS,
     "scan_frames(data, start, verify, max_record_bytes)\n--\n\n"
     "Finds the whole records in data from start on: (spans, position, code, wants)."},
    {"encode_frames", KEYWORD_FUNCTION(py_encode_frames), KEYWORDS,
     "encode_frames(buffer, spans)\n--\n\nThe payloads of spans of buffer, framed as TFRecord bytes."},
    {NULL, NULL, 0, NULL},
};
