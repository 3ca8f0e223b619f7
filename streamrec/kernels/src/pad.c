/* The padding kernel: rows of different lengths, which lie one after the other, as rows of one length.
 *
 * The result is as large as the longest row makes it, and lives as long as a batch: it lies in a Block, whose memory is
 * used again. Splits are checked as each row is copied: without the GIL another thread may write to them meanwhile.
 *
 * A large result has left the cache by the time that anybody looks at it. It is written past the cache: a usual store
 * first reads the line that it changes from memory, and pushes out what will be needed sooner.
 */
#include "args.h"
#include "block.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <emmintrin.h>
#define STREAMS 1
#else
#define STREAMS 0
#endif

#define LARGE_RESULT ((Py_ssize_t)1 << 20)

struct rows {
    const uint8_t *values;
    Py_ssize_t count;   /* elements there are */
    const void *splits; /* int64 [rows + 1] */
    Py_ssize_t rows;
    Py_ssize_t longest; /* elements of a row of the result */
    const uint8_t *fill;
    size_t width;       /* bytes of an element */
};

/* Fills up the end of a row, from `at` on; elements of 4 and 8 bytes are what there is, spans have 16. */
static inline void
fill_up(uint8_t *at, Py_ssize_t elements, const uint8_t *fill, size_t width)
{
    if (width == 8) {
        uint64_t element;
        memcpy(&element, fill, 8);
        for (Py_ssize_t i = 0; i < elements; i++) {
            memcpy(at + 8 * i, &element, 8);
        }
    }
    else if (width == 4) {
        uint32_t element;
        memcpy(&element, fill, 4);
        for (Py_ssize_t i = 0; i < elements; i++) {
            memcpy(at + 4 * i, &element, 4);
        }
    }
    else {
        for (Py_ssize_t i = 0; i < elements; i++) {
            memcpy(at + (size_t)i * width, fill, width);
        }
    }
}

#if STREAMS
/* Elements of eight bytes, past the cache; `target` is aligned to eight bytes. */
static inline void
stream_words(uint8_t *target, const uint8_t *source, size_t words)
{
    long long word;
    size_t done = 0;
    for (; done < words && (uintptr_t)(target + 8 * done) % 16; done++) {
        memcpy(&word, source + 8 * done, 8);
        _mm_stream_si64((long long *)(void *)(target + 8 * done), word);
    }
    for (; done + 2 <= words; done += 2) {
        _mm_stream_si128((__m128i *)(void *)(target + 8 * done),
                         _mm_loadu_si128((const __m128i *)(const void *)(source + 8 * done)));
    }
    if (done < words) {
        memcpy(&word, source + 8 * done, 8);
        _mm_stream_si64((long long *)(void *)(target + 8 * done), word);
    }
}

/* The same of one element, `words` times. */
static inline void
stream_fill(uint8_t *target, size_t words, const uint8_t *fill)
{
    long long word;
    memcpy(&word, fill, 8);
    const __m128i pair = _mm_set1_epi64x(word);
    size_t done = 0;
    for (; done < words && (uintptr_t)(target + 8 * done) % 16; done++) {
        _mm_stream_si64((long long *)(void *)(target + 8 * done), word);
    }
    for (; done + 2 <= words; done += 2) {
        _mm_stream_si128((__m128i *)(void *)(target + 8 * done), pair);
    }
    if (done < words) {
        _mm_stream_si64((long long *)(void *)(target + 8 * done), word);
    }
}
#endif

/* One row: its elements, and what fills it up. */
static inline void
write_row(const struct rows *job, uint8_t *target, const uint8_t *values, size_t count, int stream)
{
    size_t left = (size_t)job->longest - count;
#if STREAMS
    if (stream) {
        stream_words(target, values, count);
        stream_fill(target + 8 * count, left, job->fill);
        return;
    }
#endif
    (void)stream;
    memcpy(target, values, count * job->width);
    fill_up(target + count * job->width, (Py_ssize_t)left, job->fill, job->width);
}

/* Returns the first row that does not fit, or -1. */
static Py_ssize_t
pad(const struct rows *job, uint8_t *target, int stream)
{
    for (Py_ssize_t row = 0; row < job->rows; row++) {
        int64_t start = int64_at(job->splits, row), end = int64_at(job->splits, row + 1);
        if (start < 0 || end < start || end > job->count || end - start > job->longest) {
            return row;
        }
        write_row(job, target, job->values + (size_t)start * job->width, (size_t)(end - start), stream);
        target += (size_t)job->longest * job->width;
    }
#if STREAMS
    _mm_sfence(); /* another thread will read it */
#endif
    return -1;
}

static PyObject *
padded(const struct rows *job)
{
    Py_ssize_t size, bad;
    if (__builtin_mul_overflow(job->rows, job->longest, &size) ||
        __builtin_mul_overflow(size, (Py_ssize_t)job->width, &size)) {
        return PyErr_NoMemory();
    }
    PyObject *block = block_new(size);
    if (block == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    bad = pad(job, block_memory(block), STREAMS && job->width == 8 && size >= LARGE_RESULT);
    Py_END_ALLOW_THREADS
    if (bad < 0) {
        return block;
    }
    Py_DECREF(block);
    return PyErr_Format(PyExc_ValueError, "row %zd is [%lld, %lld): wanted up to %zd of %zd elements", bad,
                        (long long)int64_at(job->splits, bad), (long long)int64_at(job->splits, bad + 1),
                        job->longest, job->count);
}

static PyObject *
py_pad_rows(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"values", "splits", "longest", "fill", NULL};
    (void)module;
    Py_buffer values, splits, fill;
    Py_ssize_t longest;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&O&O&:pad_rows", names, take_buffer, &values, take_row_splits,
                                     &splits, take_size, &longest, take_buffer, &fill)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (splits.shape[0] < 1 || fill.len < 1 || values.len % fill.len) {
        PyErr_Format(PyExc_ValueError,
                     "found %zd row splits, and %zd bytes of elements of %zd: wanted at least one split, and whole elements",
                     splits.shape[0], values.len, fill.len);
    }
    else {
        struct rows job = {values.buf, values.len / fill.len, splits.buf, splits.shape[0] - 1, longest, fill.buf,
                           (size_t)fill.len};
        result = padded(&job);
    }
    PyBuffer_Release(&values);
    PyBuffer_Release(&splits);
    PyBuffer_Release(&fill);
    return result;
}

PyMethodDef pad_methods[] = {
    {"pad_rows", KEYWORD_FUNCTION(py_pad_rows), KEYWORDS,
     "pad_rows(values, splits, longest, fill)\n--\n\nRows of different lengths, filled up to one: a new buffer."},
    {NULL, NULL, 0, NULL},
};
