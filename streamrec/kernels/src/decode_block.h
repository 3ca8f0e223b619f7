/* Block: memory that a walk filled, as an object with the buffer protocol. */
#ifndef STREAMREC_DECODE_BLOCK_H
#define STREAMREC_DECODE_BLOCK_H

#include "native.h"

#include "decode_core.h"

/* A Block that takes over the buffer's memory, or NULL with an exception; then the buffer keeps it. */
PyObject *decode_block(decode_buffer *buffer);

#endif
