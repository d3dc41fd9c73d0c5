"""A language-modelling task of toy documents."""

import datasets
import pyarrow as pa

from lra_bench.contracts import TaskSpec
from lra_bench.data.batches import Rows

SPEC = TaskSpec(
    name="toy",
    version="1",
    kind="language_modeling",
    direction="causal",
    classes=256,
    vocabulary_size=256,
    train_length=64,
)


def rows_of(documents, spec=SPEC):
    """Return ``Rows`` of documents, which are lists of tokens."""
    return Rows(
        datasets.Dataset(pa.table({"tokens": pa.array(documents, pa.list_(pa.int32()))}), fingerprint="t"), spec
    )
