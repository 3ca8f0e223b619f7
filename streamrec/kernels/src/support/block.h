/* Blocks: memory for megabytes of records, which is used again instead of given back. See block.c. */
#ifndef STREAMREC_BLOCK_H
#define STREAMREC_BLOCK_H

#include "native.h"

/* Bytes below which malloc does well by itself, and nothing is kept. */
#define BLOCK_SMALLEST (64 << 10)

/* A new Block of `size` bytes that are not set to anything, or NULL with an exception. */
PyObject *block_new(Py_ssize_t size);

/* The same for `rows` of `elements` of `width` bytes, if there are that many bytes. */
PyObject *block_for_rows(Py_ssize_t rows, Py_ssize_t elements, Py_ssize_t width);

/* Where a Block's bytes are. */
uint8_t *block_memory(PyObject *block);

/* Makes a Block smaller that nobody has seen yet: its memory stays as it is. */
void block_shrink(PyObject *block, Py_ssize_t size);

/* New bytes for a kernel's result, with their address in *memory: a Block, or `bytes` where they are few. */
PyObject *block_or_bytes(Py_ssize_t size, uint8_t **memory);

/* Makes the type; called once when the module is loaded. */
int block_add_type(PyObject *module);

#endif
