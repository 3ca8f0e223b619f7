/* Asking for memory before it is needed, where the processor does not see it coming: records of many buffers in turn. */
#ifndef STREAMREC_PREFETCH_H
#define STREAMREC_PREFETCH_H

#include <stddef.h>
#include <stdint.h>

enum { CACHE_LINE = 64 };

/* Asks for the first `most` of `length` bytes. */
static inline void
prefetch_bytes(const uint8_t *bytes, size_t length, size_t most)
{
    for (size_t at = 0; at < length && at < most; at += CACHE_LINE) {
        __builtin_prefetch(bytes + at);
    }
}

#endif
