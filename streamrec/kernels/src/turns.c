/* Rows of records in turn: the order of `interleave`, for records that stay where they lie.
 *
 * A pull of thousands of records from sixteen shards costs one call, and 32 bytes for each record. Where a record
 * lies is not checked here: `pick`, and whoever else takes rows, does that.
 */
#include "args.h"
#include "block.h"

#include <stdlib.h>

/* Some records of one lane: spans in one buffer, or rows, whose buffers are numbered from `first` on. */
struct part {
    Py_buffer places;
    int64_t first;
};

/* Where a lane's turn goes on. */
struct lane {
    const struct part *part, *stop;
    Py_ssize_t record;
};

struct parts {
    struct part *parts;
    struct lane *lanes;
    Py_ssize_t part_count, lane_count;
};

static inline void
write_row(uint8_t *target, const struct part *part, Py_ssize_t record)
{
    Py_ssize_t width = part->places.shape[1];
    const void *places = part->places.buf;
    uint64_t first = (uint64_t)part->first << BUFFER_BITS;
    int64_t row[4] = {int64_at(places, record * width), int64_at(places, record * width + 1), (int64_t)first, 0};
    if (width == 4) {
        row[2] = (int64_t)(first + (uint64_t)int64_at(places, record * width + 2));
        row[3] = int64_at(places, record * width + 3);
    }
    memcpy(target, row, ROW_BYTES);
}

static inline int
has_record(struct lane *lane)
{
    while (lane->part < lane->stop && lane->record == lane->part->places.shape[0]) {
        lane->part++;
        lane->record = 0;
    }
    return lane->part < lane->stop;
}

/* Writes `count` rows. Returns how many there were before a lane had none in its turn. */
static Py_ssize_t
write_rows(struct lane *lanes, Py_ssize_t lane_count, Py_ssize_t block, Py_ssize_t count, uint8_t *target)
{
    Py_ssize_t done = 0;
    for (Py_ssize_t turn = 0; done < count; turn = turn + 1 == lane_count ? 0 : turn + 1) {
        struct lane *lane = &lanes[turn];
        for (Py_ssize_t left = count - done < block ? count - done : block; left > 0; left--) {
            if (!has_record(lane)) {
                return done;
            }
            write_row(target + ROW_BYTES * done++, lane->part, lane->record++);
        }
    }
    return done;
}

static PyObject *
rows_in_turn(struct parts *parts, Py_ssize_t block)
{
    Py_ssize_t count = 0, done;
    for (Py_ssize_t i = 0; i < parts->part_count; i++) {
        count += parts->parts[i].places.shape[0]; /* each is 16 bytes of memory at least: no overflow */
    }
    uint8_t *target = NULL;
    PyObject *rows = count > PY_SSIZE_T_MAX / ROW_BYTES ? PyErr_NoMemory() : block_or_bytes(ROW_BYTES * count, &target);
    if (rows == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    done = write_rows(parts->lanes, parts->lane_count, block, count, target);
    Py_END_ALLOW_THREADS
    if (done < count) {
        Py_DECREF(rows);
        return raise_no_record(done, count, block);
    }
    return rows;
}

static int
take_part(PyObject *pair, struct part *part)
{
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        PyErr_Format(PyExc_TypeError, "a part is a tuple (places, first), not %R", (PyObject *)Py_TYPE(pair));
        return 0;
    }
    return take_number(PyTuple_GetItem(pair, 1), &part->first) && take_places(PyTuple_GetItem(pair, 0), &part->places);
}

/* Takes all parts of all lanes; `tuples` holds a tuple for each lane. */
static int
take_parts(PyObject *tuples, struct parts *parts)
{
    for (Py_ssize_t lane = 0; lane < parts->lane_count; lane++) {
        PyObject *pairs = PyTuple_GetItem(tuples, lane);
        const struct part *first = &parts->parts[parts->part_count];
        for (Py_ssize_t i = 0; i < PyTuple_Size(pairs); i++) {
            if (!take_part(PyTuple_GetItem(pairs, i), &parts->parts[parts->part_count])) {
                return 0;
            }
            parts->part_count++;
        }
        parts->lanes[lane] = (struct lane){first, first + PyTuple_Size(pairs), 0};
    }
    return 1;
}

static PyObject *
rows_of_tuples(PyObject *tuples, Py_ssize_t part_count, Py_ssize_t block)
{
    struct parts parts = {.lane_count = PyTuple_Size(tuples)};
    parts.parts = calloc((size_t)part_count + 1, sizeof *parts.parts);
    parts.lanes = calloc((size_t)parts.lane_count + 1, sizeof *parts.lanes);
    PyObject *rows = NULL;
    if (parts.parts == NULL || parts.lanes == NULL) {
        PyErr_NoMemory();
    } else if (take_parts(tuples, &parts)) {
        rows = rows_in_turn(&parts, block);
    }
    while (parts.part_count > 0) {
        PyBuffer_Release(&parts.parts[--parts.part_count].places);
    }
    free(parts.parts);
    free(parts.lanes);
    return rows;
}

static PyObject *
py_rows_in_turn(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lanes", "block", NULL};
    (void)module;
    PyObject *lanes;
    Py_ssize_t block, part_count;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO&:rows_in_turn", names, &lanes, take_turn, &block)) {
        return NULL;
    }
    PyObject *tuples = tuples_of(lanes, &part_count);
    PyObject *rows = tuples != NULL ? rows_of_tuples(tuples, part_count, block) : NULL;
    Py_XDECREF(tuples);
    return rows;
}

PyMethodDef turns_methods[] = {
    {"rows_in_turn", KEYWORD_FUNCTION(py_rows_in_turn), KEYWORDS,
     "rows_in_turn(lanes, block)\n--\n\nWhere the records of many lanes lie, in turn: rows as `pick` takes them."},
    {NULL, NULL, 0, NULL},
};
