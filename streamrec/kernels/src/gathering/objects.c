/* Records as Python objects, for functions of the user's: one call for many of them, beside the work of the rest.
 *
 * The only kernel here that makes an object per record, so it holds the GIL: its callers ask for a megabyte at a time. */
#include "support/args.h"
#include "support/prefetch.h"

#define OBJECTS_AHEAD 8      /* records */
#define OBJECTS_PREFETCH 256 /* bytes of each; memcpy goes on by itself */

/* Place i's payload and length; NULL where the buffer or the span is out of range. */
static inline const uint8_t *
placed_payload(const struct buffers *buffers, const Py_buffer *places, Py_ssize_t i, size_t *length)
{
    Py_ssize_t width = places->shape[1];
    const char *place = (const char *)places->buf + 8 * width * i;
    int64_t buffer = width == 4 ? int64_at(place, 2) >> BUFFER_BITS : 0;
    size_t start;
    if (buffer < 0 || buffer >= buffers->count || !span_at(place, 0, buffers->views[buffer].len, &start, length)) {
        return NULL;
    }
    return (const uint8_t *)buffers->views[buffer].buf + start;
}

static PyObject *
objects(const struct buffers *buffers, const Py_buffer *places)
{
    Py_ssize_t count = places->shape[0];
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list != NULL && i < count; i++) {
        size_t length;
        const uint8_t *payload = i + OBJECTS_AHEAD < count
                                     ? placed_payload(buffers, places, i + OBJECTS_AHEAD, &length)
                                     : NULL;
        if (payload != NULL) {
            prefetch_bytes(payload, length, OBJECTS_PREFETCH);
        }
        payload = placed_payload(buffers, places, i, &length);
        PyObject *record = NULL;
        if (payload == NULL) {
            PyErr_Format(PyExc_ValueError, "record %zd does not lie in one of the %zd buffers", i, buffers->count);
        } else {
            record = PyBytes_FromStringAndSize((const char *)payload, (Py_ssize_t)length);
        }
        if (record == NULL || PyList_SetItem(list, i, record) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

static PyObject *
py_objects(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"buffers", "places", NULL};
    (void)module;
    PyObject *sequence, *result = NULL;
    Py_buffer places;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO&:objects", names, &sequence, take_places, &places)) {
        return NULL;
    }
    struct buffers buffers;
    if (take_buffers(sequence, &buffers)) {
        result = objects(&buffers, &places);
        release_buffers(&buffers);
    }
    PyBuffer_Release(&places);
    return result;
}

PyMethodDef objects_methods[] = {
    {"objects", KEYWORD_FUNCTION(py_objects), KEYWORDS,
     "objects(buffers, places)\n--\n\nThe payloads as a list of bytes objects."},
    {NULL, NULL, 0, NULL},
};
