/* Asking for memory before it is needed, where the processor does not see it coming: records of many buffers in turn. */
#ifndef STREAMREC_PREFETCH_H
#define STREAMREC_PREFETCH_H

#include <stddef.h>
#include <stdint.h>

enum { CACHE_LINE = 64, FAR_BYTES = 4096 };

/* Asks for the first `most` of `length` bytes. */
static inline void
prefetch_bytes(const uint8_t *bytes, size_t length, size_t most)
{
    for (size_t at = 0; at < length && at < most; at += CACHE_LINE) {
        __builtin_prefetch(bytes + at);
    }
}

/* Asks for `bytes` that are `ahead` bytes further on, within the buffer or not. FAR_BYTES is for callers that go straight
 * on: what the processor foresees ends with a page, and short records were checked at half the speed. */
static inline void
prefetch_ahead(const uint8_t *here, size_t ahead, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += CACHE_LINE) {
        __builtin_prefetch((const void *)((uintptr_t)here + ahead + at));
    }
}

#endif
