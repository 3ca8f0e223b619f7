/* Byte strings as an Arrow large_binary array, through the Arrow PyCapsule interface: copied once, one after the
 * other, as large_binary wants them. Spans are checked twice, when they are measured and when they are copied: without
 * the GIL another thread may write to the array in between.
 */
#include "arrow/arrow.h"
#include "support/args.h"

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
joined_offsets(const void *spans, int64_t count, int64_t size)
{
    int64_t *offsets = malloc((size_t)(count + 1) * sizeof *offsets);
    if (offsets == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    offsets[0] = 0;
    for (int64_t index = 0; index < count; index++) {
        size_t start, length;
        if (!span_at(spans, index, size, &start, &length)) {
            raise_bad_span(spans, index, size);
            free(offsets);
            return NULL;
        }
        offsets[index + 1] = offsets[index] + (int64_t)length;
    }
    return offsets;
}

/* Copies the strings to where the offsets say. Returns the index of one that changed meanwhile, or -1. */
static int64_t
copy_strings(const uint8_t *source, int64_t size, const void *spans, const int64_t *offsets, int64_t count, uint8_t *data)
{
    for (int64_t index = 0; index < count; index++) {
        size_t start, length;
        if (!span_at(spans, index, size, &start, &length) || (int64_t)length != offsets[index + 1] - offsets[index]) {
            return index;
        }
        memcpy(data + offsets[index], source + start, length);
    }
    return -1;
}

static PyObject *
joined_array(const uint8_t *source, int64_t size, const void *spans, int64_t count)
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
    int64_t bad;
    Py_BEGIN_ALLOW_THREADS
    bad = copy_strings(source, size, spans, offsets, count, data);
    Py_END_ALLOW_THREADS
    if (bad >= 0) {
        free(offsets);
        free(data);
        return raise_bad_span(spans, bad, size);
    }
    return array_capsule(offsets, data, count);
}

PyDoc_STRVAR(binary_doc,
             "arrow_binary(buffer, spans, /)\n--\n\n"
             "The strings as capsules of an ArrowSchema and an ArrowArray of large_binary.");

static PyObject *
binary(PyObject *Py_UNUSED(module), PyObject *args)
{
    Py_buffer whole, places;
    if (!PyArg_ParseTuple(args, "O&O&", take_buffer, &whole, take_spans, &places)) {
        return NULL;
    }
    PyObject *schema = schema_capsule();
    PyObject *array = schema ? joined_array(whole.buf, whole.len, places.buf, places.shape[0]) : NULL;
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
