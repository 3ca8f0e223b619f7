#include "support/args.h"

#include <stdlib.h>

static int
take_view(PyObject *object, Py_buffer *view)
{
    if (!PyObject_CheckBuffer(object)) {
        PyErr_Format(PyExc_TypeError, "a bytes-like object is required, not %R", (PyObject *)Py_TYPE(object));
        return 0;
    }
    return PyObject_GetBuffer(object, view, PyBUF_FULL_RO) == 0;
}

static int
is_int64(const Py_buffer *view)
{
    const char *format = view->format != NULL ? view->format : "B";
    return view->itemsize == 8 &&
           (strcmp(format, "l") == 0 || strcmp(format, "q") == 0 || strcmp(format, "=q") == 0); /* not aligned */
}

/* Releases the view and raises unless it is contiguous; the last check of every converter. */
static int
finish(Py_buffer *view)
{
    if (!PyBuffer_IsContiguous(view, 'C')) {
        PyBuffer_Release(view);
        PyErr_SetString(PyExc_BufferError, "the buffer is not C-contiguous; pass np.ascontiguousarray() of it");
        return 0;
    }
    return Py_CLEANUP_SUPPORTED;
}

int
take_buffer(PyObject *object, void *view)
{
    if (object == NULL) { /* the clean-up call after another argument failed */
        PyBuffer_Release(view);
        return 1;
    }
    return take_view(object, view) ? finish(view) : 0;
}

/* Takes int64 of so many dimensions; of two, the second has 2, or `most`. */
static int
take_cells(PyObject *object, Py_buffer *view, int ndim, Py_ssize_t most, const char *wanted)
{
    if (!take_view(object, view)) {
        return 0;
    }
    int right_type = is_int64(view);
    if (!right_type || view->ndim != ndim || (ndim == 2 && view->shape[1] != 2 && view->shape[1] != most)) {
        PyErr_Format(right_type ? PyExc_ValueError : PyExc_TypeError,
                     "wanted %s, found %d dimension(s) of format '%s'", wanted, view->ndim,
                     view->format != NULL ? view->format : "B");
        PyBuffer_Release(view);
        return 0;
    }
    return finish(view);
}

static int
take_int64s(PyObject *object, Py_buffer *view, int ndim, const char *wanted)
{
    return take_cells(object, view, ndim, 2, wanted);
}

int
take_places(PyObject *object, void *view)
{
    return take_cells(object, view, 2, 4, "spans or rows as an int64 array of shape [n, 2] or [n, 4]");
}

int
take_spans(PyObject *object, void *view)
{
    if (object == NULL) {
        PyBuffer_Release(view);
        return 1;
    }
    return take_int64s(object, view, 2, "spans as an int64 array of shape [n, 2]");
}

int
take_row_splits(PyObject *object, void *view)
{
    if (object == NULL) {
        PyBuffer_Release(view);
        return 1;
    }
    return take_int64s(object, view, 1, "row splits as an int64 array of shape [n]");
}

int
take_int64s_or_none(PyObject *object, void *view)
{
    if (object == NULL) {
        PyBuffer_Release(view); /* does nothing where obj is NULL */
        return 1;
    }
    if (object == Py_None) {
        ((Py_buffer *)view)->obj = NULL;
        return Py_CLEANUP_SUPPORTED;
    }
    return take_int64s(object, view, 1, "None or an int64 array of shape [n]");
}

/* An int from 0 to `limit`, whatever its size; -1 with an error set otherwise. */
static long long
take_integer(PyObject *object, long long limit)
{
    PyObject *index = PyNumber_Index(object);
    if (index == NULL) {
        return -1;
    }
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(index, &overflow);
    if (overflow != 0 || value < 0 || value > limit) {
        PyErr_Format(PyExc_ValueError, "wanted an integer from 0 to %lld, found %R", limit, index);
        value = -1;
    }
    Py_DECREF(index);
    return value;
}

int
take_size(PyObject *object, void *size)
{
    long long value = take_integer(object, PY_SSIZE_T_MAX);
    *(Py_ssize_t *)size = (Py_ssize_t)value;
    return value >= 0;
}

int
take_uint32(PyObject *object, void *value)
{
    long long wide = take_integer(object, UINT32_MAX);
    *(uint32_t *)value = (uint32_t)wide;
    return wide >= 0;
}

int
take_number(PyObject *object, void *value)
{
    long long wide = take_integer(object, INT32_MAX);
    *(int64_t *)value = wide;
    return wide >= 0;
}

PyObject *
raise_bad_span(const void *spans, Py_ssize_t index, Py_ssize_t size)
{
    return PyErr_Format(PyExc_ValueError, "span %zd is [%lld, %lld): wanted 0 <= start <= end <= %zd, the buffer's size",
                        index, (long long)int64_at(spans, 2 * index), (long long)int64_at(spans, 2 * index + 1),
                        size);
}

int
take_stream(PyObject *args, PyObject *kwargs, const char *format, struct stream *stream)
{
    static char *names[] = {"data", "start", "verify", "max_record_bytes", NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, take_buffer, &stream->data, take_size,
                                     &stream->start, &stream->verify, take_size, &stream->max_record_bytes)) {
        return 0;
    }
    if (stream->start > stream->data.len) {
        PyErr_Format(PyExc_ValueError, "start is %zd, beyond the %zd bytes of data", stream->start, stream->data.len);
        PyBuffer_Release(&stream->data);
        return 0;
    }
    return 1;
}

int
take_buffers(PyObject *sequence, struct buffers *buffers)
{
    PyObject *tuple = PySequence_Tuple(sequence);
    if (tuple == NULL) {
        return 0;
    }
    Py_ssize_t count = PyTuple_Size(tuple);
    buffers->count = 0;
    buffers->views = calloc((size_t)count + 1, sizeof *buffers->views);
    if (buffers->views == NULL) {
        PyErr_NoMemory();
    } else {
        while (buffers->count < count &&
               take_buffer(PyTuple_GetItem(tuple, buffers->count), &buffers->views[buffers->count])) {
            buffers->count++;
        }
    }
    Py_DECREF(tuple); /* each view holds its object */
    if (buffers->views == NULL || buffers->count < count) {
        release_buffers(buffers);
        return 0;
    }
    return 1;
}

void
release_buffers(struct buffers *buffers)
{
    while (buffers->count > 0) {
        PyBuffer_Release(&buffers->views[--buffers->count]);
    }
    free(buffers->views);
    buffers->views = NULL; /* so that releasing them again does nothing */
}
