"""What keeps the package readable: imports point one way, no object or function does too much, the
public names are exact and documented, and `import streamrec` stays light.

Each measure counts something that frightens a maintainer; lines, files and words are not counted.
A measure that is exceeded says what to do. The classes and functions that exceed one today are in a
list with their number: a number there may only fall, and a name may only leave.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest
from google.protobuf.message import Message

import streamrec
from streamrec.lazy import IMPORT
from tests.runs import in_new_interpreter

PACKAGE = Path(streamrec.__file__).parent
ROOT = PACKAGE.parent

LAZY = sorted(PACKAGE.rglob("__init__.pyi"))
"""What the packages whose names are imported when they are asked for are to type checkers."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


# The package, parsed once.


@dataclass(frozen=True)
class Module:
    """A file of the package, or a stub: its dotted name, and its nodes in the order of ast.walk."""

    path: Path
    tree: ast.Module
    nodes: list[ast.AST]

    @property
    def name(self) -> str:
        parts = self.path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts).removesuffix(".__init__")

    @property
    def room(self) -> str:
        """The folder or module at the top of the package that contains the file."""
        return self.path.relative_to(PACKAGE).parts[0].partition(".")[0]

    @property
    def is_package(self) -> bool:
        return self.path.stem == "__init__"

    def __str__(self) -> str:
        return str(self.path.relative_to(ROOT))


def parse(path: Path) -> Module:
    tree = ast.parse(path.read_text())
    return Module(path, tree, list(ast.walk(tree)))


@cache
def modules() -> Mapping[str, Module]:
    """All modules of the package by their dotted names."""
    return {module.name: module for module in map(parse, sorted(PACKAGE.rglob("*.py")))}


@cache
def lazy_names() -> Mapping[str, str]:
    """Where the names of lazy packages come from: `streamrec.shards.ShardWriter` is
    `streamrec.shards.shard_writer.ShardWriter`.
    """
    found = {}
    for stub in LAZY:
        package = ".".join(stub.parent.relative_to(ROOT).parts)
        for module, names in IMPORT.findall(stub.read_text()):
            if module != package:
                found |= {f"{package}.{name}": f"{module}.{name}" for name in names_in(names)}
    return found


def names_in(text: str) -> list[str]:
    return re.findall(r"\w+", text)


def imports(module: Module) -> list[str]:
    """The dotted names that a file imports."""
    found = []
    for node in module.nodes:
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively: write the whole name"
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def uses(module: Module) -> set[str]:
    """The dotted names of the package that a file uses: what it imports, and the attributes of
    what it imports (`shards.ShardWriter` after `from streamrec import shards`).
    """
    meaning = imported_names(module)
    found = set(imports(module))
    for node in module.nodes:
        first, _, rest = dotted(node).partition(".")
        if rest and first in meaning:
            found.add(f"{meaning[first]}.{rest}")
    return {name for name in found if name.partition(".")[0] == "streamrec"}


def imported_names(module: Module) -> dict[str, str]:
    """What each name that a file imports stands for, as a dotted name."""
    meaning: dict[str, str] = {}
    for node in module.nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name if alias.asname else alias.name.partition(".")[0]
                meaning[alias.asname or first] = first
        elif isinstance(node, ast.ImportFrom):
            meaning |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
    return meaning


def dotted(node: ast.AST) -> str:
    """A name with its attributes as it is written; "" for any other expression."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def module_of(name: str) -> Module:
    """The module that a dotted name leads to, through the lists of lazy packages."""
    while name in lazy_names():
        name = lazy_names()[name]
    while name not in modules():
        parent = name.rpartition(".")[0]
        name = lazy_names().get(parent, parent)
    return modules()[name]


# Which module may import which.

MAY_IMPORT = {
    "arguments": {"display"},
    "display": {"lazy", "store_kinds"},
    "store_kinds": set(),
    "errors": {"display", "lazy"},
    "html": {"display", "errors"},
    "lazy": set(),
    "process": set(),
    "tracebacks": {"errors"},
    "kernels": {"display", "errors"},
    "tfrecord": {"display", "arguments", "html", "errors", "kernels", "lazy", "tracebacks"},
    "example": {"display", "arguments", "html", "errors", "kernels", "lazy", "tracebacks"},
    "storage": {
        *("display", "arguments", "errors", "kernels", "lazy", "tracebacks", "store_kinds"),
    },
    "bridge": {"display", "errors", "tracebacks"},
    "shards": {
        "display",
        "arguments",
        "errors",
        "kernels",
        "lazy",
        "tfrecord",
        "storage",
        "bridge",
        "process",
        "tracebacks",
        "store_kinds",
    },
    "pipeline": {
        *("display", "arguments", "html", "errors", "kernels", "lazy", "tfrecord"),
        *("example", "storage", "shards", "bridge", "tracebacks", "store_kinds"),
    },
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

SANS_IO = {"tfrecord", "example"}
IO_MODULES = {"asyncio", "anyio", "aiofiles", "aiohttp", "fsspec", "socket", "threading", "os"}


def test_imports_point_one_way() -> None:
    for module in [*modules().values(), *map(parse, LAZY)]:
        allowed = MAY_IMPORT.get(module.room)
        for name in imports(module):
            parts = name.split(".")
            if parts[0] == "streamrec" and len(parts) > 1 and allowed is not None:
                assert parts[1] in allowed | {module.room}, (
                    f"{module}: {module.room} must not import {name}: move what both need down, or "
                    "let the caller pass it in"
                )
            if module.room in SANS_IO or module.name.startswith("streamrec.cli.formats"):
                assert parts[0] not in IO_MODULES, (
                    f"{module}: its package does no I/O and must not import {name}: do it in "
                    "storage or shards, and pass the bytes"
                )


def test_no_import_cycles_between_modules() -> None:
    """A name of a lazy package counts as an import of the module that it leads to, also where it is
    written as an attribute of the package.
    """
    graph = {
        module.name: {target.name for target in map(module_of, uses(module)) if target != module}
        for module in modules().values()
        if not module.is_package  # it gives the names of its modules, and that makes no cycle
    }
    packages = {module.name for module in modules().values() if module.is_package}
    TopologicalSorter({name: to - packages for name, to in graph.items()}).prepare()


def test_no_import_cycles_between_folders() -> None:
    """A module at the top of the package counts as a folder."""

    def folder_of(module: Module) -> str:
        if module.is_package or module.name.count(".") == 1:
            return module.name
        return module.name.rpartition(".")[0]

    graph: dict[str, set[str]] = {}
    for module in modules().values():
        if not module.is_package:
            targets = {folder_of(module_of(name)) for name in uses(module)} - {"streamrec"}
            graph.setdefault(folder_of(module), set()).update(targets - {folder_of(module)})
    TopologicalSorter(graph).prepare()  # its error names the folders of a cycle


def test_no_function_level_imports() -> None:
    for module in modules().values():
        if module.room not in {*MAY_IMPORT, "cli"}:
            continue
        for function in module.nodes:
            if not isinstance(function, Function):
                continue
            for node in ast.walk(function):
                names = set()
                if isinstance(node, ast.Import):
                    names = {alias.name for alias in node.names}
                elif isinstance(node, ast.ImportFrom):
                    names = {str(node.module)}
                assert names <= SLOW, f"{module}:{node.lineno}: import it at the head of the file"  # type: ignore[attr-defined]


SLOW = {"fsspec", "fsspec.dircache", "email.utils"}
"""What functions import, so that the first batch of local files, which need none, comes sooner."""


UNUSED_MODULES = {
    "statistics",
    "decimal",
    "streamrec.pipeline.arrow_stream",
    "streamrec.example.arrow",
}
"""What a plain read does without: each of these takes milliseconds of the first batch."""


def test_a_local_read_imports_no_slow_module(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(streamrec.encode_records([b"1"]))
    read = (
        "import streamrec, sys; print(*streamrec.TFRecordDataset(sys.argv[1])); print(*sys.modules)"
    )
    records, loaded = in_new_interpreter(read, path).splitlines()
    assert records == "b'1'"
    assert not (SLOW | UNUSED_MODULES).intersection(loaded.split())


LIBRARY = {
    name: target
    for name, target in lazy_names().items()
    if name.startswith("streamrec.cli.library.")
}
"""What the command line imports of the library, besides the names at the top of streamrec."""


def test_the_command_line_uses_public_names() -> None:
    for module in modules().values():
        for name in imports(module):
            parts = name.split(".")
            if parts[0] != "streamrec" or len(parts) == 1:
                continue
            if module.room not in ("cli", "__main__"):
                assert parts[1] != "cli", f"{module} must not import {name}"
            elif not module.is_package:  # the packages list names
                assert parts[1] in {"cli", *streamrec.__all__}, (
                    f"{module} must not import {name}: add it to cli/library/__init__.pyi, and "
                    "import it from streamrec.cli.library"
                )


def test_the_command_line_uses_no_names_of_modules_within_packages() -> None:
    """But for the modules of `example` that only conversions use."""
    for name in LIBRARY.values():
        if name.startswith("streamrec.example."):
            continue
        room, _, inner = name.removeprefix("streamrec.").partition(".")
        package = resolve_name(f"streamrec.{room}")
        assert inner in package.__all__ or not hasattr(package, "__path__"), (
            f"streamrec.cli.library must not import {name}: import it from the package"
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
        "shards.part_of",
        "shards.read_manifest",
        "shards.shard_path",
        "shards.sizes_of",
    ),
    *(
        "storage.Identity",
        "storage.ObjectInfo",
        "storage.Replacement",
        "storage.Storage",
    ),
    *("storage.Storages", "storage.describe_leftover", "storage.is_temporary", "storage.is_url"),
    *("storage.secured_object", "storage.LEASE_SECONDS", "storage.Recovery", "storage.recover"),
    *("storage.find_journals", "storage.find_unexplained"),
}
"""What the command line uses of the library, and the reference does not have. Nothing may be
added."""


def test_the_command_line_uses_few_internals() -> None:
    pages = "".join(
        page.read_text() for page in (PACKAGE.parent / "docs" / "reference").glob("*.md")
    )
    documented = {*re.findall(r"::: streamrec\.(\w+\.\w+)", pages)}
    used = {name.removeprefix("streamrec.") for name in LIBRARY.values()}
    rooms = ("pipeline.", "shards.", "storage.", "tfrecord.")
    inner = {
        name
        for name in used
        if name.startswith(rooms) and name.rpartition(".")[2] not in streamrec.__all__
    }
    assert inner - documented == UNDOCUMENTED


# What an object or a function does.

MAX_FIELDS = 10
"""Fields that a class changes after they are set up are what a reader must keep in the head."""

MORE_FIELDS: Mapping[str, int] = {
    "pipeline.stages.bucket.Grouping": 13,
    "torch.Loader": 13,
    "pipeline.stages.rebatch._CyclicBatching": 12,
}
"""Inherited fields count: who reads a method must know them all. At most ten entries, none of them
on the path of a plain read, and none above 14.
"""

MAX_BRANCHES = 12

MORE_BRANCHES: dict[str, int] = {
    "cli.commands.convert.convert_command": 16,
    "storage.faults.error_from_status": 20,
    "cli.commands.index.index_command": 17,
    "cli.formats.parquet.ParquetEncoder._value": 17,
    "pipeline.elements.codec._Packing.node": 17,
    "example.values._of_leaves": 16,
    "pipeline.elements.codec._Unpacking.value": 16,
    "pipeline.elements.codec.bytes_of": 16,
    "pipeline.elements.codec._Packing._columns": 15,
    "shards.manifest.check_shards": 14,
    "storage.backends.http.responses._read_past_aiohttp": 14,
    "cli.commands.doctor.run_checks": 13,
    "cli.commands.reshard.check_plan": 13,
    "example.parse.parse_sequences": 13,
    "pipeline.elements.columns.as_array": 13,
    "pipeline.loading.convert_leaves": 13,
}

MAX_POSITIONAL = 5

MANY_POSITIONAL: dict[str, int] = {}
"""Files with calls that have more positional arguments, and how many such calls."""


def compare(found: Mapping[str, int], limit: int, listed: Mapping[str, int], advice: str) -> None:
    """Checks numbers against a limit, and the list of those above it, which may only shrink."""
    for name, number in found.items():
        allowed = listed.get(name, limit)
        assert number <= allowed, f"{name} has {number}, and {allowed} are allowed: {advice}"
    for name, number in listed.items():
        now = found.get(name, 0)
        assert now == number, f"{name} has {now} now: " + (
            f"write {now} in the list" if now > limit else "take it off"
        )


def test_few_mutable_fields() -> None:
    compare(
        {name: len(fields) for name, fields in fields_of_objects().items()},
        MAX_FIELDS,
        MORE_FIELDS,
        "split the class: a pure decision, the I/O, and the counting each stand alone; or let it "
        "have a part instead of a base",
    )
    assert len(MORE_FIELDS) <= 10
    assert all(number <= 14 for number in MORE_FIELDS.values())


def fields_of_objects() -> dict[str, set[str]]:
    """The fields of the objects of each class: its own, and those of its bases in the package."""
    own = fields_of_classes()
    bases = bases_of_classes()

    def fields(name: str) -> set[str]:
        return own[name].union(*(fields(base) for base in bases[name]))

    return {name: fields(name) for name in own}


@cache
def bases_of_classes() -> Mapping[str, list[str]]:
    """The bases in the package of each class, by dotted names without "streamrec."."""
    found = {}
    for module in modules().values():
        meaning = imported_names(module)
        place = module.name.removeprefix("streamrec.")
        for name, node in definitions_in(module, in_functions=True):
            if isinstance(node, ast.ClassDef):
                written = (
                    dotted(base.value if isinstance(base, ast.Subscript) else base)
                    for base in node.bases
                )
                found[name] = [class_named(base, meaning, place) for base in written if base]
    return {
        name: [base for base in bases if base in found and base != name]
        for name, bases in found.items()
    }


def class_named(written: str, meaning: Mapping[str, str], place: str) -> str:
    """The dotted name, without "streamrec.", of a class as a module names it."""
    first, _, rest = written.partition(".")
    name = meaning.get(first, f"streamrec.{place}.{first}") + (rest and f".{rest}")
    while name in lazy_names():
        name = lazy_names()[name]
    return name.removeprefix("streamrec.")


def fields_of_classes() -> dict[str, set[str]]:
    """The attributes that the methods of each class assign or delete on self."""
    return {
        name: {
            target.attr
            for method in node.body
            if isinstance(method, Function)
            for target in ast.walk(method)
            if isinstance(target, ast.Attribute)
            and isinstance(target.ctx, ast.Store | ast.Del)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        }
        for name, node in definitions()
        if isinstance(node, ast.ClassDef)
    }


def test_few_branches() -> None:
    compare(
        {name: branches_of(node) for name, node in definitions() if isinstance(node, Function)},
        MAX_BRANCHES,
        MORE_BRANCHES,
        "split the function, or give its cases a table",
    )


def branches_of(function: Function) -> int:
    """The points at which a function takes one of two ways; those of inner functions are theirs."""
    count = 0
    below: list[ast.AST] = list(function.body)
    while below:
        node = below.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                continue
            case ast.If() | ast.IfExp() | ast.For() | ast.AsyncFor() | ast.While():
                count += 1
            case ast.ExceptHandler() | ast.match_case():
                count += 1
            case ast.BoolOp(values=values):
                count += len(values) - 1
            case ast.comprehension(ifs=conditions):
                count += len(conditions)
        below += ast.iter_child_nodes(node)
    return count


def test_few_positional_arguments() -> None:
    """Functions that take any number of arguments, and those of other libraries, do not count."""
    names = {name.rpartition(".")[2]: node for name, node in definitions()}
    variadic = {
        name for name, node in names.items() if isinstance(node, Function) and node.args.vararg
    }
    ours = {*names, "cls"} - variadic
    found = Counter(
        str(module)
        for module in modules().values()
        for node in module.nodes
        if isinstance(node, ast.Call)
        and called_name(node) in ours
        and not is_foreign(node, module)
        and sum(not isinstance(argument, ast.Starred) for argument in node.args) > MAX_POSITIONAL
    )
    compare(
        found,
        0,
        MANY_POSITIONAL,
        f"no call of ours has more than {MAX_POSITIONAL} positional arguments: name them",
    )


def is_foreign(call: ast.Call, module: Module) -> bool:
    """Whether a function of another library's module is called: `struct.pack(...)`."""
    owner = getattr(getattr(call.func, "value", None), "id", None)
    others = {name for name in imports(module) if not name.startswith("streamrec")}
    return owner in others


def called_name(call: ast.Call) -> str:
    return str(getattr(call.func, "id", getattr(call.func, "attr", "")))


def definitions(*, in_functions: bool = True) -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """Classes and functions with their dotted names, without "streamrec."."""
    for module in modules().values():
        yield from definitions_in(module, in_functions=in_functions)


def definitions_in(
    module: Module, *, in_functions: bool
) -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """Those of one module."""

    def walk(nodes: Iterable[ast.AST], name: str) -> Iterator[tuple[str, ast.ClassDef | Function]]:
        for node in nodes:
            if not isinstance(node, ast.ClassDef | Function):
                yield from walk(ast.iter_child_nodes(node), name)
                continue
            yield f"{name}.{node.name}", node
            if in_functions or isinstance(node, ast.ClassDef):
                yield from walk(node.body, f"{name}.{node.name}")

    yield from walk(module.tree.body, module.name.removeprefix("streamrec."))


def test_few_names_with_two_meanings() -> None:
    names = Counter(
        name.rpartition(".")[2] for name, node in definitions() if isinstance(node, ast.ClassDef)
    )
    repeated = [name for name, count in names.items() if count > 1]
    assert len(repeated) <= 5, f"{repeated}: give the new class a name of its own"


# Private names of other libraries.


def test_few_private_names_of_other_libraries() -> None:
    places: dict[str, set[str]] = {}
    for module in modules().values():
        for name in private_names(module) - our_private_names():
            places.setdefault(name, set()).add(str(module))
    assert len(places) <= 20, f"{sorted(places)}: use what the library documents"
    compare(
        {name: len(files) for name, files in places.items()},
        1,
        {
            "_strip_protocol": 4,
            "_s3": 3,
            "_call_s3": 2,
            "_location": 2,
            "_request_signer": 2,
            # fsspec's name for async programs; the storage reads with it, and `bench` compares.
            "_cat_file": 2,
        },
        "let one file use it, and give the others a function",
    )


PRIVATE = re.compile(r"_[a-zA-Z]\w*")


def private_names(module: Module) -> set[str]:
    """Private attributes that a file uses, and private names that it imports from elsewhere."""
    used = set()
    for node in module.nodes:
        match node:
            case ast.Attribute(attr=name) if PRIVATE.fullmatch(name):
                used.add(name)
            case ast.ImportFrom(module=str(source), names=names) if source[:9] != "streamrec":
                used |= {alias.name for alias in names if PRIVATE.fullmatch(alias.name)}
    return used


@cache
def our_private_names() -> set[str]:
    ours = set()
    for module in modules().values():
        for node in module.nodes:
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    ours.add(name)
                case ast.AsyncFunctionDef(name=name) | ast.alias(asname=str(name)):
                    ours.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    ours.add(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    ours.add(name)
                case ast.Constant(value=str(text)) if PRIVATE.fullmatch(text):
                    ours.add(text)  # __slots__
    return ours


# Docstrings.

DOCUMENTED = 0.9


def test_public_definitions_have_docstrings() -> None:
    """Public is what has no underscore in its path, and is not inside a function. What overrides a
    documented method of a class of the package needs none.
    """
    documented = 0
    missing = []
    for name, node in definitions(in_functions=False):
        if any(part.startswith("_") for part in name.split(".")) or is_overload(node):
            continue
        if ast.get_docstring(node):
            documented += 1
        elif not overrides(name):
            missing.append(name)
    share = documented / (documented + len(missing))
    listed = "\n".join(missing)
    assert share >= DOCUMENTED, (
        f"{share:.1%} have a docstring; say what these give and raise:\n{listed}"
    )


def is_overload(node: ast.ClassDef | Function) -> bool:
    return any(getattr(each, "id", "") == "overload" for each in node.decorator_list)


def overrides(name: str) -> bool:
    """Whether a method of a base class in the package has this name and a docstring."""
    owner, _, method = name.rpartition(".")
    return any(method in documented_methods(base) for base in bases_of(owner.rpartition(".")[2]))


@cache
def classes() -> Mapping[str, list[ast.ClassDef]]:
    found: dict[str, list[ast.ClassDef]] = {}
    for name, node in definitions():
        if isinstance(node, ast.ClassDef):
            found.setdefault(name.rpartition(".")[2], []).append(node)
    return found


def bases_of(name: str) -> set[str]:
    """The names of the classes of the package that a class inherits from."""
    found: set[str] = set()
    for node in classes().get(name, ()):
        for base in node.bases:
            base = base.value if isinstance(base, ast.Subscript) else base
            direct = getattr(base, "id", getattr(base, "attr", ""))
            if direct in classes() and direct != name:
                found |= {direct} | bases_of(direct)
    return found


def documented_methods(name: str) -> set[str]:
    return {
        method.name
        for node in classes()[name]
        for method in node.body
        if isinstance(method, Function) and ast.get_docstring(method)
    }


# Public names, and what importing them loads.


def test_the_number_of_public_names() -> None:
    count = len(streamrec.__all__)
    assert count <= 60, f"{count} names are at the top: put the new one into a module"


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
        for public in names_in(names) if module != name else ():
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


@pytest.mark.parametrize(
    "room",
    [
        "errors",
        "images",
        "notebook",
        "opentelemetry",
        "prometheus",
        pytest.param("ray", marks=pytest.mark.peer),
        "tfds",
    ],
)
def test_completion_shows_only_public_names(room: str) -> None:
    if room == "ray":
        pytest.importorskip("ray")
    module = import_module(f"streamrec.{room}")
    assert dir(module) == sorted(module.__all__)


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
    "streamrec.shards.shard_output",
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
