/* What the C files of the extension share. Each file is one kernel family: plain C functions over buffers
 * first, their thin Python wrappers last, and a method table that module.c lists.
 *
 *   framing/    TFRecord headers and footers: finding records, writing them, the search behind damage
 *   crc32c/     CRC32C, one file for each instruction set, and the choice between them
 *   example/    tf.train.Example: decoding to columns, padding, encoding
 *   gathering/  records picked from many buffers: gather, interleave, shuffle
 *   support/    arguments, memory blocks, copies, prefetching
 *
 * Rules for every kernel:
 *  - it takes objects of the buffer protocol and holds them for the call only;
 *  - it releases the GIL around the work, unless that is less than getting it back, and makes no Python object
 *    per record;
 *  - it trusts no length it reads: every offset is checked against the buffer before it is used;
 *  - it reports bad data as a code and an offset, and raises only for wrong arguments and lack of memory.
 */
#ifndef STREAMREC_NATIVE_H
#define STREAMREC_NATIVE_H

/* No format of arguments has a '#': what one version's headers make of it fails on another, and one build serves all. */
#include <Python.h>
#include <stdint.h>
#include <string.h>

#define GIL_BYTES (128 << 10) /* bytes from which on releasing the GIL for a copy or a CRC costs less than holding it */

/* For method tables: a function of (module, args, kwargs). Docstrings start with a signature line and "--", from
 * which inspect.signature reads it; a test compares it with the stub. */
#define KEYWORDS (METH_VARARGS | METH_KEYWORDS)
#define KEYWORD_FUNCTION(name) (PyCFunction)(void (*)(void)) name

#endif
