/* The interleave kernel: payloads that lie in many queues, copied in the order of the queues' turns into one buffer.
 *
 * What an interleave of shards costs above reading them is this copy, so nothing else is done per record: no
 * index array is made before, and the spans are written as the payloads are. They are checked twice, when they are
 * measured and when they are copied: without the GIL another thread may write to the arrays in between.
 */
#include "support/copy.h"
#include "gathering/queues.h"

#include <stdlib.h>

/* The order of the records: `block` of each queue in turn. */
struct turn {
    Py_ssize_t block, queue, used;
};

static inline const uint8_t *
payload_at(const struct window *window, Py_ssize_t record, size_t *length)
{
    size_t start;
    return span_at(window->places.buf, record, window->buffer.len, &start, length)
               ? (const uint8_t *)window->buffer.buf + start
               : NULL;
}

/* The next record in the order, or NULL where its queue has no more, or its span is out of range now. */
static inline const uint8_t *
next_payload(struct cursor *cursors, Py_ssize_t queue_count, struct turn *turn, size_t *length)
{
    struct cursor *cursor = &cursors[turn->queue];
    if (!has_record(cursor)) {
        return NULL;
    }
    if (++turn->used == turn->block) {
        turn->used = 0;
        turn->queue = turn->queue + 1 == queue_count ? 0 : turn->queue + 1;
    }
    return payload_at(cursor->window, cursor->record++, length);
}

/* Copies `count` payloads and writes their new spans; what comes is prefetched at cursors of its own, `ahead`. Returns how
 * many it could copy. */
static Py_ssize_t
copy_in_turn(const struct queues *queues, struct cursor *ahead, Py_ssize_t block, Py_ssize_t count, struct copies copies)
{
    struct turn turn = {block, 0, 0}, far = turn;
    int64_t end = 0;
    size_t length;
    for (Py_ssize_t i = -PREFETCH_AHEAD; i < count; i++) {
        if (i + PREFETCH_AHEAD < count) {
            const uint8_t *coming = next_payload(ahead, queues->queue_count, &far, &length);
            if (coming != NULL) {
                prefetch_payload(coming, length);
            }
        }
        if (i < 0) {
            continue;
        }
        const uint8_t *payload = next_payload(queues->cursors, queues->queue_count, &turn, &length);
        if (payload == NULL || length > copies.room - (size_t)end) {
            return i;
        }
        end = copy_payload(&copies, i, end, payload, length);
    }
    return count;
}

/* Bytes of all payloads, with their number in *count; -1 with *bad set to a window whose record *count is out of
 * range, or to window_count where the sum overflows. */
static Py_ssize_t
measure(const struct queues *queues, Py_ssize_t *count, Py_ssize_t *bad)
{
    Py_ssize_t total = 0, records = 0;
    for (*bad = 0; *bad < queues->window_count; ++*bad) {
        const struct window *window = &queues->windows[*bad];
        for (Py_ssize_t i = 0; i < window->places.shape[0]; i++, records++) {
            size_t length;
            *count = i;
            if (payload_at(window, i, &length) == NULL) {
                return -1;
            }
            if (__builtin_add_overflow(total, (Py_ssize_t)length, &total)) {
                *bad = queues->window_count;
                return -1;
            }
        }
    }
    *count = records;
    return total;
}

static PyObject *
interleave(const struct queues *queues, Py_ssize_t block)
{
    Py_ssize_t size, count = 0, bad, copied;
    Py_BEGIN_ALLOW_THREADS
    size = measure(queues, &count, &bad);
    Py_END_ALLOW_THREADS
    if (size < 0) {
        return bad == queues->window_count
                   ? PyErr_NoMemory()
                   : raise_bad_span(queues->windows[bad].places.buf, count, queues->windows[bad].buffer.len);
    }
    struct cursor *ahead = malloc(((size_t)queues->queue_count + 1) * sizeof *ahead);
    if (ahead == NULL) {
        return PyErr_NoMemory();
    }
    memcpy(ahead, queues->cursors, (size_t)queues->queue_count * sizeof *ahead);
    struct copies copies;
    if (!copies_begin(&copies, size, count)) {
        free(ahead);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    copied = copy_in_turn(queues, ahead, block, count, copies);
    Py_END_ALLOW_THREADS
    free(ahead);
    if (copied == count) {
        return copies_give(&copies);
    }
    copies_drop(&copies);
    return raise_no_record(copied, count, block);
}

/* Takes one window: a pair of buffer and spans. */
static int
take_window(PyObject *pair, struct window *window)
{
    if (!PyTuple_Check(pair) || PyTuple_Size(pair) != 2) {
        PyErr_Format(PyExc_TypeError, "a window is a tuple (buffer, spans), not %R", (PyObject *)Py_TYPE(pair));
        return 0;
    }
    if (!take_buffer(PyTuple_GetItem(pair, 0), &window->buffer)) {
        return 0;
    }
    if (!take_spans(PyTuple_GetItem(pair, 1), &window->places)) {
        PyBuffer_Release(&window->buffer);
        return 0;
    }
    return 1;
}

static PyObject *
py_interleave(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    return with_queues(args, kwargs, "OO&:interleave", take_window, interleave);
}

PyMethodDef interleave_methods[] = {
    {"interleave", KEYWORD_FUNCTION(py_interleave), KEYWORDS,
     "interleave(queues, block)\n--\n\nThe payloads of many queues in turn, in one new buffer: (buffer, spans)."},
    {NULL, NULL, 0, NULL},
};
