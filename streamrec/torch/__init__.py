"""torch: a Dataset in PyTorch: in a DataLoader (`IterableDataset`), or straight on a device (`Loader`).

    loader = streamrec.torch.Loader(dataset.batch(256).parse_example(features), device="cuda")
    for batch in loader: ...

`Loader` needs no worker processes: fetching, checking and parsing run beside the training loop and do not hold the
interpreter's lock. `IterableDataset` is for a `DataLoader`: where Python code of one's own takes most of the time.
Needs `pip install 'streamrec[torch]'`.
"""

from streamrec.torch.iterable_dataset import IterableDataset, job_state
from streamrec.torch.loader import Loader
from streamrec.torch.tensors import to_tensors

__all__ = ["IterableDataset", "Loader", "job_state", "to_tensors"]
