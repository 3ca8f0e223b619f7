#include "lanes.h"

#include <stdlib.h>

static PyObject *
tuples_of(PyObject *sequence, Py_ssize_t *items)
{
    PyObject *outer = PySequence_Tuple(sequence);
    if (outer == NULL) {
        return NULL;
    }
    PyObject *tuples = PyTuple_New(PyTuple_Size(outer));
    *items = 0;
    for (Py_ssize_t i = 0; tuples != NULL && i < PyTuple_Size(outer); i++) {
        PyObject *inner = PySequence_Tuple(PyTuple_GetItem(outer, i));
        if (inner == NULL || PyTuple_SetItem(tuples, i, inner) < 0) {
            Py_CLEAR(tuples);
        } else {
            *items += PyTuple_Size(inner);
        }
    }
    Py_DECREF(outer);
    return tuples;
}

/* Takes all windows of all lanes; `tuples` holds a tuple for each lane. */
static int
take_windows(PyObject *tuples, struct lanes *lanes, int (*take)(PyObject *, struct window *))
{
    for (Py_ssize_t lane = 0; lane < lanes->lane_count; lane++) {
        PyObject *items = PyTuple_GetItem(tuples, lane);
        struct window *first = &lanes->windows[lanes->window_count];
        for (Py_ssize_t i = 0; i < PyTuple_Size(items); i++) {
            if (!take(PyTuple_GetItem(items, i), &lanes->windows[lanes->window_count])) {
                return 0;
            }
            lanes->window_count++;
        }
        lanes->cursors[lane] = (struct cursor){first, first + PyTuple_Size(items), 0};
    }
    return 1;
}

static int
take_turn(PyObject *object, void *block)
{
    if (!take_size(object, block)) {
        return 0;
    }
    if (*(Py_ssize_t *)block == 0) {
        PyErr_SetString(PyExc_ValueError, "block is 0: wanted 1 or more");
        return 0;
    }
    return 1;
}

PyObject *
with_lanes(PyObject *args, PyObject *kwargs, const char *format, int (*take)(PyObject *, struct window *),
           PyObject *(*work)(const struct lanes *, Py_ssize_t))
{
    static char *names[] = {"lanes", "block", NULL};
    PyObject *sequence;
    Py_ssize_t block, window_count;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &sequence, take_turn, &block)) {
        return NULL;
    }
    PyObject *tuples = tuples_of(sequence, &window_count);
    if (tuples == NULL) {
        return NULL;
    }
    struct lanes lanes = {.lane_count = PyTuple_Size(tuples)};
    lanes.windows = calloc((size_t)window_count + 1, sizeof *lanes.windows);
    lanes.cursors = calloc((size_t)lanes.lane_count + 1, sizeof *lanes.cursors);
    PyObject *result = NULL;
    if (lanes.windows == NULL || lanes.cursors == NULL) {
        PyErr_NoMemory();
    } else if (take_windows(tuples, &lanes, take)) {
        result = work(&lanes, block);
    }
    while (lanes.window_count > 0) {
        struct window *window = &lanes.windows[--lanes.window_count];
        PyBuffer_Release(&window->places);
        PyBuffer_Release(&window->buffer);
    }
    free(lanes.windows);
    free(lanes.cursors);
    Py_DECREF(tuples);
    return result;
}

PyObject *
raise_no_record(Py_ssize_t done, Py_ssize_t count, Py_ssize_t block)
{
    return PyErr_Format(PyExc_ValueError, "the lane whose turn it is has no record after %zd of %zd: each lane must "
                        "hold what its turns of %zd take", done, count, block);
}
