/* The extension module: a list of the kernel families' method tables, nothing else. */
#include "support/block.h"
#include "crc32c/crc32c.h"
#include "native.h"

extern PyMethodDef block_methods[], crc32c_methods[],
    decode_result_methods[], decode_methods[], encode_methods[], frames_methods[], framing_methods[],
    gather_methods[], interleave_methods[], objects_methods[], pad_methods[], permute_methods[],
    resync_methods[], shuffle_methods[], turns_methods[];

static PyMethodDef *const families[] = {
    block_methods,
    crc32c_methods,
    decode_result_methods,
    decode_methods,
    encode_methods,
    frames_methods,
    framing_methods,
    gather_methods,
    interleave_methods,
    objects_methods,
    pad_methods,
    permute_methods,
    resync_methods,
    shuffle_methods,
    turns_methods,
    NULL,
};

static int
add_families(PyObject *module)
{
    for (PyMethodDef *const *family = families; *family != NULL; family++) {
        if (PyModule_AddFunctions(module, *family) < 0) {
            return -1;
        }
    }
    return 0;
}

static int
choose_crc32c(PyObject *module)
{
    (void)module;
    crc32c_choose();
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, (void *)choose_crc32c},
    {Py_mod_exec, (void *)block_add_type},
    {Py_mod_exec, (void *)add_families},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "streamrec.kernels._native",
    .m_doc = "Kernels over buffers in C; _native.pyi documents them.",
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
