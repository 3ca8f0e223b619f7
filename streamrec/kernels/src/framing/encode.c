/* The frames family, its writing half: payloads in, TFRecord bytes out. One copy of each byte, and its CRC32C. */
#include "support/args.h"
#include "support/block.h"
#include "crc32c/crc32c.h"

#include <stdlib.h>

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

/* Writes one frame; returns how many bytes it has. */
static inline size_t
write_frame(uint8_t *target, const uint8_t *payload, size_t length)
{
    store_le64(target, length);
    store_le32(target + 8, crc32c_masked_word(length));
    if (length > 0) {
        memcpy(target + CRC32C_HEADER_BYTES, payload, length);
    }
    store_le32(target + CRC32C_HEADER_BYTES + length, crc32c_masked(target + CRC32C_HEADER_BYTES, length));
    return CRC32C_FRAME_BYTES + length;
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
        size_t written = write_frame(target, (const uint8_t *)buffer->buf + start, length);
        target += written;
        room -= written;
    }
    return -1;
}

static PyObject *
encode(const Py_buffer *buffer, const Py_buffer *spans, int reused)
{
    Py_ssize_t n = spans->shape[0], bad;
    Py_ssize_t size = framed_bytes(buffer, spans->buf, n, &bad);
    if (size < 0) {
        return bad == n ? PyErr_NoMemory() : raise_bad_span(spans->buf, bad, buffer->len);
    }
    uint8_t *target = NULL;
    PyObject *frames = reused ? block_or_bytes(size, &target) : PyBytes_FromStringAndSize(NULL, size);
    if (frames == NULL) {
        return NULL;
    }
    target = reused ? target : (uint8_t *)PyBytes_AsString(frames);
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
encode_arguments(PyObject *args, PyObject *kwargs, const char *format, int reused)
{
    static char *names[] = {"buffer", "spans", NULL};
    Py_buffer buffer, spans;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, take_buffer, &buffer, take_spans, &spans)) {
        return NULL;
    }
    PyObject *frames = encode(&buffer, &spans, reused);
    PyBuffer_Release(&spans);
    PyBuffer_Release(&buffer);
    return frames;
}

static PyObject *
py_encode_frames(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    return encode_arguments(args, kwargs, "O&O&:encode_frames", 0);
}

static PyObject *
py_encode_block(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    return encode_arguments(args, kwargs, "O&O&:encode_block", 1);
}

/* A record as it lies in an object that lives as long as the call. */
struct payload {
    const uint8_t *bytes;
    size_t length;
};

/* The payloads of a tuple of bytes objects, and what their frames take together; NULL with an exception. */
static struct payload *
payloads_of(PyObject *records, Py_ssize_t n, Py_ssize_t *total)
{
    struct payload *payloads = calloc((size_t)n + 1, sizeof *payloads);
    if (payloads == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *total = 0;
    for (Py_ssize_t i = 0; i < n; i++) {
        char *bytes;
        Py_ssize_t length;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(records, i), &bytes, &length) < 0) {
            free(payloads);
            return NULL;
        }
        payloads[i] = (struct payload){(const uint8_t *)bytes, (size_t)length};
        if (__builtin_add_overflow(*total, length + (Py_ssize_t)CRC32C_FRAME_BYTES, total)) {
            free(payloads);
            PyErr_NoMemory();
            return NULL;
        }
    }
    return payloads;
}

static PyObject *
py_encode_objects(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"records", NULL};
    (void)module;
    PyObject *sequence, *frames = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:encode_objects", names, &sequence)) {
        return NULL;
    }
    PyObject *records = PySequence_Tuple(sequence); /* keeps them, whatever happens to the list meanwhile */
    if (records == NULL) {
        return NULL;
    }
    Py_ssize_t n = PyTuple_Size(records), total;
    struct payload *payloads = payloads_of(records, n, &total);
    uint8_t *target;
    if (payloads != NULL && (frames = block_or_bytes(total, &target)) != NULL) {
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t i = 0; i < n; i++) {
            target += write_frame(target, payloads[i].bytes, payloads[i].length);
        }
        Py_END_ALLOW_THREADS
    }
    free(payloads);
    Py_DECREF(records);
    return frames;
}

PyMethodDef framing_methods[] = {
    {"encode_frames", KEYWORD_FUNCTION(py_encode_frames), KEYWORDS,
     "encode_frames(buffer, spans)\n--\n\nThe payloads of spans of buffer, framed as TFRecord bytes."},
    {"encode_block", KEYWORD_FUNCTION(py_encode_block), KEYWORDS,
     "encode_block(buffer, spans)\n--\n\nThe same in memory that is used again: a Block."},
    {"encode_objects", KEYWORD_FUNCTION(py_encode_objects), KEYWORDS,
     "encode_objects(records)\n--\n\nThe same of bytes objects."},
    {NULL, NULL, 0, NULL},
};
