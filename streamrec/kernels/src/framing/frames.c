/* The frames family, its reading half: finding TFRecord's records in a buffer.
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

enum { OK = 0, BAD_LENGTH_CRC = 1, BAD_PAYLOAD_CRC = 2, TOO_LONG = 3 }; /* as in kernels/__init__.py */

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

PyMethodDef frames_methods[] = {
    {"scan_frames", KEYWORD_FUNCTION(py_scan_frames), KEYWORDS,
     "scan_frames(data, start, verify, max_record_bytes)\n--\n\n"
     "Finds the whole records in data from start on: (spans, position, code, wants)."},
    {NULL, NULL, 0, NULL},
};
