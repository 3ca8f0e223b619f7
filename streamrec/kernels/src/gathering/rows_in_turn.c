/* Rows of records in turn: the order of `interleave`, for records that stay where they lie.
 *
 * A pull of thousands of records from sixteen shards costs one call, and 32 bytes for each record. Where a record
 * lies is not checked here: `pick`, and whoever else takes rows, does that.
 */
#include "support/block.h"
#include "gathering/queues.h"

static inline void
write_row(uint8_t *target, const struct window *window, Py_ssize_t record)
{
    Py_ssize_t width = window->places.shape[1];
    const void *places = window->places.buf;
    uint64_t first = (uint64_t)window->first << BUFFER_BITS;
    int64_t row[4] = {int64_at(places, record * width), int64_at(places, record * width + 1), (int64_t)first, 0};
    if (width == 4) {
        row[2] = (int64_t)(first + (uint64_t)int64_at(places, record * width + 2));
        row[3] = int64_at(places, record * width + 3);
    }
    memcpy(target, row, ROW_BYTES);
}

/* Writes `count` rows. Returns how many there were before a queue had none in its turn. */
static Py_ssize_t
write_rows(const struct queues *queues, Py_ssize_t block, Py_ssize_t count, uint8_t *target)
{
    Py_ssize_t done = 0;
    for (Py_ssize_t turn = 0; done < count; turn = turn + 1 == queues->queue_count ? 0 : turn + 1) {
        struct cursor *cursor = &queues->cursors[turn];
        for (Py_ssize_t left = count - done < block ? count - done : block; left > 0; left--) {
            if (!has_record(cursor)) {
                return done;
            }
            write_row(target + ROW_BYTES * done++, cursor->window, cursor->record++);
        }
    }
    return done;
}

static PyObject *
rows_in_turn(const struct queues *queues, Py_ssize_t block)
{
    Py_ssize_t count = 0, done;
    for (Py_ssize_t i = 0; i < queues->window_count; i++) {
        count += queues->windows[i].places.shape[0]; /* each is 16 bytes of memory at least: no overflow */
    }
    uint8_t *target = NULL;
    PyObject *rows = count > PY_SSIZE_T_MAX / ROW_BYTES ? PyErr_NoMemory() : block_or_bytes(ROW_BYTES * count, &target);
    if (rows == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    done = write_rows(queues, block, count, target);
    Py_END_ALLOW_THREADS
    if (done < count) {
        Py_DECREF(rows);
        return raise_no_record(done, count, block);
    }
    return rows;
}

static int
take_part(PyObject *pair, struct window *window)
{
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        PyErr_Format(PyExc_TypeError, "a part is a tuple (places, first), not %R", (PyObject *)Py_TYPE(pair));
        return 0;
    }
    return take_number(PyTuple_GetItem(pair, 1), &window->first) &&
           take_places(PyTuple_GetItem(pair, 0), &window->places);
}

static PyObject *
py_rows_in_turn(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    return with_queues(args, kwargs, "OO&:rows_in_turn", take_part, rows_in_turn);
}

PyMethodDef turns_methods[] = {
    {"rows_in_turn", KEYWORD_FUNCTION(py_rows_in_turn), KEYWORDS,
     "rows_in_turn(queues, block)\n--\n\nWhere the records of many queues lie, in turn: rows as `pick` takes them."},
    {NULL, NULL, 0, NULL},
};
