#!/bin/sh
# Builds the extension with AddressSanitizer and UndefinedBehaviorSanitizer in a temporary copy of the project and
# runs tests/kernels and tests/example on it, without the comparisons with TensorFlow, which is not built for this.
# Needs gcc (with libasan, which comes with it) and a Python with the test packages.
#
#   tests/kernels/run_sanitized.sh [python] [pytest arguments ...]
#
# Leaks are not looked for: Python itself keeps memory until its end. UBSan's findings are fatal.
set -eu

python=${1:-python3}
[ $# -gt 0 ] && shift
root=$(cd "$(dirname "$0")/../.." && pwd)
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT INT TERM

mkdir "$copy/tests"
cp -r "$root/setup.py" "$root/pyproject.toml" "$root/streamrec" "$copy"
cp "$root/tests/conftest.py" "$root/tests/effort.py" "$root/tests/runs.py" "$copy/tests"
cp -r "$root/tests/kernels" "$root/tests/example" "$root/tests/golden" "$root/tests/oracle" "$root/tests/servers" "$root/fuzz" "$copy/tests"
mv "$copy/tests/fuzz" "$copy"
for optional in README.md LICENSE tests/__init__.py; do
    if [ -e "$root/$optional" ]; then cp "$root/$optional" "$copy/$optional"; fi
done
find "$copy" -name '*.so' -delete
cd "$copy"
CC=${CC:-gcc}
export CC
STREAMREC_SANITIZE=1 "$python" setup.py -q build_ext --inplace

# PYTHONMALLOC: each of Python's own small objects becomes a block that ASan guards.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=0:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
export PYTHONMALLOC=malloc PYTHONDONTWRITEBYTECODE=1
sanitized() { # the library comes first in the process; compilers that tests start run without it
    LD_PRELOAD=$("$CC" -print-file-name=libasan.so) "$@"
}

# What runs below must be the sanitized module of this copy, with ASan in the process.
sanitized "$python" - <<'CHECK'
from pathlib import Path
from streamrec.kernels import _native
module = Path(_native.__file__)
assert module.is_relative_to(Path.cwd().resolve()), module
for needed in (b"__asan_report_load", b"__ubsan_handle"):
    assert needed in module.read_bytes(), f"{module} was built without {needed!r}"
assert "libasan" in Path("/proc/self/maps").read_text(), "libasan is not loaded"
print("sanitized module:", module.name)
CHECK
# test_build.py builds extensions of its own. --capture=sys: what a sanitizer writes to file 2 as it ends the process must not be lost with pytest's capture.
sanitized "$python" -m pytest -q --capture=sys -p no:cacheprovider -m "not peer" \
    --ignore tests/kernels/test_build.py tests/kernels tests/example "$@"
