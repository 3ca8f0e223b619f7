/* Queues: what kernels that take records in turn have in common. Each queue has windows, and each window some records. */
#ifndef STREAMREC_QUEUES_H
#define STREAMREC_QUEUES_H

#include "support/args.h"

/* Some records: spans in one buffer; or places alone, whose buffers are numbered from `first` on. */
struct window {
    Py_buffer buffer, places; /* buffer.obj is NULL where there are places alone */
    int64_t first;
};

/* Where one queue's turn goes on: the window, and the record in it. */
struct cursor {
    const struct window *window, *stop;
    Py_ssize_t record;
};

struct queues {
    struct window *windows;
    struct cursor *cursors; /* one for each queue */
    Py_ssize_t window_count, queue_count;
};

/* Whether the queue has one more record; its cursor is at that then. */
static inline int
has_record(struct cursor *cursor)
{
    while (cursor->window < cursor->stop && cursor->record == cursor->window->places.shape[0]) {
        cursor->window++;
        cursor->record = 0;
    }
    return cursor->window < cursor->stop;
}

/* A kernel of (queues, block): `format` is "OO&:" and its name, `take` takes one window, 0 with an exception and nothing
 * to release, and `work` has them all until it returns. */
PyObject *with_queues(PyObject *args, PyObject *kwargs, const char *format, int (*take)(PyObject *, struct window *),
                     PyObject *(*work)(const struct queues *, Py_ssize_t));

/* Raises ValueError for a queue that had no record left in its turn, and returns NULL. */
PyObject *raise_no_record(Py_ssize_t done, Py_ssize_t count, Py_ssize_t block);

#endif
