/* Arrays of any layout, and streams of them, through the Arrow PyCapsule interface, without a copy.
 *
 * Python describes an array as a tuple: (format, name, length, buffers, children). `format` is Arrow's format string,
 * `buffers` a tuple of buffer objects or None, `children` a tuple of such tuples. Nothing is copied: the consumer holds
 * the buffers until it releases the array, from whichever thread.
 */
#include "arrow/arrow.h"
#include "native.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What a description says. The pointers are borrowed from it. */
struct field {
    const char *format, *name;
    long long length;
    PyObject *buffers, *children;
};

static int
read_field(PyObject *description, struct field *field)
{
    if (!PyTuple_Check(description)) {
        PyErr_SetString(PyExc_TypeError, "an array is described by a tuple");
        return -1;
    }
    return PyArg_ParseTuple(description, "ssLO!O!", &field->format, &field->name, &field->length, &PyTuple_Type,
                            &field->buffers, &PyTuple_Type, &field->children)
               ? 0
               : -1;
}

static char *
copied(const char *text)
{
    char *copy = malloc(strlen(text) + 1);
    if (copy != NULL) {
        strcpy(copy, text);
    }
    return copy;
}

static void
release_schema(struct ArrowSchema *schema)
{
    for (int64_t index = 0; index < schema->n_children; index++) {
        struct ArrowSchema *child = schema->children[index];
        if (child != NULL && child->release != NULL) {
            child->release(child);
        }
        free(child);
    }
    free(schema->children);
    free((void *)schema->format);
    free((void *)schema->name);
    schema->release = NULL;
}

static int
build_schema(PyObject *description, struct ArrowSchema *schema)
{
    struct field field;
    memset(schema, 0, sizeof *schema);
    if (read_field(description, &field) < 0) {
        return -1;
    }
    Py_ssize_t count = PyTuple_Size(field.children);
    schema->release = release_schema;
    schema->format = copied(field.format);
    schema->name = copied(field.name);
    schema->children = calloc((size_t)count + 1, sizeof *schema->children);
    if (schema->format == NULL || schema->name == NULL || schema->children == NULL) {
        release_schema(schema);
        PyErr_NoMemory();
        return -1;
    }
    for (; schema->n_children < count; schema->n_children++) {
        struct ArrowSchema *child = malloc(sizeof *child);
        if (child == NULL) {
            PyErr_NoMemory();
        }
        if (child == NULL || build_schema(PyTuple_GetItem(field.children, schema->n_children), child) < 0) {
            free(child);
            release_schema(schema);
            return -1;
        }
        schema->children[schema->n_children] = child;
    }
    return 0;
}

/* Consumers release arrays in threads of theirs, and some when the interpreter is gone: then nothing is given back. */
static void
release_views(Py_buffer *views, int64_t count)
{
    if (views == NULL) {
        return;
    }
    if (Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        for (int64_t index = 0; index < count; index++) {
            PyBuffer_Release(&views[index]);
        }
        PyGILState_Release(state);
        free(views);
    }
}

static void
release_array(struct ArrowArray *array)
{
    for (int64_t index = 0; index < array->n_children; index++) {
        struct ArrowArray *child = array->children[index];
        if (child != NULL && child->release != NULL) {
            child->release(child);
        }
        free(child);
    }
    free(array->children);
    free(array->buffers);
    release_views(array->private_data, array->n_buffers);
    array->release = NULL;
}

static int
hold_buffers(PyObject *buffers, struct ArrowArray *array)
{
    Py_ssize_t count = PyTuple_Size(buffers);
    Py_buffer *views = calloc((size_t)count + 1, sizeof *views);
    array->private_data = views;
    array->buffers = calloc((size_t)count + 1, sizeof *array->buffers);
    if (views == NULL || array->buffers == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; array->n_buffers < count; array->n_buffers++) {
        PyObject *buffer = PyTuple_GetItem(buffers, array->n_buffers);
        if (buffer != Py_None) {
            if (PyObject_GetBuffer(buffer, &views[array->n_buffers], PyBUF_C_CONTIGUOUS) < 0) {
                return -1;
            }
            array->buffers[array->n_buffers] = views[array->n_buffers].buf;
        }
    }
    return 0;
}

static int
build_array(PyObject *description, struct ArrowArray *array)
{
    struct field field;
    memset(array, 0, sizeof *array);
    if (read_field(description, &field) < 0) {
        return -1;
    }
    Py_ssize_t count = PyTuple_Size(field.children);
    array->release = release_array;
    array->length = field.length;
    array->children = calloc((size_t)count + 1, sizeof *array->children);
    if (array->children == NULL) {
        PyErr_NoMemory();
    }
    if (array->children == NULL || hold_buffers(field.buffers, array) < 0) {
        release_array(array);
        return -1;
    }
    for (; array->n_children < count; array->n_children++) {
        struct ArrowArray *child = malloc(sizeof *child);
        if (child == NULL) {
            PyErr_NoMemory();
        }
        if (child == NULL || build_array(PyTuple_GetItem(field.children, array->n_children), child) < 0) {
            free(child);
            release_array(array);
            return -1;
        }
        array->children[array->n_children] = child;
    }
    return 0;
}

void
arrow_schema_free(PyObject *capsule)
{
    struct ArrowSchema *schema = PyCapsule_GetPointer(capsule, "arrow_schema");
    if (schema->release != NULL) {
        schema->release(schema);
    }
    free(schema);
}

void
arrow_array_free(PyObject *capsule)
{
    struct ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    if (array->release != NULL) {
        array->release(array);
    }
    free(array);
}

static PyObject *
schema_of(PyObject *description)
{
    struct ArrowSchema *schema = malloc(sizeof *schema);
    if (schema == NULL) {
        return PyErr_NoMemory();
    }
    if (build_schema(description, schema) < 0) {
        free(schema);
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(schema, "arrow_schema", arrow_schema_free);
    if (capsule == NULL) {
        schema->release(schema);
        free(schema);
    }
    return capsule;
}

static PyObject *
array_of(PyObject *description)
{
    struct ArrowArray *array = malloc(sizeof *array);
    if (array == NULL) {
        return PyErr_NoMemory();
    }
    if (build_array(description, array) < 0) {
        free(array);
        return NULL;
    }
    PyObject *capsule = PyCapsule_New(array, "arrow_array", arrow_array_free);
    if (capsule == NULL) {
        array->release(array);
        free(array);
    }
    return capsule;
}

PyDoc_STRVAR(array_doc,
             "arrow_array(description, /)\n--\n\n"
             "An array that is described, as capsules of an ArrowSchema and an ArrowArray.");

static PyObject *
arrow_array(PyObject *Py_UNUSED(module), PyObject *description)
{
    PyObject *schema = schema_of(description);
    PyObject *array = schema ? array_of(description) : NULL;
    PyObject *pair = array ? PyTuple_Pack(2, schema, array) : NULL;
    Py_XDECREF(schema);
    Py_XDECREF(array);
    return pair;
}

/* A stream: the description of an empty array gives its schema; `next` gives one array after the other, then None. */
struct source {
    PyObject *description, *next;
    char *error;
};

/* Keeps the words of the exception that is set, and its notes: they say where in the data it came up. */
static void
keep_error(struct source *source)
{
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    PyObject *name = PyType_GetName((PyTypeObject *)type);
    PyObject *notes = PyObject_GetAttrString(value, "__notes__");
    PyObject *newline = notes ? PyUnicode_FromString("\n") : NULL;
    PyObject *places = newline ? PyUnicode_Join(newline, notes) : NULL;
    PyErr_Clear();
    PyObject *words = NULL;
    if (name != NULL) {
        words = places ? PyUnicode_FromFormat("%U: %S\n%U", name, value, places)
                       : PyUnicode_FromFormat("%U: %S", name, value);
    }
    PyObject *bytes = words ? PyUnicode_AsUTF8String(words) : NULL;
    free(source->error);
    source->error = copied(bytes ? PyBytes_AsString(bytes) : "an error without words");
    PyErr_Clear();
    Py_XDECREF(bytes);
    Py_XDECREF(places);
    Py_XDECREF(newline);
    Py_XDECREF(notes);
    Py_XDECREF(words);
    Py_XDECREF(name);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
}

static int
stream_schema(struct ArrowArrayStream *stream, struct ArrowSchema *schema)
{
    struct source *source = stream->private_data;
    PyGILState_STATE state = PyGILState_Ensure();
    int failed = build_schema(source->description, schema) < 0;
    if (failed) {
        keep_error(source);
    }
    PyGILState_Release(state);
    return failed ? EIO : 0;
}

static int
stream_next(struct ArrowArrayStream *stream, struct ArrowArray *array)
{
    struct source *source = stream->private_data;
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *description = PyObject_CallObject(source->next, NULL);
    int failed = description == NULL;
    if (!failed && description == Py_None) {
        memset(array, 0, sizeof *array);
    }
    else if (!failed) {
        failed = build_array(description, array) < 0;
    }
    if (failed) {
        keep_error(source);
    }
    Py_XDECREF(description);
    PyGILState_Release(state);
    return failed ? EIO : 0;
}

static const char *
stream_error(struct ArrowArrayStream *stream)
{
    return ((struct source *)stream->private_data)->error;
}

static void
release_stream(struct ArrowArrayStream *stream)
{
    struct source *source = stream->private_data;
    if (Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF(source->description);
        Py_DECREF(source->next);
        PyGILState_Release(state);
        free(source->error);
        free(source);
    }
    stream->release = NULL;
}

static void
stream_capsule_free(PyObject *capsule)
{
    struct ArrowArrayStream *stream = PyCapsule_GetPointer(capsule, "arrow_array_stream");
    if (stream->release != NULL) {
        stream->release(stream);
    }
    free(stream);
}

PyDoc_STRVAR(stream_doc,
             "arrow_stream(description, next, /)\n--\n\n"
             "Arrays as a capsule of an ArrowArrayStream: next() describes one after the other, then gives None.");

static PyObject *
arrow_stream(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *description, *next;
    if (!PyArg_ParseTuple(args, "OO", &description, &next)) {
        return NULL;
    }
    struct ArrowArrayStream *stream = malloc(sizeof *stream);
    struct source *source = calloc(1, sizeof *source);
    PyObject *capsule = NULL;
    if (stream == NULL || source == NULL) {
        PyErr_NoMemory();
    }
    else {
        *source = (struct source){.description = description, .next = next};
        *stream = (struct ArrowArrayStream){stream_schema, stream_next, stream_error, release_stream, source};
        capsule = PyCapsule_New(stream, "arrow_array_stream", stream_capsule_free);
    }
    if (capsule == NULL) {
        free(stream);
        free(source);
        return NULL;
    }
    Py_INCREF(description);
    Py_INCREF(next);
    return capsule;
}

PyMethodDef arrow_export_methods[] = {
    {"arrow_array", arrow_array, METH_O, array_doc},
    {"arrow_stream", arrow_stream, METH_VARARGS, stream_doc},
    {NULL, NULL, 0, NULL},
};
