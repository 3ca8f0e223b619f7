/* Result, and byte strings out of it.
 *
 * A Result owns memory from malloc and lends it through the buffer protocol, so that NumPy takes it without a copy.
 * Byte strings are a Result of decode_slices, pointers into the records: it must be turned into objects
 * (decode_strings) or offsets (decode_spans) while the records live.
 */
#include "example/decode_result.h"

#include "support/args.h"

#include <stdlib.h>

typedef struct {
    PyObject_HEAD
    void *data;
    Py_ssize_t size;
} Result;

static void
result_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    free(((Result *)self)->data);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int
result_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    static char nothing[8];
    Result *result = (Result *)self;
    return PyBuffer_FillInfo(view, self, result->data ? result->data : nothing, result->size, 0, flags);
}

static PyType_Slot result_slots[] = {
    {Py_tp_dealloc, (void *)result_dealloc},
    {Py_bf_getbuffer, (void *)result_getbuffer},
    {0, NULL},
};

static PyType_Spec result_spec = {
    .name = "streamrec.kernels._native.DecodeResult",
    .basicsize = sizeof(Result),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = result_slots,
};

/* Takes over the buffer's memory. Only much that was not used is given back: a shrunken one keeps malloc from
 * learning the size that the next batch will ask for, and each batch would fault in fresh pages. */
PyObject *
decode_result(decode_buffer *buffer)
{
    static PyObject *type; /* made at the first call, under the GIL; it has no state */
    if (type == NULL && (type = PyType_FromSpec(&result_spec)) == NULL) {
        return NULL;
    }
    Result *result = (Result *)PyType_GenericAlloc((PyTypeObject *)type, 0);
    if (result == NULL) {
        return NULL;
    }
    if (buffer->used == 0) {
        free(buffer->data);
        buffer->data = NULL;
    }
    else if (buffer->used < buffer->capacity / 4 * 3) {
        void *data = realloc(buffer->data, (size_t)buffer->used);
        buffer->data = data ? data : buffer->data;
    }
    result->data = buffer->data;
    result->size = (Py_ssize_t)buffer->used;
    *buffer = (decode_buffer){0};
    return (PyObject *)result;
}

static int
open_pair(PyObject *source, PyObject *target, Py_buffer *from, Py_buffer *to, size_t width)
{
    if (PyObject_GetBuffer(source, from, PyBUF_SIMPLE) < 0) {
        return -1;
    }
    if (PyObject_GetBuffer(target, to, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) < 0) {
        PyBuffer_Release(from);
        return -1;
    }
    if ((size_t)to->len / width < (size_t)from->len / sizeof(decode_slice)) {
        PyErr_SetString(PyExc_ValueError, "the array is too small for the strings");
        PyBuffer_Release(from);
        PyBuffer_Release(to);
        return -1;
    }
    return 0;
}

PyDoc_STRVAR(strings_doc,
             "decode_strings(result, array, defaults, /)\n--\n\n"
             "Fills an object array with bytes; slices of nothing take the tuple of defaults in turn.");

static PyObject *
strings(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *result, *array, *defaults;
    Py_buffer from, to;
    if (!PyArg_ParseTuple(args, "OOO!", &result, &array, &PyTuple_Type, &defaults) ||
        open_pair(result, array, &from, &to, sizeof(PyObject *)) < 0) {
        return NULL;
    }
    const decode_slice *slices = from.buf;
    PyObject **objects = to.buf;
    Py_ssize_t count = from.len / (Py_ssize_t)sizeof *slices, cycle = PyTuple_Size(defaults), done = 0;
    for (; done < count; done++) {
        PyObject *made;
        if (slices[done].data == NULL) {
            made = cycle ? PyTuple_GetItem(defaults, done % cycle) : NULL;
            if (made == NULL) {
                PyErr_SetString(PyExc_ValueError, "a slice of nothing, and no default");
                break;
            }
            Py_INCREF(made);
        }
        else if ((made = PyBytes_FromStringAndSize((const char *)slices[done].data, slices[done].size)) == NULL) {
            break;
        }
        PyObject *before = objects[done];
        objects[done] = made;
        Py_XDECREF(before);
    }
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    return done < count ? NULL : Py_NewRef(Py_None);
}

PyDoc_STRVAR(spans_doc,
             "decode_spans(result, buffers, array, /)\n--\n\n"
             "Fills an int64 array with start and end of each string in its buffer; -1 for slices of nothing. Over one\n"
             "buffer the array has rows of two; over a tuple of them rows of four, whose third says which it is, as in\n"
             "the records' rows.");

/* Spans of slices; rows of four say themselves in which buffer, see records_of_rows() in decode.c. */
static int
place_slices(const decode_slice *slices, Py_ssize_t count, const struct buffers *buffers, int64_t *rows, int width)
{
    for (Py_ssize_t index = 0; index < count; index++, rows += width) {
        int64_t number = width > 2 ? rows[2] >> 32 : 0, start = -1, end = -1;
        if (slices[index].data != NULL) {
            if (number < 0 || number >= buffers->count) {
                PyErr_Format(PyExc_ValueError, "a string lies in buffer %lld of %zd", (long long)number, buffers->count);
                return -1;
            }
            const Py_buffer *buffer = &buffers->views[number];
            start = (int64_t)((uintptr_t)slices[index].data - (uintptr_t)buffer->buf);
            end = start + slices[index].size;
            if (start < 0 || end > buffer->len) {
                PyErr_SetString(PyExc_ValueError, "a string lies outside of its buffer");
                return -1;
            }
        }
        rows[0] = start;
        rows[1] = end;
    }
    return 0;
}

static PyObject *
spans_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *result, *source, *array;
    Py_buffer from, to;
    struct buffers buffers;
    if (!PyArg_ParseTuple(args, "OOO", &result, &source, &array)) {
        return NULL;
    }
    int width = PyTuple_Check(source) ? 4 : 2;
    PyObject *all = width > 2 ? Py_NewRef(source) : PyTuple_Pack(1, source);
    int taken = all != NULL && take_buffers(all, &buffers);
    Py_XDECREF(all);
    if (!taken) {
        return NULL;
    }
    int failed = open_pair(result, array, &from, &to, (size_t)width * sizeof(int64_t));
    if (!failed) {
        failed = place_slices(from.buf, from.len / (Py_ssize_t)sizeof(decode_slice), &buffers, to.buf, width);
        PyBuffer_Release(&from);
        PyBuffer_Release(&to);
    }
    release_buffers(&buffers);
    return failed ? NULL : Py_NewRef(Py_None);
}

PyMethodDef decode_result_methods[] = {
    {"decode_strings", strings, METH_VARARGS, strings_doc},
    {"decode_spans", spans_of, METH_VARARGS, spans_doc},
    {NULL, NULL, 0, NULL},
};
