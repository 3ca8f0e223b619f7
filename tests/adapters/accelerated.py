"""One of several processes that read through Accelerate or the Trainer of transformers: prints, for
each way, the ids that this process got or the error, as a line of JSON.

RANK=0 WORLD_SIZE=2 MASTER_ADDR=... MASTER_PORT=... python -m tests.adapters.accelerated \
    accelerate|trainer DIRECTORY
"""

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader

from streamrec import Dataset, FixedLenFeature, TFRecordDataset
from streamrec.torch import IterableDataset, Loader

FEATURES = {"id": FixedLenFeature([], "int64")}

NamedRun = tuple[str, Callable[[], Any]]


def single_examples(records: Dataset[Any]) -> Dataset[Any]:
    return records.batch(8).parse_example(FEATURES).unbatch()


def batches_with_names(records: Dataset[Any]) -> Dataset[Any]:
    """Each example has a byte string, too."""
    return records.batch(10).parse_example({**FEATURES, "name": FixedLenFeature([], "string")})


def collate_with_names(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A `collate_fn` that makes a tensor of the byte strings."""
    return {
        "id": torch.tensor([int(example["id"]) for example in examples]),
        "name": torch.tensor([int(example["name"]) for example in examples]),
    }


def named_datasets(directory: str) -> dict[str, Dataset[Any]]:
    records = TFRecordDataset(f"{directory}/*.tfrecord")
    even = records.distribute(even="drop", manifest=f"{directory}/m.json")
    return {
        "whole": single_examples(records),
        "assigned": single_examples(records.distribute()),
        "even": single_examples(even),
        "batches": even.batch(10).parse_example(FEATURES),
        "byte strings": batches_with_names(records).unbatch(),
        "batches of byte strings": batches_with_names(even),
        "ranked": single_examples(records).with_options(rank=0, world_size=2),
        "ranked source": single_examples(records.distribute(rank=1, world_size=2)),
    }


def with_accelerate(directory: str) -> Iterator[NamedRun]:
    found = named_datasets(directory)
    one, two = {"batch_size": 10}, {"batch_size": 10, "num_workers": 2}
    spawned = {
        "batch_size": 10,
        "num_workers": 1,
        "multiprocessing_context": "spawn",
        "persistent_workers": True,  # each takes seconds to start
    }
    for dispatches in (None, True, False):
        options = {"dispatch_batches": dispatches}
        ways = {
            name: (name, one, options)
            for name in ("whole", "assigned", "even", "ranked", "ranked source")
        }
        ways["whole, workers"] = ("whole", two, options)
        ways["even, workers"] = ("even", two, options)
        for name in ("whole", "even"):
            ways[f"{name}, split"] = (name, one, {**options, "split_batches": True})
        for size in (None, 10):
            ways[f"batches, batch_size={size}"] = ("batches", {"batch_size": size}, options)
        if dispatches is not False:
            ways["byte strings"] = ("byte strings", one, options)
            ways["byte strings, workers"] = ("byte strings", {**one, "num_workers": 1}, options)
            ways["byte strings, split"] = ("byte strings", one, {**options, "split_batches": True})
            ways["batches of byte strings"] = (
                "batches of byte strings",
                {"batch_size": None},
                options,
            )
            ways["own collate_fn"] = (
                "byte strings",
                {**one, "collate_fn": collate_with_names},
                options,
            )
        if dispatches is not True:  # that is what None does
            ways["even, spawned worker"] = ("even", spawned, options)
        for way, (name, arguments, how) in ways.items():
            yield f"dispatch={dispatches}: {way}", partial(read, found[name], arguments, how)
    yield "a Loader", partial(read_loader, found["batches"])


def read(dataset: Any, arguments: dict[str, Any], options: dict[str, Any]) -> Any:
    """The length, and the ids of two epochs."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**options))
    loader = accelerator.prepare(DataLoader(IterableDataset(dataset), **arguments))
    try:
        length = len(loader)
    except TypeError:
        length = None
    epochs = [[batch["id"].tolist() for batch in loader] for _ in range(2)]
    return {"len": length, "epochs": epochs}


def read_loader(dataset: Any) -> Any:
    loader = Accelerator(cpu=True).prepare(Loader(dataset))
    epochs = [[batch["id"].tolist() for batch in loader] for _ in range(2)]
    return {"len": len(loader), "epochs": epochs}


class Model(torch.nn.Module):
    """Keeps the ids that it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(1, 1)
        self.batches: list[list[int]] = []

    def forward(self, id: Any) -> dict[str, Any]:
        self.batches.append(id.tolist())
        return {"loss": self.linear(id[:, None] / 400.0).square().mean()}


def with_trainer(directory: str) -> Iterator[NamedRun]:
    found = named_datasets(directory)
    for name, workers, dispatches in [
        ("even", 0, None),
        ("even", 2, None),
        ("even", 0, False),
        ("even", 2, False),
        ("assigned", 0, None),
        ("whole", 0, None),
        ("whole", 0, False),
        ("batches", 0, None),
        ("byte strings", 0, None),
    ]:
        way = f"dispatch={dispatches}: {name}" + (", workers" if workers else "")
        yield way, partial(train, directory, found[name], workers, dispatches)


def train(directory: str, dataset: Any, workers: int, dispatches: bool | None) -> Any:
    """The ids of one epoch; of 20 steps if its length is not known."""
    from transformers import Trainer, TrainingArguments

    shared = IterableDataset(dataset)
    try:
        length = {"num_train_epochs": 1} if len(shared) else {}
    except TypeError:
        length = {"max_steps": 20}
    arguments = TrainingArguments(
        output_dir=f"{directory}/out",
        per_device_train_batch_size=10,
        dataloader_num_workers=workers,
        accelerator_config={"dispatch_batches": dispatches},
        ddp_find_unused_parameters=False,
        remove_unused_columns=False,
        save_strategy="no",
        logging_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        **length,
    )
    model = Model()
    Trainer(model=model, args=arguments, train_dataset=shared).train()
    return {"epochs": [model.batches]}


def main(library: str, directory: str) -> None:
    ways = {"accelerate": with_accelerate, "trainer": with_trainer}[library]
    for name, way in ways(directory):
        try:
            found = way()
        except (ValueError, TypeError, RuntimeError) as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps([name, found]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
