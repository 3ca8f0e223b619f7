"""README.md and the pages of docs/: their snippets run, the site builds, and its links lead
somewhere.
"""

import contextlib
import doctest
import gc
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
import s3fs

import streamrec
from benchmarks.faults import DOCS, ROWS, STORES, measure_all, tables, with_tables
from benchmarks.table import load
from tests.adapters.conftest import client_environment
from tests.cli.test_page import BROWSER, FLAGS
from tests.pages import FENCE, ROOT, Block, blocks, pages, peers_in, run, run_python
from tests.runs import in_new_interpreter
from tests.servers.real import Store

PROGRAMS = {"pytorch.md", "jax.md", "ray.md", "keras.md"}
"""Pages whose snippets run as a program of their own: in `test_program`, and ray.md and keras.md in
tests/adapters."""

SNIPPETS = [
    pytest.param(page, marks=[pytest.mark.peer] if any(map(peers_in, blocks(page))) else [])
    for page in pages()
    if page.name not in PROGRAMS
    and any(block.kind in {"python", "console"} for block in blocks(page))
]


def identity(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def bucket(s3_store: Store) -> Iterator[dict[str, str]]:
    """An empty bucket, `s3://my-bucket`, and the environment in which it is found without storage
    options.
    """
    client = s3fs.S3FileSystem(**s3_store.options, use_listings_cache=False)
    client.mkdir("my-bucket")
    yield client_environment(s3_store)
    client.rm("my-bucket", recursive=True)


@pytest.mark.timeout(600)  # each command starts an interpreter
@pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated:UserWarning"
)  # torchdata, with torch 2.13
@pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning"
)  # a DataLoader's workers
@pytest.mark.parametrize("page", SNIPPETS, ids=identity)
def test_snippets(
    page: Path, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each snippet runs unchanged, in one directory, and prints what the page says."""
    monkeypatch.chdir(tmp_path)
    variables = request.getfixturevalue("bucket") if "my-bucket" in page.read_text() else {}
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if page.name in {"README.md", "index.md"}:  # they begin with the shards that a reader has
        labels = streamrec.Dataset.from_tensor_slices({"label": range(1000)})
        labels.write_sync("s3://my-bucket/train-{shard:05d}.tfrecord", num_shards=4)
    names = {"__name__": "__main__"}
    run(page, {"COLUMNS": "100", "NO_COLOR": "1"}, names)
    names.clear()
    gc.collect()  # ends the workers of a loader that the page has not closed


def missing_peers(block: Block) -> list[str]:
    return [peer for peer in peers_in(block) if importlib.util.find_spec(peer) is None]


@pytest.mark.peer
@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["pytorch.md", "jax.md"])
def test_program(tmp_path: Path, s3_store: Store, page: str) -> None:
    """A page's snippets run, one after the other, as a program whose data is in S3."""
    found = [block for block in blocks(ROOT / "docs" / page) if block.kind == "python"]
    snippets = [block for block in found if not block.title and not missing_peers(block)]
    if missing := missing_peers(found[0]):
        pytest.skip(f"not installed: {', '.join(missing)}")
    program = "\n".join(block.text for block in snippets)
    assert program.count('"data/') >= 2
    programs = {"page.py": program}
    grain = [
        block for block in found if block.title == "grain_workers.py" and not missing_peers(block)
    ]
    programs |= {str(block.title): block.text for block in grain}
    for name, text in programs.items():
        (tmp_path / name).write_text(text.replace('"data/', f'"{s3_store.url}/{page}/'))
    devices = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    environment = {**os.environ, **client_environment(s3_store), **devices}
    for name in programs:
        done = subprocess.run(
            [sys.executable, name], cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "output", "error"),
    [
        ("1 + 1  # -> 2\nprint(3)\n", "3\n", None),
        ("1 + 1  # -> 3\n", "", "line 1 printed\n2\nbut the page says\n3\n"),
        ("print(1)\n# -> 1\n#    2\n", "", "line 1 printed\n1\nbut the page says\n1\n2\n"),
        ("print(3)\n", "", "printed\n3\nbut the page says\n"),
        ("x = 3  # -> 3\n", "", "printed\nbut the page says\n3\n"),
    ],
)
def test_a_wrong_output_fails(text: str, output: str, error: str | None) -> None:
    with (
        pytest.raises(AssertionError, match=re.escape(error)) if error else contextlib.nullcontext()
    ):
        run_python(Block("python", "", text, 1), Path("page.md"), {}, output)


@pytest.mark.parametrize("page", pages(), ids=identity)
def test_code_fits_the_site(page: Path) -> None:
    """Code has no line that the site cuts, and no prompt that is copied with it."""
    lines = [(block.kind, line) for block in blocks(page) for line in block.text.splitlines()]
    code = [
        line
        for kind, line in lines
        if kind in {"python", "bash"} or (kind == "console" and line.startswith("$ "))
    ]
    assert [line for line in code if len(line) > 76 or line.startswith(">>> ")] == []


@pytest.mark.parametrize("page", pages(), ids=identity)
def test_paragraphs_are_short(page: Path) -> None:
    """No paragraph is longer than six lines of 120 characters."""
    text = FENCE.sub("\n\n", page.read_text())
    paragraphs = [part.strip() for part in re.split(r"\n\n|\n(?=- |\d+\. )", text)]
    prose = [part for part in paragraphs if not part.startswith("|")]
    long = [part[:60] for part in prose if part.count("\n") >= 6 or len(part) > 6 * 120]
    assert not long, f"{identity(page)}: paragraphs of more than six lines: {long}"


@pytest.mark.parametrize("page", pages(), ids=identity)
def test_files_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"`((?:streamrec|tests|docs|benchmarks|examples|fuzz)/[\w./-]+)`", text):
        assert (ROOT / name).exists(), f"{page.name} names {name}"
    for name in re.findall(
        r"`((?:storage|pipeline|shards|tfrecord|example|kernels|bridge|cli)/[\w./-]+\.(?:py|c|h))`",
        text,
    ):
        assert (ROOT / "streamrec" / name).exists(), f"{page.name} names {name}"
    for name in re.findall(r"\]\((?!https?:|#)([^)#\s]+)", text):
        assert (page.parent / name).exists(), f"{page.name} links to {name}"
    for names, file in re.findall(r"((?:`\w+`(?:, | and |))+) in `(streamrec/[\w/.]+)`", text):
        source = (ROOT / file).read_text()
        missing = [
            name for name in re.findall(r"\w+", names.replace(" and ", " ")) if name not in source
        ]
        assert not missing, f"{page.name} names {missing} in {file}"
    if "internals" in str(page):  # also files that are named without their folder
        known = {
            path.name
            for folder in ("streamrec", "tests", "benchmarks")
            for path in (ROOT / folder).rglob("*.*")
        }
        assert [
            name
            for name in re.findall(r"`(?:[\w/]+/)?(\w+\.(?:py|c|h))`", text)
            if name not in known
        ] == []


VERB = ROOT / "docs" / "contributing.md"


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package and its tests."""
    folder = tmp_path_factory.mktemp("contributor")
    for name in ("streamrec", "tests", "docs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


PLACES = {
    "streamrec/pipeline/stages/select.py": r"\Z",
    "streamrec/pipeline/dataset.py": r"(?=    def take\()",
    "tests/pipeline/chains.py": r"(?<=\n)(?=\n\ndef shards\()",
    "tests/pipeline/test_verbs.py": r'(?<=\n)(?=\n\n@pytest.mark.usefixtures\("both_layouts"\))',
}
"""Where each piece of code of the page goes: at the end, before `take`, after the lists."""

MISTAKES = {
    "counts": {
        "def cardinality": "def counted",
        "picks: ClassVar[bool]": "picked: ClassVar[bool]",
        "-seen % self.n": "0",
        "ds.every(n)": "ds.take(n)",
    },
    "remembers": {
        "picks: ClassVar[bool]": "picked: ClassVar[bool]",
        "self._last = digests[-1]": "pass",
        "digests.__getitem__": "lambda _: digests[0]",
        "def fail": "def failed",
        'UNCOUNTED.add("DropRepeats")': "",
    },
}
"""What a contributor may forget of each recipe."""


def recipe(heading: str) -> list[Block]:
    """The files of a section of the page."""
    text = VERB.read_text()
    lines = [text.count("\n", 0, found.start()) for found in re.finditer("^## ", text, re.M)]
    begin = text.count("\n", 0, text.index(f"## {heading}\n"))
    end = min((line for line in lines if line > begin), default=text.count("\n") + 1)
    return [block for block in blocks(VERB) if block.title and begin < block.line < end]


def followed(block: Block, text: str) -> str:
    """A file after a step of a recipe: with its code at its place, or its lines in a list."""
    assert block.title
    if block.kind == "diff":
        for hunk in block.text.split("@@\n"):
            lines = hunk.splitlines(keepends=True)
            old = "".join(line[1:] for line in lines if line[0] in " -")
            assert text.count(old) == 1, f"{block.title} has {text.count(old)} times\n{old}"
            text = text.replace(old, "".join(line[1:] for line in lines if line[0] in " +"))
        return text
    method = block.title.endswith("dataset.py")
    code = textwrap.indent(block.text, "    ") + "\n" if method else f"\n{block.text}"
    [place] = re.finditer(PLACES[block.title], text)
    return f"{text[: place.start()]}{code}{text[place.start() :]}"


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("name", "forgotten"),
    [
        pytest.param(name, mistake, marks=[pytest.mark.thorough] if mistake else [])
        for name, mistakes in MISTAKES.items()
        for mistake in ("", *mistakes)
    ],
)
def test_the_recipe_for_a_verb_works_word_by_word(copy: Path, name: str, forgotten: str) -> None:
    """The page of contributors, word by word; then what it warns of is forgotten, and a test
    fails.
    """
    steps = recipe(f"A verb that {name}")
    assert len(steps) == 5
    for block in steps:
        new = block.text.replace(forgotten, MISTAKES[name][forgotten]) if forgotten else block.text
        step = replace(block, text=new)
        (copy / str(step.title)).write_text(followed(step, (ROOT / str(step.title)).read_text()))
    changed = [str(block.title) for block in steps]
    if not forgotten:
        subprocess.run([sys.executable, "-m", "ruff", "check", *changed], cwd=copy, check=True)
    verb = {"counts": "every", "remembers": "drop_repeats"}[name]
    words = f"each_verb or each_stage or chunks or {verb}"
    files = ["tests/pipeline/test_verbs.py", "tests/pipeline/engine/test_going_on.py"]
    if not forgotten:
        words += " or fields or branches or positional"
        files.append("tests/test_structure.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", words, *files]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == (1 if forgotten else 0), done.stdout


@pytest.mark.timeout(600)
def test_the_recipe_for_a_backend_works_word_by_word(copy: Path) -> None:
    """The page of contributors, word by word; the new backend passes the tests of all backends."""
    module, row, tests = recipe("Add a backend")
    for block in (module, tests):
        (copy / str(block.title)).write_text(block.text)
    table = ROOT / str(row.title)
    (copy / str(row.title)).write_text(followed(row, table.read_text()))
    changed = [str(block.title) for block in (module, row, tests)]
    subprocess.run([sys.executable, "-m", "ruff", "check", *changed], cwd=copy, check=True)
    files = [str(tests.title), "tests/storage/test_store_kinds.py", "tests/test_structure.py"]
    words = "Sqlite or kinds or fields or branches or positional"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", words, *files]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_the_guide_and_the_example_are_the_same_service() -> None:
    name = "examples/service/minimal.py"
    [code] = [
        block.text for block in blocks(ROOT / "docs" / "guides" / "serve.md") if block.title == name
    ]
    assert code == (ROOT / name).read_text()


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 120


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of `make docs`: a link to nothing, or a name that the reference does not find, is an
    error.
    """
    for package in ("mkdocs", "material", "mkdocstrings"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("pages") / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "REPOSITORY_URL": "https://example.org/streamrec"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=170
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_site_has_versions_links_and_groups(site: Path) -> None:
    page = (site / "tutorial" / "index.html").read_text()
    assert f"streamrec {version('streamrec')}" in page
    assert 'href="https://example.org/streamrec"' in page
    assert page.count("md-footer__link--prev") == page.count("md-footer__link--next") == 1
    tabs = re.findall(r'md-tabs__link">\s*(\w+)', page)
    assert tabs == ["Start", "Guides", "Features", "Reference", "Internals"]


MEASURE = """<body><script>
const cut = [];
async function measure(page, width) {
  const frame = document.createElement("iframe");
  frame.sandbox = "allow-same-origin";
  frame.style = `width: ${width}px; height: 900px`;
  frame.src = page;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const blocks = [...frame.contentDocument.querySelectorAll("pre > code")].filter(code => code.offsetParent);
  const diagram = code => code.closest(".diagram");
  for (const code of blocks) {
    const over = code.scrollWidth - code.clientWidth;
    if (over > 1 && !diagram(code)) cut.push(`${page} at ${width}: ${over} px of ${code.textContent.slice(0, 50)}`);
  }
  const wide = frame.contentDocument.documentElement.scrollWidth;
  if (wide > width || !blocks.length) cut.push(`${page} at ${width}: ${wide} px, ${blocks.length} blocks`);
  frame.remove();
}
(async () => {
  for (const page of PAGES) for (const width of [1366, 390]) await measure(page, width);
  document.title = "done: " + JSON.stringify(cut);
})();
</script></body>"""  # noqa: E501


@pytest.mark.skipif(BROWSER is None, reason="apt-get install chromium")
def test_code_is_never_cut_in_a_browser(site: Path) -> None:
    """At the widths of a laptop and of a phone. Only diagrams scroll."""
    found = sorted(page for page in site.rglob("*.html") if "<pre" in page.read_text())
    pages = [str(page.relative_to(site)) for page in found]
    (site / "measure.html").write_text(MEASURE.replace("PAGES", json.dumps(pages)))
    handler = partial(SimpleHTTPRequestHandler, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/measure.html"
        command = [str(BROWSER), *FLAGS, f"--user-data-dir={site.parent / 'browser'}", "--dump-dom"]
        command += ["--virtual-time-budget=60000", "--window-size=1500,1000", url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=170)
        server.shutdown()
    assert "<title>done: []</title>" in done.stdout, done.stdout[:3000]


SEARCHED = {
    "trainer": "guides/trainer/",
    "keras": "guides/keras/",
    "rlds": "guides/tfds/",
    "tfds": "guides/tfds/",
    "packing": "guides/language-models/",
    "append": "guides/append/",
    "rotate": "guides/append/",
    "local cache": "guides/epochs/",
    "steps per epoch": "guides/recipes/",
    "gradient accumulation": "guides/recipes/",
    "mixed precision": "guides/recipes/",
    "license": "#license-and-security",
    "security": "#license-and-security",
}
"""What people search for, and the page that answers it."""


def test_the_search_finds_the_page_for_each_word(site: Path) -> None:
    """It ranks titles a thousand times as high as text. Words are divided at spaces and hyphens."""
    found = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    for searched, page in SEARCHED.items():
        titles = [entry["title"] for entry in found if entry["location"].startswith(page)]
        words = [{word.strip(",:") for word in title.lower().split()} for title in titles]
        assert any(set(searched.split()) <= each for each in words), (searched, titles)


def test_the_page_is_made_from_the_data() -> None:
    page = DOCS.read_text()
    assert with_tables(page, tables(load("faults"))) == page


def test_the_data_is_whole_and_streamrec_never_hands_on_wrong_data() -> None:
    rows = load("faults")["rows"]
    assert {(row["store"], row["fault"], row["client"]) for row in rows} == {
        (store, name, client)
        for store, clients in STORES.items()
        for name in ROWS
        for client in clients
    }
    assert {row["outcome"] for row in rows if row["client"] == "streamrec"} <= {"data", "error"}


@pytest.mark.thorough
def test_the_program_of_the_page_of_faults_measures_each_client_and_store() -> None:
    found = {(row["store"], row["client"]): row for row in measure_all(["reset"], parallel=3)}
    assert found.keys() == {
        (store, client) for store, clients in STORES.items() for client in clients
    }
    assert {row["outcome"] for row in found.values()} == {"data"}
    assert found["s3", "streamrec"]["requests"] == found["gcs", "streamrec"]["requests"] == 2


PACKAGE = Path(streamrec.__file__).parent
NEEDS = {"torch": "torch", "jax": "jax", "grain": "grain"}
"""The packages that a module of an adapter needs, which are no part of the usual environment."""

APART = {"jax", "grain"}
"""Those that are imported in a process of their own: with JAX in a process, each fork that a later
test makes warns."""


def needs(name: str) -> str | None:
    return NEEDS.get(name.split(".")[1]) if "." in name else None


def modules_with_examples() -> list[str]:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if ">>> " in path.read_text()]
    names = [
        ".".join(("streamrec", *path.relative_to(PACKAGE).with_suffix("").parts)) for path in paths
    ]
    return [name.removesuffix(".__init__") for name in names]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.peer] if needs(name) else [])
        for name in modules_with_examples()
    ],
)
def test_examples_in_docstrings(name: str) -> None:
    package = needs(name)
    if package and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    if package in APART:
        code = (
            f"import doctest, {name} as module; failed, tried = doctest.testmod(module); assert "
            "tried and not failed"
        )
        in_new_interpreter(code)
        return
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried, f"{name} has examples that doctest does not find"
    assert not failed
