/* Lanes: what kernels that take records in turn have in common. Each lane has windows, and each window some records. */
#ifndef STREAMREC_LANES_H
#define STREAMREC_LANES_H

#include "args.h"

/* Some records: spans in one buffer; or places alone, whose buffers are numbered from `first` on. */
struct window {
    Py_buffer buffer, places; /* buffer.obj is NULL where there are places alone */
    int64_t first;
};

/* Where one lane's turn goes on: the window, and the record in it. */
struct cursor {
    const struct window *window, *stop;
    Py_ssize_t record;
};

struct lanes {
    struct window *windows;
    struct cursor *cursors; /* one for each lane */
    Py_ssize_t window_count, lane_count;
};

/* Whether the lane has one more record; its cursor is at that then. */
static inline int
has_record(struct cursor *cursor)
{
    while (cursor->window < cursor->stop && cursor->record == cursor->window->places.shape[0]) {
        cursor->window++;
        cursor->record = 0;
    }
    return cursor->window < cursor->stop;
}

/* A kernel of (lanes, block): `format` is "OO&:" and its name, `take` takes one window, 0 with an exception and nothing
 * to release, and `work` has them all until it returns. */
PyObject *with_lanes(PyObject *args, PyObject *kwargs, const char *format, int (*take)(PyObject *, struct window *),
                     PyObject *(*work)(const struct lanes *, Py_ssize_t));

/* Raises ValueError for a lane that had no record left in its turn, and returns NULL. */
PyObject *raise_no_record(Py_ssize_t done, Py_ssize_t count, Py_ssize_t block);

#endif
