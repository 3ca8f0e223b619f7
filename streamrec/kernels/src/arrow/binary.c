/* Byte strings as an Arrow large_binary array, through the Arrow PyCapsule interface: copied once, one after the
 * other, as large_binary wants them.
 */
#include "arrow/arrow.h"
#include "native.h"

#include <stdlib.h>
#include <string.h>

static void
release_schema(struct ArrowSchema *schema)
{
    schema->release = NULL;
}

static void
release_array(struct ArrowArray *array)
{
    free((void *)array->buffers[1]);
    free((void *)array->buffers[2]);
    free(array->buffers);
    array->release = NULL;
}

static PyObject *
schema_capsule(void)
{
    struct ArrowSchema *schema = calloc(1, sizeof *schema);
    if (schema == NULL) {
        return PyErr_NoMemory();
    }
    *schema = (struct ArrowSchema){.format = "Z", .name = "", .release = release_schema};
    PyObject *capsule = PyCapsule_New(schema, "arrow_schema", arrow_schema_free);
    if (capsule == NULL) {
        free(schema);
    }
    return capsule;
}

/* Takes over offsets and data. */
static PyObject *
array_capsule(int64_t *offsets, uint8_t *data, int64_t count)
{
    struct ArrowArray *array = calloc(1, sizeof *array);
    const void **buffers = calloc(3, sizeof *buffers);
    PyObject *capsule = NULL;
    if (array == NULL || buffers == NULL) {
        PyErr_NoMemory();
    }
    else {
        *array = (struct ArrowArray){.length = count, .n_buffers = 3, .buffers = buffers, .release = release_array};
        buffers[1] = offsets;
        buffers[2] = data;
        capsule = PyCapsule_New(array, "arrow_array", arrow_array_free);
    }
    if (capsule == NULL) {
        free(array);
        free(buffers);
        free(offsets);
        free(data);
    }
    return capsule;
}

/* The offsets of the joined strings, or NULL with an exception for spans that leave the buffer. */
static int64_t *
joined_offsets(const int64_t *spans, int64_t count, int64_t size)
{
    int64_t *offsets = malloc((size_t)(count + 1) * sizeof *offsets);
    if (offsets == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    offsets[0] = 0;
    for (int64_t index = 0; index < count; index++) {
        int64_t start = spans[2 * index], end = spans[2 * index + 1];
        if (start < 0 || end < start || end > size) {
            PyErr_SetString(PyExc_ValueError, "a span leaves the buffer");
            free(offsets);
            return NULL;
        }
        offsets[index + 1] = offsets[index] + (end - start);
    }
    return offsets;
}

static PyObject *
joined_array(const uint8_t *source, int64_t size, const int64_t *spans, int64_t count)
{
    int64_t *offsets = joined_offsets(spans, count, size);
    if (offsets == NULL) {
        return NULL;
    }
    uint8_t *data = malloc((size_t)offsets[count] + 1);
    if (data == NULL) {
        free(offsets);
        return PyErr_NoMemory();
    }
    Py_BEGIN_ALLOW_THREADS
    for (int64_t index = 0; index < count; index++) {
        memcpy(data + offsets[index], source + spans[2 * index], (size_t)(offsets[index + 1] - offsets[index]));
    }
    Py_END_ALLOW_THREADS
    return array_capsule(offsets, data, count);
}

PyDoc_STRVAR(binary_doc,
             "arrow_binary(buffer, spans, /)\n--\n\n"
             "The strings as capsules of an ArrowSchema and an ArrowArray of large_binary.");

static PyObject *
binary(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *source, *spans;
    Py_buffer whole, places;
    if (!PyArg_ParseTuple(args, "OO", &source, &spans) || PyObject_GetBuffer(source, &whole, PyBUF_SIMPLE) < 0) {
        return NULL;
    }
    if (PyObject_GetBuffer(spans, &places, PyBUF_C_CONTIGUOUS) < 0) {
        PyBuffer_Release(&whole);
        return NULL;
    }
    PyObject *schema = schema_capsule();
    PyObject *array = schema ? joined_array(whole.buf, whole.len, places.buf, places.len / 16) : NULL;
    PyObject *pair = array ? PyTuple_Pack(2, schema, array) : NULL;
    Py_XDECREF(schema);
    Py_XDECREF(array);
    PyBuffer_Release(&whole);
    PyBuffer_Release(&places);
    return pair;
}

PyMethodDef arrow_binary_methods[] = {
    {"arrow_binary", binary, METH_VARARGS, binary_doc},
    {NULL, NULL, 0, NULL},
};
