/* Result: memory that a walk filled, as an object with the buffer protocol. */
#ifndef STREAMREC_DECODE_RESULT_H
#define STREAMREC_DECODE_RESULT_H

#include "native.h"
#include "example/decode_core.h"

/* A Result that takes over the buffer's memory, or NULL with an exception; then the buffer keeps it. */
PyObject *decode_result(decode_buffer *buffer);

#endif
