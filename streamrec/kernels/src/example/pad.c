/* The padding kernel: rows of different lengths, which lie one after the other, as rows of one length.
 *
 * The result is as large as the longest row makes it, and lives as long as a batch: it lies in a Block, whose memory is
 * used again. Splits are checked as each row is copied: without the GIL another thread may write to them meanwhile.
 */
#include "support/args.h"
#include "support/block.h"
#include "example/pad_rows.h"

struct rows {
    const uint8_t *values;
    Py_ssize_t count;   /* elements there are */
    const void *splits; /* int64 [rows + 1] */
    Py_ssize_t rows;
    row_form form;
};

/* Returns the first row that does not fit, or -1. */
static Py_ssize_t
pad(const struct rows *job, uint8_t *target)
{
    for (Py_ssize_t row = 0; row < job->rows; row++) {
        int64_t start = int64_at(job->splits, row), end = int64_at(job->splits, row + 1);
        if (start < 0 || end < start || end > job->count || end - start > job->form.longest) {
            return row;
        }
        target = write_row(&job->form, target, job->values + (size_t)start * job->form.width, end - start);
    }
    end_rows();
    return -1;
}

static PyObject *
padded(struct rows *job)
{
    Py_ssize_t bad;
    PyObject *block = block_for_rows(job->rows, job->form.longest, (Py_ssize_t)job->form.width);
    if (block == NULL) {
        return NULL;
    }
    job->form.stream = streams(job->form.width, job->rows * job->form.longest * (Py_ssize_t)job->form.width);
    Py_BEGIN_ALLOW_THREADS
    bad = pad(job, block_memory(block));
    Py_END_ALLOW_THREADS
    if (bad < 0) {
        return block;
    }
    Py_DECREF(block);
    return PyErr_Format(PyExc_ValueError, "row %zd is [%lld, %lld): wanted up to %zd of %zd elements", bad,
                        (long long)int64_at(job->splits, bad), (long long)int64_at(job->splits, bad + 1),
                        (Py_ssize_t)job->form.longest, job->count);
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
        struct rows job = {values.buf, values.len / fill.len, splits.buf, splits.shape[0] - 1,
                           {longest, fill.buf, (size_t)fill.len, 0}};
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
