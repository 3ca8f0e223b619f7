/* The gather kernel: payloads picked from many buffers, copied back to back into one.
 *
 * Slices and shuffles stand on it, so a short record must cost little more than its copy. Spans are checked twice,
 * when they are measured and when they are copied: without the GIL another thread may write to the array in between.
 */
#include "support/args.h"
#include "support/copy.h"

struct job {
    struct buffers buffers;
    const void *sources; /* int64 [n], or NULL: there is one buffer */
    const void *spans;   /* int64 [n, 2] */
    Py_ssize_t n;
};

/* Record i of the job: its payload and length; NULL where source or span is out of range. */
static inline const uint8_t *
payload_of(const struct job *job, Py_ssize_t i, size_t *length)
{
    int64_t source = job->sources != NULL ? int64_at(job->sources, i) : 0;
    size_t start;
    if (source < 0 || source >= job->buffers.count ||
        !span_at(job->spans, i, job->buffers.views[source].len, &start, length)) {
        return NULL;
    }
    return (const uint8_t *)job->buffers.views[source].buf + start;
}

/* Bytes of all payloads; -1 with *bad set to the first record out of range, or to n where the sum overflows. */
static Py_ssize_t
gathered_bytes(const struct job *job, Py_ssize_t *bad)
{
    Py_ssize_t total = 0;
    for (Py_ssize_t i = 0; i < job->n; i++) {
        size_t length;
        *bad = i;
        if (payload_of(job, i, &length) == NULL) {
            return -1;
        }
        *bad = job->n;
        if (__builtin_add_overflow(total, (Py_ssize_t)length, &total)) {
            return -1;
        }
    }
    return total;
}

/* Asks for record i while earlier ones are copied. */
static inline void
prefetch_record(const struct job *job, Py_ssize_t i)
{
    size_t length;
    const uint8_t *payload = i < job->n ? payload_of(job, i, &length) : NULL;
    if (payload != NULL) {
        prefetch_payload(payload, length);
    }
}

/* Copies the payloads and writes their new spans. Returns the index of a record that does not fit any more, or -1. */
static Py_ssize_t
copy_payloads(const struct job *job, struct copies copies)
{
    int64_t end = 0;
    for (Py_ssize_t i = 0; i < job->n; i++) {
        size_t length;
        prefetch_record(job, i + PREFETCH_AHEAD);
        const uint8_t *payload = payload_of(job, i, &length);
        if (payload == NULL || length > copies.room - (size_t)end) {
            return i;
        }
        end = copy_payload(&copies, i, end, payload, length);
    }
    return -1;
}

static PyObject *
raise_bad_record(const struct job *job, Py_ssize_t i)
{
    int64_t source = job->sources != NULL ? int64_at(job->sources, i) : 0;
    if (source < 0 || source >= job->buffers.count) {
        return PyErr_Format(PyExc_ValueError, "source %zd is %lld: wanted 0 <= source < %zd, the number of buffers",
                            i, (long long)source, job->buffers.count);
    }
    return raise_bad_span(job->spans, i, job->buffers.views[source].len);
}

static PyObject *
gather(const struct job *job)
{
    Py_ssize_t bad, size;
    Py_BEGIN_ALLOW_THREADS
    size = gathered_bytes(job, &bad);
    Py_END_ALLOW_THREADS
    if (size < 0) {
        return bad == job->n ? PyErr_NoMemory() : raise_bad_record(job, bad);
    }
    struct copies copies;
    if (!copies_begin(&copies, size, job->n)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    bad = copy_payloads(job, copies);
    Py_END_ALLOW_THREADS
    if (bad < 0) {
        return copies_give(&copies);
    }
    copies_drop(&copies);
    return raise_bad_record(job, bad);
}

/* Checks what the arguments must be to each other. */
static int
fits_together(Py_ssize_t buffer_count, const Py_buffer *sources, const Py_buffer *spans)
{
    if (sources->obj == NULL && buffer_count != 1) {
        PyErr_Format(PyExc_ValueError, "sources is None, which is for one buffer; found %zd buffers", buffer_count);
        return 0;
    }
    if (sources->obj != NULL && sources->shape[0] != spans->shape[0]) {
        PyErr_Format(PyExc_ValueError, "found %zd sources for %zd spans", sources->shape[0], spans->shape[0]);
        return 0;
    }
    return 1;
}

static PyObject *
py_gather(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"buffers", "sources", "spans", NULL};
    (void)module;
    PyObject *buffers;
    Py_buffer sources, spans;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO&O&:gather", names, &buffers, take_int64s_or_none, &sources,
                                     take_spans, &spans)) {
        return NULL;
    }
    PyObject *result = NULL;
    struct job job = {{NULL, 0}, sources.obj != NULL ? sources.buf : NULL, spans.buf, spans.shape[0]};
    if (take_buffers(buffers, &job.buffers)) {
        result = fits_together(job.buffers.count, &sources, &spans) ? gather(&job) : NULL;
        release_buffers(&job.buffers);
    }
    PyBuffer_Release(&spans);
    PyBuffer_Release(&sources);
    return result;
}

PyMethodDef gather_methods[] = {
    {"gather", KEYWORD_FUNCTION(py_gather), KEYWORDS,
     "gather(buffers, sources, spans)\n--\n\nThe payloads back to back in one new buffer: (buffer, spans)."},
    {NULL, NULL, 0, NULL},
};
