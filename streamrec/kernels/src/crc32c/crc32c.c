/* The crc32c family: CRC32C of a buffer, plain and masked, and the implementations by name for tests. */
#include "support/args.h"
#include "crc32c/crc32c.h"

static PyObject *
py_crc32c(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"data", "crc", NULL};
    (void)module;
    Py_buffer data;
    uint32_t crc = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&|O&:crc32c", names, take_buffer, &data, take_uint32, &crc)) {
        return NULL;
    }
    /* Where two threads take turns, getting the GIL back takes longer than the CRC of a few bytes. */
    PyThreadState *released = data.len >= GIL_BYTES ? PyEval_SaveThread() : NULL;
    crc = ~crc32c_best.extend(~crc, data.buf, (size_t)data.len);
    if (released != NULL) {
        PyEval_RestoreThread(released);
    }
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *
py_masked_crc32c(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"data", NULL};
    (void)module;
    Py_buffer data;
    uint32_t crc;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&:masked_crc32c", names, take_buffer, &data)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    crc = crc32c_masked(data.buf, (size_t)data.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *
py_crc32c_implementations(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *found = PyList_New(0);
    for (const struct crc32c_implementation *const *each = crc32c_implementations; *each != NULL; each++) {
        PyObject *name = found != NULL && (*each)->usable() ? PyUnicode_FromString((*each)->name) : NULL;
        if (name != NULL && PyList_Append(found, name) < 0) {
            Py_CLEAR(found);
        }
        Py_XDECREF(name);
    }
    PyObject *names = found != NULL && !PyErr_Occurred() ? PyList_AsTuple(found) : NULL;
    Py_XDECREF(found);
    return names;
}

static const struct crc32c_implementation *
implementation_named(const char *name)
{
    for (const struct crc32c_implementation *const *each = crc32c_implementations; *each != NULL; each++) {
        if (strcmp((*each)->name, name) == 0 && (*each)->usable()) {
            return *each;
        }
    }
    PyErr_Format(PyExc_ValueError, "no CRC32C implementation %s on this machine; see crc32c_implementations()", name);
    return NULL;
}

static PyObject *
py_crc32c_with(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"name", "data", "crc", NULL};
    (void)module;
    const char *name;
    Py_buffer data;
    uint32_t crc = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sO&|O&:crc32c_with", names, &name, take_buffer, &data,
                                     take_uint32, &crc)) {
        return NULL;
    }
    const struct crc32c_implementation *chosen = implementation_named(name);
    if (chosen != NULL) {
        Py_BEGIN_ALLOW_THREADS
        crc = ~chosen->extend(~crc, data.buf, (size_t)data.len);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return chosen != NULL ? PyLong_FromUnsignedLong(crc) : NULL;
}

PyMethodDef crc32c_methods[] = {
    {"crc32c", KEYWORD_FUNCTION(py_crc32c), KEYWORDS,
     "crc32c(data, crc=0)\n--\n\nCRC32C of data, continued from crc."},
    {"masked_crc32c", KEYWORD_FUNCTION(py_masked_crc32c), KEYWORDS,
     "masked_crc32c(data)\n--\n\nCRC32C of data, masked as TFRecord stores it."},
    {"crc32c_implementations", py_crc32c_implementations, METH_NOARGS,
     "crc32c_implementations()\n--\n\nNames of the implementations that this processor can run, best first."},
    {"crc32c_with", KEYWORD_FUNCTION(py_crc32c_with), KEYWORDS,
     "crc32c_with(name, data, crc=0)\n--\n\ncrc32c() by the implementation of that name: for tests."},
    {NULL, NULL, 0, NULL},
};
