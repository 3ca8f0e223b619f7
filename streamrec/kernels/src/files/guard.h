/* A guard over mappings of files: a page of one that cannot be read any more (the file was cut off, its disk fails)
 * would end the process by SIGBUS. Under the guard the page becomes one of zeros, and is told as lost.
 */
#ifndef STREAMREC_GUARD_H
#define STREAMREC_GUARD_H

#include "native.h"

/* A guarded mapping, and what its owner calls it. */
typedef struct Guarded Guarded;

/* Installs the guard, once a process. 0 where the system has none, or where somebody else took the signal over. */
int guard_stands(void);

/* Under the GIL: guards bytes that lie in memory from `base` on, and in the file from `offset` on. NULL: no memory. */
Guarded *guard_begin(const void *base, size_t size, long long offset, PyObject *label);

/* Under the GIL, before the bytes are unmapped. What was lost of them is told ever after. */
void guard_end(Guarded *guarded);

/* A list of (label, offset of the first lost page in its file), one for each mapping that lost any. */
PyObject *guard_lost(void);

#endif
