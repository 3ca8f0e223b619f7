"""The house rules: imports point one way, the public names are exact, and `import streamrec` stays
light.
"""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
from google.protobuf.message import Message

import streamrec
from streamrec.lazy import IMPORT
from tests.runs import in_new_interpreter
from tests.test_size import PACKAGE, imports, nodes, trees

MAY_IMPORT = {
    "arguments": {"display"},
    "display": set(),
    "errors": {"display"},
    "html": {"display", "errors"},
    "lazy": set(),
    "kernels": {"display", "errors"},
    "tfrecord": {"display", "arguments", "html", "errors", "kernels", "lazy"},
    "example": {"display", "arguments", "html", "errors", "kernels", "lazy"},
    "storage": {"display", "arguments", "errors", "kernels", "lazy"},
    "bridge": {"display", "errors"},
    "shards": {
        "display",
        "arguments",
        "errors",
        "kernels",
        "lazy",
        "tfrecord",
        "storage",
        "bridge",
    },
    "pipeline": {
        *("display", "arguments", "html", "errors", "kernels", "lazy", "tfrecord"),
        *("example", "storage", "shards", "bridge"),
    },
    "interchange": {"display", "errors", "example", "lazy"},
    "__init__": {
        "bridge",
        "errors",
        "kernels",
        "lazy",
        "tfrecord",
        "example",
        "storage",
        "shards",
        "pipeline",
    },
}
"""Which rooms a room may import besides itself. Rooms that are not named here stand above all of
these."""

SANS_IO = {"tfrecord", "example", "interchange"}
IO_MODULES = {"asyncio", "anyio", "aiofiles", "aiohttp", "fsspec", "socket", "threading", "os"}


LAZY = sorted(PACKAGE.rglob("__init__.pyi"))
"""What the packages whose names are imported when they are asked for are to type checkers."""


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].partition(".")[0]


PLAIN = r"""(?ix) \b (behind | anew | (no|some)body | whoever | beside | told | lies? | stands? | hangs | goes \s on
    | so \s (many|much) | at \s the \s (most|least) | for \s (ever|good) | (?<!there\ )(is|are|was|were) \s no) \b"""  # noqa: E501
"""What no message says: see `PHRASES`."""
ADVICE = r"""(?ix) \b (add | allow | ask | call | check | choose | close | convert | copy | declare | describe | exclude
    | fill | fix | give | install | leave | list | lower | make | map | must | name | needs? | only | open | parse
    | pass | put | raise | read | remove | rename | repair | reshape | restore | resume | round | run | save | say
    | select | set | shorten | start | take | unpack | use | wait | expected | wanted | wants? | write) \b"""  # noqa: E501
"""What says what to do: a verb."""


def messages() -> Iterator[tuple[Path, str, str]]:
    """The messages of errors and warnings: the file, the name of the error, the text with {} for
    values.
    """

    def text_of(node: ast.AST) -> str:
        match node:
            case ast.Constant(value=str(text)):
                return text
            case ast.JoinedStr(values=parts):
                return "".join(map(text_of, parts))
        return "{}"

    for path, node in nodes():
        if isinstance(node, ast.Call):
            name = str(getattr(node.func, "id", getattr(node.func, "attr", "")))
            if re.search("Error$|^BadParameter$|^warning$|^warn_once$", name):
                yield from (
                    (path, name, text)
                    for text in map(text_of, node.args)
                    if text.strip("{}") and " " in text
                )


def test_messages_are_plain() -> None:
    for path, _, text in messages():
        assert not re.search(PLAIN, text), f"{path}: {text}"


def test_most_messages_say_what_to_do() -> None:
    """What is wrong says it for some: a ceiling that may only fall."""
    errors = {name for name in vars(streamrec.errors) if name.endswith("Error")}
    silent = [
        text for _, name, text in messages() if name in errors and not re.search(ADVICE, text)
    ]
    assert len(silent) <= 57, "\n".join(silent)


def test_imports_point_one_way() -> None:
    for path in [*trees(), *LAZY]:
        room = room_of(path)
        allowed = MAY_IMPORT.get(room)
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "streamrec" and len(parts) > 1 and allowed is not None:
                assert parts[1] in allowed | {room}, f"{path}: {room} must not import {name}"
            if room in SANS_IO:
                assert parts[0] not in IO_MODULES, (
                    f"{path}: {room} is sans-I/O and must not import {name}"
                )


SLOW = {"fsspec", "fsspec.dircache", "email.utils"}
"""What functions import: a read of local files calls none of them, so that its first batch comes
sooner."""


def test_no_function_level_imports() -> None:
    for path, function in nodes():
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) and room_of(path) in {
            *MAY_IMPORT,
            "cli",
        }:
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom):
                    names = (
                        {node.module}
                        if isinstance(node, ast.ImportFrom)
                        else {each.name for each in node.names}
                    )
                    assert names <= SLOW, f"{path}:{node.lineno}"


def test_a_local_read_imports_no_slow_module(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(streamrec.encode_records([b"1"]))
    read = (
        "import streamrec, sys; print(*streamrec.TFRecordDataset(sys.argv[1])); "
        "print(*sorted(sys.modules))"
    )
    records, modules = in_new_interpreter(read, path).splitlines()
    assert records == "b'1'"
    assert not SLOW.intersection(modules.split())


def test_the_command_line_uses_public_names() -> None:
    for path in trees():
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != "streamrec" or len(parts) == 1:
                continue
            if room_of(path) not in ("cli", "__main__"):
                assert parts[1] != "cli", f"{path} must not import {name}"
            elif parts[1] not in {"cli", *streamrec.__all__}:
                assert len(parts) == 3, f"{path} must not import {name}"
                assert parts[2] in resolve_name(f"streamrec.{parts[1]}").__all__, (
                    f"{path} must not import {name}"
                )


UNDOCUMENTED = {
    "pipeline.read_portions",
    *(
        "shards.Expected",
        "shards.IndexedRecords",
        "shards.LONG_BYTES",
        "shards.Manifest",
        "shards.ShardRange",
    ),
    *(
        "shards.ReadOptions",
        "shards.assign_records",
        "shards.expand_name",
        "shards.fill_total",
        "shards.is_below",
    ),
    *(
        "shards.is_numbered",
        "shards.is_shard_of",
        "shards.list_numbered",
        "shards.list_shards",
        "shards.location_of",
    ),
    *(
        "shards.Portion",
        "shards.open_index",
        "shards.read_manifest",
        "shards.shard_path",
        "shards.sizes_of",
    ),
    *(
        "storage.Distribution",
        "storage.Identity",
        "storage.ObjectInfo",
        "storage.Replacement",
        "storage.Storage",
    ),
    *("storage.Storages", "storage.describe_leftover", "storage.is_temporary", "storage.is_url"),
    *("storage.secured_object",),
}
"""What the command line uses of the library, and the reference does not have. Nothing may be
added."""


def test_the_command_line_uses_few_internals() -> None:
    pages = "".join(
        page.read_text() for page in (PACKAGE.parent / "docs" / "reference").glob("*.md")
    )
    documented = {*re.findall(r"::: streamrec\.(\w+\.\w+)", pages)}
    used = {
        name.partition(".")[2]
        for path in trees()
        if room_of(path) == "cli"
        for name in imports(path)
    }
    rooms = ("pipeline.", "shards.", "storage.", "tfrecord.")
    inner = {
        name
        for name in used
        if name.startswith(rooms) and name.rpartition(".")[2] not in streamrec.__all__
    }
    assert inner - documented == UNDOCUMENTED


def test_no_import_cycles_between_modules() -> None:
    paths = {
        ".".join(("streamrec", *path.relative_to(PACKAGE).with_suffix("").parts)): path
        for path in trees()
    }
    graph = {}
    for name, path in paths.items():
        targets = {
            target
            for imported in imports(path)
            for target in (imported, imported.rpartition(".")[0])
        }
        graph[name] = targets & paths.keys() - {name}
    TopologicalSorter(graph).prepare()  # its error names the modules of a cycle


@pytest.mark.parametrize(
    "path", LAZY, ids=lambda path: ".".join(path.parent.relative_to(PACKAGE.parent).parts)
)
def test_lazy_names_are_exact(path: Path) -> None:
    name = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
    package = import_module(name)
    stub = path.read_text()
    [written] = [node.value for node in ast.parse(stub).body if isinstance(node, ast.Assign)]
    assert sorted(ast.literal_eval(written)) == sorted(package.__all__)
    assert set(package.__all__) <= set(dir(package))
    for module, names in IMPORT.findall(stub):
        for public in re.findall(r"\w+", names) if module != name else ():
            assert getattr(package, public) is resolve_name(f"{module}:{public}")
    with pytest.raises(AttributeError, match=f"'{name}' has no attribute 'nonsense'"):
        _ = package.nonsense


def test_public_names() -> None:
    assert PACKAGE / "__init__.pyi" in LAZY
    stub = (PACKAGE / "__init__.pyi").read_text()
    rooms = [
        module.partition(".")[2] for module, _ in IMPORT.findall(stub) if module != "streamrec"
    ]
    pages = "".join(
        page.read_text() for page in (PACKAGE.parent / "docs" / "reference").glob("*.md")
    )
    assert all(f"<!-- names of {room} -->" in pages for room in rooms)
    assert dir(streamrec) == sorted([*streamrec.__all__, *rooms])
    for module, name in re.findall(r"::: streamrec\.(\w+)\.(\w+)", pages):
        assert name in import_module(f"streamrec.{module}").__all__, name
    for name in streamrec.__all__:
        value = getattr(streamrec, name)
        generated = isinstance(value, type) and issubclass(
            value, Message
        )  # messages.pyi documents these
        assert generated or value.__doc__, f"{name} has no docstring"


def loaded_by(code: str, *names: str) -> list[str]:
    """Which of the modules a new interpreter has loaded when it has run the code."""
    code = f"import sys; {code}; print(*[name for name in {names} if name in sys.modules])"
    return in_new_interpreter(f"import warnings; warnings.simplefilter('error'); {code}").split()


@pytest.mark.peer  # also where torch and TensorFlow could be loaded
def test_import_is_light() -> None:
    rooms = [f"streamrec.{room}" for room in MAY_IMPORT if room not in ("__init__", "lazy")]
    assert (
        loaded_by("import streamrec", "numpy", "asyncio", "fsspec", "google.protobuf", *rooms) == []
    )
    assert loaded_by("import streamrec; streamrec.kernels.crc32c", *rooms) == ["streamrec.kernels"]


@pytest.mark.peer
def test_no_public_name_loads_what_only_some_need() -> None:
    heavy = [
        "aiohttp",
        "s3fs",
        "gcsfs",
        "botocore",
        "aiobotocore",
        "google.auth",
        "torch",
        "tensorflow",
        "pandas",
    ]
    heavy += ["rich", "prometheus_client", "opentelemetry"]
    assert loaded_by("from streamrec import *; TFRecordDataset", "streamrec.pipeline", *heavy) == [
        "streamrec.pipeline"
    ]


UNUSED = [
    "google.protobuf",
    "ml_dtypes",
    "streamrec.example.encode",
    "streamrec.pipeline.sink",
    "streamrec.pipeline.sources.cache",
    "streamrec.pipeline.sources.combine",
    "streamrec.pipeline.sources.global_shuffle.source",
    "streamrec.pipeline.sources.shuffle.shuffle",
    "streamrec.pipeline.sources.parallel_map.source",
    "streamrec.pipeline.stages.window",
    "streamrec.shards.index",
    "streamrec.shards.indexed_records",
    "streamrec.shards.shard_writer",
]
"""What the first batch of a local shard does not need."""


def test_reading_loads_what_it_uses(tmp_path: Path) -> None:
    path = str(tmp_path / "one.tfrecord")
    with streamrec.TFRecordWriter(path) as writer:
        writer.write(streamrec.encode_example({"label": 1}))
    records = (
        f"import streamrec; dataset = streamrec.TFRecordDataset({path!r}).batch(1); "
        f"next(iter({{}}))"
    )
    assert loaded_by(
        records.format("dataset"),
        "streamrec.pipeline.stages.batch",
        "streamrec.example.parse",
        *UNUSED,
    ) == ["streamrec.pipeline.stages.batch"]
    parse = "dataset.parse_example({'label': streamrec.FixedLenFeature([], int)})"
    assert loaded_by(records.format(parse), "streamrec.example.parse", *UNUSED) == [
        "streamrec.example.parse"
    ]
