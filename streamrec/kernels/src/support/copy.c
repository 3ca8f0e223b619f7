#include "support/copy.h"
#include "support/block.h"

int
copies_begin(struct copies *copies, Py_ssize_t size, Py_ssize_t count)
{
    copies->buffer = block_or_bytes(size, &copies->target);
    copies->spans = block_or_bytes(SPAN_BYTES * count, &copies->target_spans);
    copies->room = (size_t)size;
    if (copies->buffer == NULL || copies->spans == NULL) {
        copies_drop(copies);
        return 0;
    }
    return 1;
}

PyObject *
copies_give(struct copies *copies)
{
    return Py_BuildValue("NN", copies->buffer, copies->spans);
}

void
copies_drop(struct copies *copies)
{
    Py_XDECREF(copies->buffer);
    Py_XDECREF(copies->spans);
}
