/* Mapped: bytes of a file as they lie in the page cache, for as long as anything refers to them; and whether they do.
 *
 * Python's own mmap keeps a file descriptor for each mapping: a shuffle buffer that holds hundreds of them would use up
 * what a process may have. This one needs none once it stands. reference/mapping.py, its twin, copies.
 */
#include "files/guard.h"
#include "native.h"

#if (defined(__unix__) || defined(__APPLE__)) && !defined(STREAMREC_PORTABLE)
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#define CAN_MAP 1
#endif
#if defined(__linux__) && defined(CAN_MAP)
#include <sys/vfs.h>
#define KNOWS_FILESYSTEMS 1
#endif

typedef struct {
    PyObject_HEAD
    uint8_t *base; /* where the mapping begins: at a whole page */
    size_t whole;
    size_t before; /* bytes of it before the first one that was asked for */
    Guarded *guarded; /* NULL where the guard does not stand */
} Mapped;

#ifdef CAN_MAP
static void
mapped_dealloc(PyObject *self)
{
    Mapped *mapped = (Mapped *)self;
    PyTypeObject *type = Py_TYPE(self);
    if (mapped->guarded != NULL) {
        guard_end(mapped->guarded);
    }
    if (mapped->base != NULL) { /* a page table of megabytes: others may run meanwhile */
        Py_BEGIN_ALLOW_THREADS
        munmap(mapped->base, mapped->whole);
        Py_END_ALLOW_THREADS
    }
    PyObject_Free(self);
    Py_DECREF(type);
}

static int
mapped_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    Mapped *mapped = (Mapped *)self;
    size_t size = mapped->whole - mapped->before;
    return PyBuffer_FillInfo(view, self, mapped->base + mapped->before, (Py_ssize_t)size, 1, flags);
}

static PyType_Slot mapped_slots[] = {
    {Py_tp_doc, "Bytes of a file as they lie in the page cache."},
    {Py_tp_dealloc, mapped_dealloc},
    {Py_bf_getbuffer, mapped_getbuffer},
    {0, NULL},
};

static PyType_Spec mapped_spec = {
    .name = "streamrec.kernels._native.Mapped",
    .basicsize = sizeof(Mapped),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = mapped_slots,
};

static PyObject *
map_pages(int file, long long offset, Py_ssize_t size, PyObject *label)
{
    static PyObject *type; /* made at the first call, under the GIL; it has no state */
    if (type == NULL && (type = PyType_FromSpec(&mapped_spec)) == NULL) {
        return NULL;
    }
    struct stat found;
    if (fstat(file, &found) < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (offset > found.st_size || size > found.st_size - offset) {
        return PyErr_Format(PyExc_ValueError, "%zd bytes from %lld on, of a file of %lld", size, offset,
                            (long long)found.st_size);
    }
    Mapped *mapped = PyObject_New(Mapped, (PyTypeObject *)type);
    if (mapped == NULL) {
        return NULL;
    }
    mapped->guarded = NULL;
    mapped->before = (size_t)(offset % sysconf(_SC_PAGESIZE));
    mapped->whole = mapped->before + (size_t)size;
    long long begin = offset - (long long)mapped->before;
    void *base = mmap(NULL, mapped->whole, PROT_READ, MAP_SHARED, file, (off_t)begin);
    mapped->base = base == MAP_FAILED ? NULL : base;
    if (base == MAP_FAILED) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(mapped);
        return NULL;
    }
    if (guard_stands() && (mapped->guarded = guard_begin(base, mapped->whole, begin, label)) == NULL) {
        Py_DECREF(mapped);
        return NULL;
    }
    return (PyObject *)mapped;
}
#else
static PyObject *
map_pages(int file, long long offset, Py_ssize_t size, PyObject *label)
{
    (void)file, (void)offset, (void)size, (void)label;
    PyErr_SetString(PyExc_OSError, "files cannot be mapped on this system");
    return NULL;
}
#endif

static PyObject *
map_file(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"file", "offset", "size", "label", NULL};
    (void)module;
    int file;
    long long offset;
    Py_ssize_t size;
    PyObject *label = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iLn|O:map_file", names, &file, &offset, &size, &label)) {
        return NULL;
    }
    if (offset < 0 || size < 1) {
        return PyErr_Format(PyExc_ValueError, "%zd bytes from %lld on: wanted 1 or more, from 0 on", size, offset);
    }
    return map_pages(file, offset, size, label);
}

/* Filesystems of this machine's own disks and memory, by their numbers in statfs(2). An overlay lies over such. */
static int
is_of_this_machine(int file)
{
#ifdef KNOWS_FILESYSTEMS
    static const unsigned long kinds[] = {
        0xEF53,     /* ext2, ext3, ext4 */
        0x58465342, /* XFS */
        0x9123683E, /* Btrfs */
        0xF2F52010, /* F2FS */
        0x2FC12FC1, /* ZFS */
        0xCA451A4E, /* bcachefs */
        0x01021994, /* tmpfs */
        0x858458F6, /* ramfs */
        0x794C7630, /* overlay */
        0x73717368, /* SquashFS */
        0xE0F5E1E2, /* EROFS */
    };
    struct statfs found;
    if (fstatfs(file, &found) == 0) {
        for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
            if ((unsigned long)found.f_type == kinds[i]) {
                return 1;
            }
        }
    }
#else
    (void)file;
#endif
    return 0;
}

static PyObject *
is_safe_to_map(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"file", NULL};
    (void)module;
    int file;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "i:is_safe_to_map", names, &file)) {
        return NULL;
    }
    return PyBool_FromLong(is_of_this_machine(file) && guard_stands());
}

static PyObject *
lost_pages(PyObject *module, PyObject *ignored)
{
    (void)module, (void)ignored;
    return guard_lost();
}

/* Whether the byte at `offset` can be read without waiting. Reading past the end of a file waits for nothing. */
static int
is_there(int file, long long offset)
{
#if defined(RWF_NOWAIT) && defined(CAN_MAP)
    uint8_t byte;
    struct iovec one = {&byte, 1};
    return preadv2(file, &one, 1, (off_t)offset, RWF_NOWAIT) >= 0;
#else
    (void)file, (void)offset;
    return 0;
#endif
}

static PyObject *
is_cached(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"file", "offset", "size", "step", NULL};
    (void)module;
    int file;
    long long offset;
    Py_ssize_t size, step;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "iLnn:is_cached", names, &file, &offset, &size, &step)) {
        return NULL;
    }
    if (offset < 0 || size < 1 || step < 1 || offset > INT64_MAX - size) {
        return PyErr_Format(PyExc_ValueError, "%zd bytes from %lld on, in steps of %zd: wanted 1 or more, from 0 on", size,
                            offset, step);
    }
    int there;
    Py_BEGIN_ALLOW_THREADS
    there = is_there(file, offset + size - 1);
    for (Py_ssize_t at = 0; there && at < size; at += step < size - at ? step : size - at) {
        there = is_there(file, offset + at);
    }
    Py_END_ALLOW_THREADS
    return PyBool_FromLong(there);
}

/* Without giving the interpreter's lock away: whoever asks for a stamp of each of many files would otherwise wait for it
 * that often, milliseconds each time where another thread computes.
 */
static PyObject *
file_stamp(PyObject *module, PyObject *path)
{
    (void)module, (void)path;
#ifdef CAN_MAP
    PyObject *name;
    struct stat found;
    if (!PyUnicode_FSConverter(path, &name)) {
        return NULL;
    }
    int failed = stat(PyBytes_AsString(name), &found) < 0;
    Py_DECREF(name);
    if (failed) {
        return PyErr_SetFromErrnoWithFilenameObject(PyExc_OSError, path);
    }
#ifdef __APPLE__
    struct timespec written = found.st_mtimespec;
#else
    struct timespec written = found.st_mtim;
#endif
    return Py_BuildValue("(KKLL)", (unsigned long long)found.st_dev, (unsigned long long)found.st_ino,
                         (long long)found.st_size, (long long)written.tv_sec * 1000000000 + written.tv_nsec);
#else
    PyErr_SetString(PyExc_OSError, "files cannot be mapped on this system");
    return NULL;
#endif
}

PyMethodDef mapped_methods[] = {
    {"file_stamp", file_stamp, METH_O,
     "file_stamp(path, /)\n--\n\nA file's device, inode, size, and nanosecond of the last write; the lock is kept."},
    {"is_cached", KEYWORD_FUNCTION(is_cached), KEYWORDS,
     "is_cached(file, offset, size, step)\n--\n\nWhether bytes of an open file lie in the page cache, by one in each step."},
    {"is_safe_to_map", KEYWORD_FUNCTION(is_safe_to_map), KEYWORDS,
     "is_safe_to_map(file)\n--\n\nWhether mapping an open file of this machine cannot end the process."},
    {"lost_pages", lost_pages, METH_NOARGS,
     "lost_pages()\n--\n\nThe labels of mappings that lost pages, and where in their files."},
    {"map_file", KEYWORD_FUNCTION(map_file), KEYWORDS,
     "map_file(file, offset, size, label=None)\n--\n\nRead-only bytes of an open file, as they lie in the page cache."},
    {NULL, NULL, 0, NULL},
};
