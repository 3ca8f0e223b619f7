/* A pseudorandom permutation of the numbers below any size: number i is permuted without the others, in no memory.
 *
 * A Feistel network over two digits. With s half of the bits of size - 1, rounded up, a number is its lower s bits and
 * what is above them, from 0 to b = ceil(size / 2**s), exclusive. Each round adds a hash of one digit to the other,
 * modulo b or 2**s: a bijection of the numbers below b * 2**s, whatever the hash. What is not below `size` then goes
 * through once more, until it is ("cycle walking"; Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002):
 * a bijection of those below `size`. b * 2**s is less than size + 2**s, so few numbers do.
 */
#include "support/args.h"
#include "support/block.h"

#define MAX_ROUNDS 64
#define MAX_SIZE ((int64_t)1 << 62)

/* The finalizer of MurmurHash3 (Austin Appleby, 2011; public domain). */
static inline uint64_t
hash(uint64_t word)
{
    word = (word ^ (word >> 33)) * 0xFF51AFD7ED558CCDu;
    word = (word ^ (word >> 33)) * 0xC4CEB9FE1A85EC53u;
    return word ^ (word >> 33);
}

struct network {
    uint64_t keys[MAX_ROUNDS];
    Py_ssize_t rounds;
    uint64_t tweak;
    uint64_t size, above; /* above: how many values the upper digit has */
    int bits;             /* of the lower digit */
};

static void
set_size(struct network *network, uint64_t size)
{
    int bits = 0;
    while (bits < 64 && (size - 1) >> bits) {
        bits++;
    }
    network->size = size;
    network->bits = (bits + 1) / 2;
    network->above = (size - 1) / ((uint64_t)1 << network->bits) + 1;
}

static inline uint64_t
permute_one(const struct network *network, uint64_t number)
{
    uint64_t mask = ((uint64_t)1 << network->bits) - 1, above = network->above;
    do {
        uint64_t low = number & mask, high = number >> network->bits;
        for (Py_ssize_t round = 0; round < network->rounds; round += 2) {
            high += (hash((low + network->tweak) ^ network->keys[round]) >> 32) * above >> 32;
            high = high >= above ? high - above : high;
            low = (low + hash((high + network->tweak) ^ network->keys[round + 1])) & mask;
        }
        number = high << network->bits | low;
    } while (number >= network->size);
    return number;
}

/* Permutes all; returns the index of the first number or size that is out of its range, or `count`. */
static Py_ssize_t
permute_all(struct network *network, const Py_buffer *numbers, const Py_buffer *sizes, const Py_buffer *variants,
            uint8_t *target)
{
    Py_ssize_t count = numbers->shape[0], one_size = sizes->shape[0] == 1, one_variant = variants->shape[0] == 1;
    int64_t known_size = 0, known_variant = 0;
    network->tweak = hash(0);
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t number = int64_at(numbers->buf, i), size = int64_at(sizes->buf, one_size ? 0 : i);
        int64_t variant = int64_at(variants->buf, one_variant ? 0 : i);
        if (size < 1 || size > MAX_SIZE || number < 0 || number >= size) {
            return i;
        }
        if (size != known_size) {
            set_size(network, (uint64_t)(known_size = size));
        }
        if (variant != known_variant) {
            network->tweak = hash((uint64_t)(known_variant = variant) * 0x9E3779B97F4A7C15u);
        }
        uint64_t result = permute_one(network, (uint64_t)number);
        memcpy(target + 8 * i, &result, 8);
    }
    return count;
}

/* Whether there is one, or one for each number. */
static int
fits(const Py_buffer *values, Py_ssize_t count, const char *name)
{
    if (values->shape[0] == 1 || values->shape[0] == count) {
        return 1;
    }
    PyErr_Format(PyExc_ValueError, "%s are %zd for %zd numbers: wanted one, or as many", name, values->shape[0], count);
    return 0;
}

static PyObject *
permute(const Py_buffer *numbers, const Py_buffer *sizes, const Py_buffer *variants, const Py_buffer *keys)
{
    struct network network;
    network.rounds = keys->shape[0];
    if (network.rounds > MAX_ROUNDS || network.rounds % 2) {
        return PyErr_Format(PyExc_ValueError, "keys are %zd: wanted an even number, %d at the most", network.rounds,
                            MAX_ROUNDS);
    }
    memcpy(network.keys, keys->buf, 8 * (size_t)network.rounds);
    Py_ssize_t count = numbers->shape[0], done;
    if (!fits(sizes, count, "sizes") || !fits(variants, count, "variants")) {
        return NULL;
    }
    uint8_t *target = NULL;
    PyObject *result = block_or_bytes(8 * count, &target);
    if (result == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    done = permute_all(&network, numbers, sizes, variants, target);
    Py_END_ALLOW_THREADS
    if (done < count) {
        Py_DECREF(result);
        return PyErr_Format(PyExc_ValueError, "number %zd or its size is out of range: wanted 0 <= number < size <= 2**62",
                            done);
    }
    return result;
}

static PyObject *
py_permute(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"numbers", "sizes", "variants", "keys", NULL};
    Py_buffer numbers, sizes, variants, keys;
    (void)module;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O&O&O&O&:permute", names, take_row_splits, &numbers, take_row_splits,
                                     &sizes, take_row_splits, &variants, take_row_splits, &keys)) {
        return NULL;
    }
    PyObject *result = permute(&numbers, &sizes, &variants, &keys);
    PyBuffer_Release(&numbers);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&variants);
    PyBuffer_Release(&keys);
    return result;
}

PyMethodDef permute_methods[] = {
    {"permute", KEYWORD_FUNCTION(py_permute), KEYWORDS,
     "permute(numbers, sizes, variants, keys)\n--\n\nWhere a permutation of the numbers below a size takes each."},
    {NULL, NULL, 0, NULL},
};
