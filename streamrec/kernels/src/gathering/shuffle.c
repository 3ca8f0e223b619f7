/* The shuffle kernel: which elements leave a shuffle buffer while others enter it.
 *
 * `exchange` moves rows, never elements: a row is four int64, of which the first two are where the element starts and ends in
 * whatever holds it, and the others are the caller's. So what a shuffle costs above copying the payloads is one look
 * at a random row. The random numbers are those of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
 * Generators, 2014), whose nth number is a function of n: a run that is resumed goes on with the number that would have
 * come. `pick` copies the payloads that rows name.
 */
#include "support/args.h"
#include "support/copy.h"

#define AHEAD 8 /* rows are asked for so many steps before their turn */
#define PICK_AHEAD 16    /* payloads likewise: no two lie near each other, so it is further than in copy.h */
#define ROOM 64 /* what an element weighs beside its bytes: its row, and the copies of it that positions hold */

struct slots {
    char *rows;
    Py_ssize_t capacity, held;
    int64_t weight, limit;
    uint64_t key, step;
};

static inline uint64_t
random_at(uint64_t key, uint64_t step)
{
    uint64_t z = key + (step + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* What a row adds to the weight. It was checked when it came in; without the GIL another thread may write to it, so it
 * is used for sums only, which may wrap. */
static inline int64_t
weight_of(const char *row)
{
    return (int64_t)((uint64_t)int64_at(row, 1) - (uint64_t)int64_at(row, 0) + ROOM);
}

/* The row that goes `ahead` steps from now, if as many are held then as now. */
static inline char *
chosen_row(const struct slots *slots, uint64_t ahead)
{
    uint64_t random = random_at(slots->key, slots->step + ahead);
    return slots->rows + ROW_BYTES * (size_t)((unsigned __int128)random * (uint64_t)slots->held >> 64);
}

/* Takes a random row out; the last one moves to its place. `out` may be NULL. */
static inline void
give(struct slots *slots, char *out)
{
    char *row = chosen_row(slots, 0);
    __builtin_prefetch(chosen_row(slots, AHEAD), 1);
    slots->step++;
    slots->held--;
    slots->weight = (int64_t)((uint64_t)slots->weight - (uint64_t)weight_of(row));
    if (out != NULL) {
        memcpy(out, row, ROW_BYTES);
    }
    memmove(row, slots->rows + ROW_BYTES * slots->held, ROW_BYTES);
}

static inline int
is_full(const struct slots *slots, int64_t coming)
{
    return slots->held > 0 && (slots->held == slots->capacity || coming > slots->limit - slots->weight);
}

/* Lets `count` rows in, and as many out as must leave for them, or all where the input ended; `most` at the most.
 * Returns how many came in; *given is how many went out. */
static Py_ssize_t
exchange_rows(struct slots *slots, const char *incoming, Py_ssize_t count, char *out, Py_ssize_t most, int ended,
              Py_ssize_t *given)
{
    *given = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        const char *row = incoming + ROW_BYTES * i;
        int64_t coming = weight_of(row);
        while (is_full(slots, coming)) {
            if (*given == most) {
                return i;
            }
            give(slots, out != NULL ? out + ROW_BYTES * *given : NULL);
            ++*given;
        }
        memcpy(slots->rows + ROW_BYTES * slots->held++, row, ROW_BYTES);
        slots->weight += coming;
    }
    while (ended && slots->held > 0 && *given < most) {
        give(slots, out != NULL ? out + ROW_BYTES * *given : NULL);
        ++*given;
    }
    return count;
}

/* Takes int64 [n, 4], writable where `flags` say so. */
static int
take_rows(PyObject *object, Py_buffer *view, int flags)
{
    if (!PyObject_CheckBuffer(object)) {
        PyErr_Format(PyExc_TypeError, "a bytes-like object is required, not %R", (PyObject *)Py_TYPE(object));
        return 0;
    }
    if (PyObject_GetBuffer(object, view, flags | PyBUF_STRIDES | PyBUF_FORMAT) < 0) {
        return 0;
    }
    const char *format = view->format != NULL ? view->format : "B";
    int right_type = view->itemsize == 8 && (strcmp(format, "l") == 0 || strcmp(format, "q") == 0);
    if (!right_type || view->ndim != 2 || view->shape[1] != 4 || !PyBuffer_IsContiguous(view, 'C')) {
        PyErr_Format(right_type ? PyExc_ValueError : PyExc_TypeError,
                     "wanted rows as a C-contiguous int64 array of shape [n, 4], found %d dimension(s) of format '%s'",
                     view->ndim, format);
        PyBuffer_Release(view);
        return 0;
    }
    return 1;
}

/* The first incoming row whose weight is none, or -1; so that all sums stay far from overflow. */
static Py_ssize_t
first_bad_row(const Py_buffer *incoming)
{
    for (Py_ssize_t i = 0; i < incoming->shape[0]; i++) {
        const char *row = (const char *)incoming->buf + ROW_BYTES * i;
        int64_t start = int64_at(row, 0), end = int64_at(row, 1);
        if (start < 0 || end < start || end > INT64_MAX / 2) {
            return i;
        }
    }
    return -1;
}

static PyObject *
exchange(struct slots *slots, const Py_buffer *incoming, char *out, Py_ssize_t most, int ended)
{
    Py_ssize_t bad = first_bad_row(incoming), taken, given;
    if (bad >= 0) {
        const char *row = (const char *)incoming->buf + ROW_BYTES * bad;
        return PyErr_Format(PyExc_ValueError, "row %zd is [%lld, %lld): wanted 0 <= start <= end", bad,
                            (long long)int64_at(row, 0), (long long)int64_at(row, 1));
    }
    Py_BEGIN_ALLOW_THREADS
    taken = exchange_rows(slots, incoming->buf, incoming->shape[0], out, most, ended, &given);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("nnnL", taken, given, slots->held, (long long)slots->weight);
}

static PyObject *
py_exchange(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"slots",   "held", "weight", "limit", "incoming", "out",
                            "most",    "key",  "step",   "ended", NULL};
    (void)module;
    PyObject *rows, *coming, *going, *result = NULL;
    Py_ssize_t held, weight, limit, most, step;
    unsigned long long key;
    int ended;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO&O&O&OOO&KO&p:exchange", names, &rows, take_size, &held, take_size,
                                     &weight, take_size, &limit, &coming, &going, take_size, &most, &key, take_size,
                                     &step, &ended)) {
        return NULL;
    }
    Py_buffer slots = {0}, incoming = {0}, out = {0};
    if (!take_rows(rows, &slots, PyBUF_WRITABLE)) {
        return NULL;
    }
    if (!take_rows(coming, &incoming, 0)) {
        goto failed;
    }
    if (going != Py_None && !take_rows(going, &out, PyBUF_WRITABLE)) {
        goto failed;
    }
    if (held > slots.shape[0] || slots.shape[0] == 0) {
        PyErr_Format(PyExc_ValueError, "held is %zd of %zd slots: wanted at least one slot, and no more held than there are",
                     held, slots.shape[0]);
    } else if (going != Py_None && most > out.shape[0]) {
        PyErr_Format(PyExc_ValueError, "most is %zd, beyond the %zd rows of out", most, out.shape[0]);
    } else {
        struct slots job = {slots.buf, slots.shape[0], held, weight, limit, key, (uint64_t)step};
        result = exchange(&job, &incoming, going != Py_None ? out.buf : NULL, most, ended);
    }
    if (going != Py_None) {
        PyBuffer_Release(&out);
    }
failed:
    if (incoming.obj != NULL) {
        PyBuffer_Release(&incoming);
    }
    PyBuffer_Release(&slots);
    return result;
}

/* Payloads that rows name, in many buffers. */
struct pick {
    struct buffers buffers;
    const char *rows;
    Py_ssize_t n;
};

/* Row i's payload and length; NULL where the buffer or the span is out of range. */
static inline const uint8_t *
picked_payload(const struct pick *pick, Py_ssize_t i, size_t *length)
{
    const char *row = pick->rows + ROW_BYTES * i;
    int64_t buffer = int64_at(row, 2) >> BUFFER_BITS;
    size_t start;
    if (buffer < 0 || buffer >= pick->buffers.count ||
        !span_at(row, 0, pick->buffers.views[buffer].len, &start, length)) {
        return NULL;
    }
    return (const uint8_t *)pick->buffers.views[buffer].buf + start;
}

/* Bytes of all payloads; -1 with *bad set to the first row out of range, or to n where the sum overflows. */
static Py_ssize_t
picked_bytes(const struct pick *pick, Py_ssize_t *bad)
{
    Py_ssize_t total = 0;
    for (*bad = 0; *bad < pick->n; ++*bad) {
        size_t length;
        if (picked_payload(pick, *bad, &length) == NULL) {
            return -1;
        }
        if (__builtin_add_overflow(total, (Py_ssize_t)length, &total)) {
            *bad = pick->n;
            return -1;
        }
    }
    return total;
}

/* Copies the payloads and writes their spans. Returns how many it could copy: rows may change without the GIL. */
static Py_ssize_t
copy_picked(const struct pick *pick, struct copies copies)
{
    int64_t end = 0;
    for (Py_ssize_t i = 0; i < pick->n; i++) {
        size_t length;
        const uint8_t *coming = i + PICK_AHEAD < pick->n ? picked_payload(pick, i + PICK_AHEAD, &length) : NULL;
        if (coming != NULL) {
            prefetch_payload(coming, length);
            __builtin_prefetch(coming + length); /* a short payload seldom begins where a cache line does */
        }
        const uint8_t *payload = picked_payload(pick, i, &length);
        if (payload == NULL || length > copies.room - (size_t)end) {
            return i;
        }
        end = copy_payload(&copies, i, end, payload, length);
    }
    return pick->n;
}

static PyObject *
raise_bad_pick(const struct pick *pick, Py_ssize_t i)
{
    const char *row = pick->rows + ROW_BYTES * i;
    int64_t buffer = int64_at(row, 2) >> BUFFER_BITS;
    if (buffer < 0 || buffer >= pick->buffers.count) {
        return PyErr_Format(PyExc_ValueError, "row %zd lies in buffer %lld: wanted 0 <= buffer < %zd", i,
                            (long long)buffer, pick->buffers.count);
    }
    return PyErr_Format(PyExc_ValueError, "row %zd is [%lld, %lld): wanted 0 <= start <= end <= %zd, its buffer's size",
                        i, (long long)int64_at(row, 0), (long long)int64_at(row, 1), pick->buffers.views[buffer].len);
}

static PyObject *
pick_rows(const struct pick *pick)
{
    Py_ssize_t bad, size;
    Py_BEGIN_ALLOW_THREADS
    size = picked_bytes(pick, &bad);
    Py_END_ALLOW_THREADS
    if (size < 0) {
        return bad == pick->n ? PyErr_NoMemory() : raise_bad_pick(pick, bad);
    }
    struct copies copies;
    if (!copies_begin(&copies, size, pick->n)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    bad = copy_picked(pick, copies);
    Py_END_ALLOW_THREADS
    if (bad == pick->n) {
        return copies_give(&copies);
    }
    copies_drop(&copies);
    return raise_bad_pick(pick, bad);
}

static PyObject *
py_pick(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"buffers", "rows", NULL};
    (void)module;
    PyObject *buffers, *array;
    Py_buffer rows;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:pick", names, &buffers, &array) ||
        !take_rows(array, &rows, 0)) {
        return NULL;
    }
    PyObject *result = NULL;
    struct pick pick = {{NULL, 0}, rows.buf, rows.shape[0]};
    if (take_buffers(buffers, &pick.buffers)) {
        result = pick_rows(&pick);
        release_buffers(&pick.buffers);
    }
    PyBuffer_Release(&rows);
    return result;
}

PyMethodDef shuffle_methods[] = {
    {"exchange", KEYWORD_FUNCTION(py_exchange), KEYWORDS,
     "exchange(slots, held, weight, limit, incoming, out, most, key, step, ended)\n--\n\n"
     "Lets rows into a shuffle buffer and random ones out of it: (taken, given, held, weight)."},
    {"pick", KEYWORD_FUNCTION(py_pick), KEYWORDS,
     "pick(buffers, rows)\n--\n\nThe payloads of a shuffle buffer's rows back to back in one new buffer: (buffer, spans)."},
    {NULL, NULL, 0, NULL},
};
