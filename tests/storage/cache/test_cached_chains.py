"""Random chains over a cache of random size that is on, off, damaged, emptied and deleted between
their runs, and while they run: elements are those of a run without a cache, and a state resumes
with any cache, whichever there was when it was saved.

`--hypothesis-profile=many` runs thousands of them.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from streamrec import Dataset, TFRecordDataset, encode_records, write_index_sync
from streamrec.pipeline.engine.states import state_of
from streamrec.storage import cache_settings
from streamrec.storage.cache import close_caches, names, packs, spans, store, writer
from streamrec.storage.cache.contents import trim_cache
from tests.effort import example_count
from tests.pipeline.chains import RECORD, RECORDS, ChainOfBoth, add_stages, combine, read
from tests.servers.resuming import plain, run
from tests.servers.small_store import SmallStore, small_store
from tests.storage.cache.test_cached_reads import blocks, damage

ENOUGH: Final = 90
"""Chains may repeat what they repeat: at most this many elements of one are looked at."""

RESUMES: Final = 3
"""How often each chain is resumed."""

EVERYTHING: Final = 4_000
"""All shards, with the feet of their blocks, take fewer bytes."""

MANY: Final = settings.get_current_profile_name() == "many"

VARIABLES: Final = ("STREAMREC_CACHE_DIR", "STREAMREC_CACHE_BYTES")


@pytest.fixture(scope="module")
def chain_store() -> Iterator[SmallStore]:
    """The shards that chains read, with an index, in a store that the environment names."""
    objects = {f"d/s-{shard}": encode_records(records) for shard, records in enumerate(RECORDS)}
    with small_store(objects) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", running.endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "k")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "s")
        write_index_sync([running.url("s3", name) for name in sorted(objects)], "s3://b/d/index")
        yield running


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Sets how many bytes a block has at most, and an object that is written into a pack.

    Each file counts its bytes and no more, so that a limit of a few hundred bytes means something.
    """

    def set_sizes(block: int, short: int) -> None:
        monkeypatch.setattr(cache_settings, "SEGMENT_BYTES", 1)  # the least limit
        monkeypatch.setattr(spans.segment_end, "__defaults__", (block,))
        for module in (packs, store, writer):
            monkeypatch.setattr(module, "SHORT_BYTES", min(short, block))
        for module in (names, packs):
            monkeypatch.setattr(module, "MIN_CHARGE", 1)
        monkeypatch.setattr(names, "CHARGE", 1)

    return set_sizes


def shuffled(files: list[str], seed: int, block: int) -> ChainOfBoth:
    """All records in an order that only an index gives."""
    dataset = TFRecordDataset(files).global_shuffle(seed, index="s3://b/d/index", block_bytes=block)
    return ChainOfBoth(
        dataset, lambda tf: None, RECORD, f"global_shuffle({seed}, {block})", ordered=False
    )


@st.composite
def stored_chains(draw: st.DrawFn, files: list[str]) -> ChainOfBoth:
    """Chains that read shards, in order or not: of one source, or of two that are joined."""
    sources = st.one_of(
        st.builds(read, st.just(files), st.integers(1, 5), st.integers(1, 4), st.just(False)),
        st.builds(shuffled, st.just(files), st.integers(0, 9), st.sampled_from([1, 60, 1000])),
    )
    made = draw(sources.flatmap(lambda source: add_stages(source, 4, False)))
    if not draw(st.integers(0, 2)):
        other = draw(sources.flatmap(lambda source: add_stages(source, 2, False)))
        way = draw(st.sampled_from(["join", "sample", "choose"]))
        made = draw(add_stages(combine(made, other, False, way), 2, False))
    return made


@dataclass(frozen=True)
class CacheChanges:
    """What happens to a cache: each of its methods without an underscore is one change.

    Attributes:
        directory: The cache.
        chance: Chooses files and bytes.
    """

    directory: Path
    chance: random.Random

    def nothing(self) -> None:
        """The next run finds what this process knows."""

    def new_process(self) -> None:
        """The next run is one of a new process."""
        close_caches()

    def damage(self) -> None:
        for path in filter(Path.is_file, blocks(self.directory)):
            damage(path, self.chance)

    def flip(self) -> None:
        """One bit of each file, which only a checksum finds."""
        for path in filter(Path.is_file, blocks(self.directory)):
            data = bytearray(path.read_bytes())
            if data:
                data[self.chance.randrange(len(data))] ^= 1 << self.chance.randrange(8)
                path.write_bytes(data)

    def lose_half(self) -> None:
        for path in filter(Path.is_file, blocks(self.directory)):
            if self.chance.random() < 0.5:
                path.unlink()

    def evict(self) -> None:
        """As `streamrec cache --trim` of another process does, when the job has ended."""
        close_caches()
        # what is deleted under a writer may leave a directory that is not a cache
        if (self.directory / names.MARKER).exists():
            trim_cache(self.directory, self.chance.randrange(EVERYTHING))

    def delete(self) -> None:
        shutil.rmtree(self.directory, ignore_errors=True)

    def spoil_count(self) -> None:
        """What a crash may leave in the file that counts bytes."""
        close_caches()
        usage = self.directory / names.USAGE
        if usage.exists():
            usage.write_bytes(self.chance.randbytes(self.chance.randrange(30)))


MEANWHILE: Final = ("nothing", "flip", "damage", "lose_half", "delete")
"""Changes that may happen while a run reads."""

BETWEEN: Final = (*MEANWHILE, "new_process", "evict", "spoil_count")


def run_with_change(
    dataset: Dataset[Any], state: Any, most: int, at: int, change: Callable[[], None]
) -> tuple[list[Any], list[Any]]:
    """As `run` of `tests.servers.resuming`, with a change before one of the elements."""
    with dataset.iterate(state) as iterator:
        states, elements = [iterator.state_dict()], []
        for number, element in enumerate(islice(iterator, most)):
            if number == at:
                change()
            elements.append(plain(element))
            states.append(json.loads(json.dumps(iterator.state_dict())))
    return elements, states


@pytest.mark.timeout(7200)  # for thousands of chains; forty take seconds
@given(data=st.data())
@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=5000 if MANY else example_count(240),
)
def test_random_chains_resume_anywhere_with_any_cache(
    chain_store: SmallStore,
    small_files: Callable[[int, int], None],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    files = [chain_store.url("s3", f"d/s-{shard}") for shard in range(len(RECORDS))]
    made: ChainOfBoth = data.draw(stored_chains(files), "chain")
    budget = data.draw(st.sampled_from([1 << 28, 1 << 16, 1 << 13]), "budget")
    dataset = made.ours.with_options(memory_budget=budget)
    state: Any = state_of(dataset.chain, 0, {"seed": data.draw(st.integers(0, 9), "seed")})
    try:
        expected, _ = run(dataset, state, ENOUGH)
    except ValueError as error:
        # a global shuffle whose blocks are larger than its part of the budget
        assume("memory budget" not in str(error))
        raise

    small_files(data.draw(st.integers(40, 500), "block"), data.draw(st.integers(0, 300), "short"))
    chance = random.Random(data.draw(st.integers(0, 99), "chance"))
    changes = CacheChanges(tmp_path_factory.mktemp("c") / "cache", chance)
    begin = 0
    for _ in range(1 + RESUMES):
        with pytest.MonkeyPatch.context() as patch:
            limit = data.draw(st.none() | st.integers(1, EVERYTHING), "limit; None: off")
            if limit is not None:
                values = os.fspath(changes.directory), str(limit)
                for variable, value in zip(VARIABLES, values, strict=True):
                    patch.setenv(variable, value)
            meanwhile = data.draw(st.sampled_from(MEANWHILE), "meanwhile")
            at = data.draw(st.integers(0, 20), "at")
            change = getattr(changes, meanwhile)
            event(f"{'off' if limit is None else 'on'}, meanwhile {meanwhile}")
            found, states = run_with_change(dataset, state, ENOUGH - begin, at, change)
        assert found == expected[begin:]
        stop = data.draw(st.integers(0, len(found)), "stop")
        state = states[stop]
        begin += stop
        between = data.draw(st.sampled_from(BETWEEN), "between")
        event(f"between: {between}")
        getattr(changes, between)()
    close_caches()
