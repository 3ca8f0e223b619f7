/* Copying payloads together: what gather, interleave and pick do for each record, and with what they give.
 *
 * Payloads that alternate between buffers are a pattern that no processor's prefetcher follows, and each would be a
 * wait for memory: hence the prefetching. */
#ifndef STREAMREC_COPY_H
#define STREAMREC_COPY_H

#include "support/args.h"
#include "support/prefetch.h"

#define PREFETCH_AHEAD 4    /* records: far enough for memory, near enough to be there still */
#define PREFETCH_BYTES 1024 /* of each payload; what follows, the processor fetches by itself */

/* What they give, as long as it is not written whole. Loops have a copy of their own, which no payload that they write
 * may overlap, so that compilers keep it in registers. */
struct copies {
    PyObject *buffer, *spans; /* the payloads back to back, and where each lies in it: int64 [count, 2] */
    uint8_t *target, *target_spans;
    size_t room; /* bytes of target */
};

int copies_begin(struct copies *copies, Py_ssize_t size, Py_ssize_t count); /* 0 with an exception set */
PyObject *copies_give(struct copies *copies);                               /* (buffer, spans), or NULL */
void copies_drop(struct copies *copies);

/* Asks for the start of a payload that will be copied soon. */
static inline void
prefetch_payload(const uint8_t *payload, size_t length)
{
    prefetch_bytes(payload, length, PREFETCH_BYTES);
}

/* Copies one payload to where the last one ends, as record i, and writes its new span. Returns where it ends. */
static inline int64_t
copy_payload(const struct copies *copies, Py_ssize_t i, int64_t end, const uint8_t *payload, size_t length)
{
    if (length > 0) { /* an empty buffer may have no address, which memcpy must not see */
        memcpy(copies->target + end, payload, length);
    }
    int64_t span[2] = {end, end + (int64_t)length};
    memcpy(copies->target_spans + SPAN_BYTES * i, span, SPAN_BYTES);
    return span[1];
}

#endif
