/* Prefetching of payloads: those that alternate between buffers are a pattern that no processor's prefetcher
 * follows, and each would be a wait for memory. */
#ifndef STREAMREC_PREFETCH_H
#define STREAMREC_PREFETCH_H

#include "native.h"

#define CACHE_LINE 64
#define PREFETCH_BYTES 1024 /* of each payload; what follows, the processor fetches by itself */

/* Asks for the start of a payload that will be copied soon. */
static inline void
prefetch_payload(const uint8_t *payload, size_t length)
{
    size_t wanted = length < PREFETCH_BYTES ? length : PREFETCH_BYTES;
    for (size_t at = 0; at < wanted; at += CACHE_LINE) {
        __builtin_prefetch(payload + at);
    }
}

#endif
