/* Argument converters for the "O&" of PyArg_ParseTupleAndKeywords: what a kernel accepts, checked in one place.
 *
 * They raise TypeError for what is not a buffer or has another element type, ValueError for a wrong shape or value, BufferError
 * for what is not C-contiguous.
 * The converters of buffers fill a Py_buffer; after a successful parse the caller releases it.
 */
#ifndef STREAMREC_ARGS_H
#define STREAMREC_ARGS_H

#include "native.h"

int take_buffer(PyObject *object, void *view);          /* Py_buffer *: contiguous bytes-like, any element type */
int take_spans(PyObject *object, void *view);           /* Py_buffer *: int64 [n, 2] */
int take_places(PyObject *object, void *view);          /* Py_buffer *: int64 [n, 2] or [n, 4]: spans, or rows */
int take_row_splits(PyObject *object, void *view);      /* Py_buffer *: int64 [n] */
int take_int64s_or_none(PyObject *object, void *view);  /* Py_buffer *: int64 [n]; None leaves view->obj NULL */
int take_size(PyObject *object, void *size);            /* Py_ssize_t *: an int from 0 on */
int take_uint32(PyObject *object, void *value);         /* uint32_t * */
int take_number(PyObject *object, void *value);         /* int64_t *: that of a buffer, 31 bits */

/* What the kernels over a TFRecord stream are called with: (data, start, verify, max_record_bytes). */
struct stream {
    Py_buffer data;
    Py_ssize_t start, max_record_bytes;
    int verify;
};

/* 0 with an exception set, and nothing to release; `format` is "O&O&pO&:" and the kernel's name. */
int take_stream(PyObject *args, PyObject *kwargs, const char *format, struct stream *stream);

/* Views of all buffers of a sequence. */
struct buffers {
    Py_buffer *views;
    Py_ssize_t count;
};

int take_buffers(PyObject *sequence, struct buffers *buffers); /* 0 with an exception set, and nothing to release */
void release_buffers(struct buffers *buffers);

#define SPAN_BYTES 16  /* a span: two int64 */
#define ROW_BYTES 32   /* a row: a span, `buffer << BUFFER_BITS | size`, and a number of the caller's */
#define BUFFER_BITS 32

/* One element of an int64 buffer, which need not be aligned (np.frombuffer(data, np.int64, offset=1)). */
static inline int64_t
int64_at(const void *elements, Py_ssize_t index)
{
    int64_t value;
    memcpy(&value, (const char *)elements + 8 * (size_t)index, sizeof value);
    return value;
}

/* Span `index` of int64 [n, 2] as start and length; 0 if it does not lie within `size` bytes. */
static inline int
span_at(const void *spans, Py_ssize_t index, Py_ssize_t size, size_t *start, size_t *length)
{
    int64_t from = int64_at(spans, 2 * index), to = int64_at(spans, 2 * index + 1);
    if (from < 0 || to < from || to > (int64_t)size) {
        return 0;
    }
    *start = (size_t)from;
    *length = (size_t)(to - from);
    return 1;
}

/* Raises ValueError for a span that span_at() refused, and returns NULL. */
PyObject *raise_bad_span(const void *spans, Py_ssize_t index, Py_ssize_t size);

#endif
