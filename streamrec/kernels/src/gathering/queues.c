#include "gathering/queues.h"

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

/* Takes all windows of all queues; `tuples` holds a tuple for each queue. */
static int
take_windows(PyObject *tuples, struct queues *queues, int (*take)(PyObject *, struct window *))
{
    for (Py_ssize_t queue = 0; queue < queues->queue_count; queue++) {
        PyObject *items = PyTuple_GetItem(tuples, queue);
        struct window *first = &queues->windows[queues->window_count];
        for (Py_ssize_t i = 0; i < PyTuple_Size(items); i++) {
            if (!take(PyTuple_GetItem(items, i), &queues->windows[queues->window_count])) {
                return 0;
            }
            queues->window_count++;
        }
        queues->cursors[queue] = (struct cursor){first, first + PyTuple_Size(items), 0};
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
with_queues(PyObject *args, PyObject *kwargs, const char *format, int (*take)(PyObject *, struct window *),
           PyObject *(*work)(const struct queues *, Py_ssize_t))
{
    static char *names[] = {"queues", "block", NULL};
    PyObject *sequence;
    Py_ssize_t block, window_count;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, format, names, &sequence, take_turn, &block)) {
        return NULL;
    }
    PyObject *tuples = tuples_of(sequence, &window_count);
    if (tuples == NULL) {
        return NULL;
    }
    struct queues queues = {.queue_count = PyTuple_Size(tuples)};
    queues.windows = calloc((size_t)window_count + 1, sizeof *queues.windows);
    queues.cursors = calloc((size_t)queues.queue_count + 1, sizeof *queues.cursors);
    PyObject *result = NULL;
    if (queues.windows == NULL || queues.cursors == NULL) {
        PyErr_NoMemory();
    } else if (take_windows(tuples, &queues, take)) {
        result = work(&queues, block);
    }
    while (queues.window_count > 0) {
        struct window *window = &queues.windows[--queues.window_count];
        PyBuffer_Release(&window->places);
        PyBuffer_Release(&window->buffer);
    }
    free(queues.windows);
    free(queues.cursors);
    Py_DECREF(tuples);
    return result;
}

PyObject *
raise_no_record(Py_ssize_t done, Py_ssize_t count, Py_ssize_t block)
{
    return PyErr_Format(PyExc_ValueError, "the queue whose turn it is has no record after %zd of %zd: each queue must "
                        "hold what its turns of %zd take", done, count, block);
}
