/* The resync family: where the next record begins when the last one's end is not known.
 *
 *  - Most places are ruled out by their length alone (see find_header.h); few need a CRC, hardly any needs two.
 *  - A header whose payload is not all there is reported and left to the caller, who knows whether more bytes come.
 *    Nothing is allocated for it.
 */
#include "support/args.h"
#include "crc32c/crc32c.h"

struct found {
    size_t position;
    uint64_t wants; /* bytes of the record there; CRC32C_HEADER_BYTES where no header was found */
};

static struct found
find(const uint8_t *data, size_t size, size_t start, int verify, uint64_t limit)
{
    size_t stop = size - start < CRC32C_HEADER_BYTES ? start : size - CRC32C_HEADER_BYTES + 1;
    for (size_t position = start;; position++) {
        position = crc32c_best.find_header(data, position, stop, limit);
        if (position == stop) {
            return (struct found){stop, CRC32C_HEADER_BYTES};
        }
        const uint8_t *payload = data + position + CRC32C_HEADER_BYTES;
        uint64_t length = load_le64(data + position);
        size_t left = size - position;
        if (!verify || left < CRC32C_FRAME_BYTES || length > left - CRC32C_FRAME_BYTES ||
            crc32c_masked(payload, length) == load_le32(payload + length)) {
            return (struct found){position, CRC32C_FRAME_BYTES + length};
        }
    }
}

static PyObject *
py_find_header(PyObject *module, PyObject *args, PyObject *kwargs)
{
    (void)module;
    struct stream stream;
    if (!take_stream(args, kwargs, "O&O&pO&:find_header", &stream)) {
        return NULL;
    }
    struct found found;
    Py_BEGIN_ALLOW_THREADS
    found = find(stream.data.buf, (size_t)stream.data.len, (size_t)stream.start, stream.verify,
                 (uint64_t)stream.max_record_bytes);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&stream.data);
    return Py_BuildValue("nK", (Py_ssize_t)found.position, (unsigned long long)found.wants);
}

PyMethodDef resync_methods[] = {
    {"find_header", KEYWORD_FUNCTION(py_find_header), KEYWORDS,
     "find_header(data, start, verify, max_record_bytes)\n--\n\n"
     "Where the next record's header stands in data from start on: (position, wants)."},
    {NULL, NULL, 0, NULL},
};
