/* Block, and byte strings out of it.
 *
 * A Block owns memory from malloc and lends it through the buffer protocol, so that NumPy takes it without a copy.
 * Byte strings are a Block of decode_slices, pointers into the records: it must be turned into objects
 * (decode_strings) or offsets (decode_spans) while the records live.
 */
#include "decode_block.h"

#include <stdlib.h>

typedef struct {
    PyObject_HEAD
    void *data;
    Py_ssize_t size;
} Block;

static void
block_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    free(((Block *)self)->data);
    PyObject_Free(self);
    Py_DECREF(type);
}

static int
block_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    static char nothing[8];
    Block *block = (Block *)self;
    return PyBuffer_FillInfo(view, self, block->data ? block->data : nothing, block->size, 0, flags);
}

static PyType_Slot block_slots[] = {
    {Py_tp_dealloc, (void *)block_dealloc},
    {Py_bf_getbuffer, (void *)block_getbuffer},
    {0, NULL},
};

static PyType_Spec block_spec = {
    .name = "streamrec.kernels._native.Block",
    .basicsize = sizeof(Block),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = block_slots,
};

/* Takes over the buffer's memory. Only much that was not used is given back: a shrunken block keeps malloc from
 * learning the size that the next batch will ask for, and each batch would fault in fresh pages. */
PyObject *
decode_block(decode_buffer *buffer)
{
    static PyObject *type; /* made at the first call, under the GIL; it has no state */
    if (type == NULL && (type = PyType_FromSpec(&block_spec)) == NULL) {
        return NULL;
    }
    Block *block = (Block *)PyType_GenericAlloc((PyTypeObject *)type, 0);
    if (block == NULL) {
        return NULL;
    }
    if (buffer->used < buffer->capacity / 4 * 3 && buffer->used > 0) {
        void *data = realloc(buffer->data, (size_t)buffer->used);
        buffer->data = data ? data : buffer->data;
    }
    block->data = buffer->data;
    block->size = (Py_ssize_t)buffer->used;
    *buffer = (decode_buffer){0};
    return (PyObject *)block;
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
             "decode_strings(block, array, defaults, /)\n--\n\n"
             "Fills an object array with bytes; slices of nothing take the tuple of defaults in turn.");

static PyObject *
strings(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *block, *array, *defaults;
    Py_buffer from, to;
    if (!PyArg_ParseTuple(args, "OOO!", &block, &array, &PyTuple_Type, &defaults) ||
        open_pair(block, array, &from, &to, sizeof(PyObject *)) < 0) {
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
             "decode_spans(block, buffer, array, /)\n--\n\n"
             "Fills an int64 array with start and end of each string in the buffer; -1 for slices of nothing.");

static PyObject *
spans_of(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *block, *source, *array;
    Py_buffer from, to, whole;
    if (!PyArg_ParseTuple(args, "OOO", &block, &source, &array) ||
        PyObject_GetBuffer(source, &whole, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (open_pair(block, array, &from, &to, 2 * sizeof(int64_t)) < 0) {
        PyBuffer_Release(&whole);
        return NULL;
    }
    const decode_slice *slices = from.buf;
    int64_t *spans = to.buf;
    for (Py_ssize_t index = 0; index < from.len / (Py_ssize_t)sizeof *slices; index++) {
        int64_t start = slices[index].data == NULL ? -1 : slices[index].data - (const uint8_t *)whole.buf;
        spans[2 * index] = start;
        spans[2 * index + 1] = start < 0 ? -1 : start + slices[index].size;
    }
    PyBuffer_Release(&from);
    PyBuffer_Release(&to);
    PyBuffer_Release(&whole);
    return Py_NewRef(Py_None);
}

PyMethodDef decode_block_methods[] = {
    {"decode_strings", strings, METH_VARARGS, strings_doc},
    {"decode_spans", spans_of, METH_VARARGS, spans_doc},
    {NULL, NULL, 0, NULL},
};
