"""Streams: the concatenated windows of all lanes are the documents."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.contracts import NOT_SCORED, UserError
from lra_bench.data.streams import DocumentStreams, StreamBatches
from lra_bench.data.windows import cut_all
from tests.support.toy_text import rows_of


def numbered(lengths):
    """Return documents of distinct tokens, so that each token identifies its position."""
    return [[1000 * number + place for place in range(length)] for number, length in enumerate(lengths)]


def read_lane(stream, lane, steps):
    """Return the texts of one lane, concatenated from its windows; every reset begins a new text."""
    texts = []
    for step in range(steps):
        batch = stream(step)
        length = int(batch.lengths[lane])
        tokens, targets = batch.inputs[lane], batch.targets[lane]
        assert 0 < length <= stream.window
        assert (targets[length:] == NOT_SCORED).all() and (tokens[length:] == 0).all()
        if batch.extra["reset"][lane]:
            texts.append([int(tokens[0])])
        assert texts[-1][-1] == int(tokens[0])  # the last target of the previous window, unless there was a reset
        texts[-1] += targets[:length].tolist()
    return texts


def joined(texts):
    """Join texts whose last token is the first token of another text."""
    beginning = {text[0]: text for text in texts}
    assert len(beginning) == len(texts)
    inner = {text[-1] for text in texts} & set(beginning)
    documents = []
    for start in set(beginning) - inner:
        document = [start]
        while document[-1] in beginning:
            document += beginning.pop(document[-1])[1:]
        documents.append(document)
    assert not beginning
    return documents


lengths_of_documents = st.lists(st.integers(0, 23), min_size=1, max_size=12)


@given(lengths_of_documents, st.integers(1, 6), st.integers(1, 9), st.integers(0, 99))
@settings(max_examples=120, deadline=None)
def test_concatenated_windows_are_the_documents(lengths, batch_size, window, seed):
    documents = numbered(lengths)
    counts = [-(-(len(document) - 1) // window) for document in documents if len(document) > 1]
    if sum(counts) < batch_size:
        return
    stream = StreamBatches(rows_of(documents), batch_size, window, seed)
    texts = []
    for lane in range(batch_size):
        steps = stream._lane_windows[lane]
        first, second = read_lane(stream, lane, steps), read_lane(stream, lane, 2 * steps)
        assert sorted(second) == sorted(first + first)  # the next epoch of the lane contains the same texts
        texts += first
    usable = [document for document in documents if len(document) > 1]
    assert sorted(joined(texts)) == sorted(usable)  # every place is in exactly one lane
    for document, count in zip(usable, counts, strict=True):
        if count * batch_size <= sum(counts):
            assert document in texts  # not longer than the average lane, so not cut


@pytest.mark.parametrize(("length", "batch_size", "window"), [(1000, 8, 10), (999, 7, 13), (50, 9, 5), (10, 9, 1)])
def test_a_long_document_is_cut_into_one_contiguous_piece_per_lane(length, batch_size, window):
    [document] = numbered([length])
    stream = StreamBatches(rows_of([document]), batch_size, window, seed=0)
    assert max(stream._lane_windows) - min(stream._lane_windows) <= 1
    texts = [read_lane(stream, lane, stream._lane_windows[lane]) for lane in range(batch_size)]
    assert all(len(lane) == 1 for lane in texts)  # one piece, so one reset at the start of the lane
    assert joined([lane[0] for lane in texts]) == [document]
    for lane in range(batch_size):
        wrapped = [bool(stream(step).extra["reset"][lane]) for step in range(3 * stream._lane_windows[lane])]
        assert [step for step, reset in enumerate(wrapped) if reset] == [n * len(wrapped) // 3 for n in range(3)]


def test_lanes_are_balanced_with_one_long_and_many_short_documents():
    stream = StreamBatches(rows_of(numbered([901, *[11] * 10])), 5, 10, seed=0)
    assert max(stream._lane_windows) - min(stream._lane_windows) <= 1


def test_sequences_continue_those_of_the_previous_step():
    stream = StreamBatches(rows_of(numbered([50, 50, 50, 50])), 2, 7, seed=0)
    for step in range(20):
        now, following = stream(step), stream(step + 1)
        for lane in range(2):
            if not following.extra["reset"][lane]:
                assert int(following.inputs[lane, 0]) == int(now.targets[lane, int(now.lengths[lane]) - 1])


def test_shape_and_types():
    batch = StreamBatches(rows_of(numbered([10, 3])), 2, 4, seed=0)(0)
    assert batch.inputs.shape == batch.targets.shape == (2, 4)
    assert batch.inputs.dtype == batch.targets.dtype == batch.lengths.dtype == torch.int64
    assert batch.extra["reset"].dtype == torch.bool and batch.extra["reset"].tolist() == [True, True]


def test_lanes_have_about_the_same_number_of_windows():
    generator = np.random.default_rng(0)
    stream = StreamBatches(rows_of(numbered(generator.integers(2, 90, 200))), 8, 10, seed=0)
    assert max(stream._lane_windows) - min(stream._lane_windows) <= 1


def test_is_a_pure_function_of_seed_and_step():
    rows = rows_of(numbered([9, 30, 4, 17, 8, 21]))
    one, other = StreamBatches(rows, 2, 5, seed=4), StreamBatches(rows, 2, 5, seed=4)
    forward = [one(step).tokens.tolist() for step in range(60)]
    backward = [other(step).tokens.tolist() for step in reversed(range(60))][::-1]
    assert forward == backward
    assert forward != [StreamBatches(rows, 2, 5, seed=5)(step).tokens.tolist() for step in range(60)]


def test_fewer_windows_than_lanes_is_a_user_error():
    with pytest.raises(UserError, match=r"train\.batch_size=3: the training split has 2 windows of 4 tokens"):
        StreamBatches(rows_of(numbered([5, 5, 1])), 3, 4, seed=0)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=9),
    batch_size=st.integers(1, 4),
    context=st.integers(1, 9),
    places=st.one_of(st.none(), st.integers(1, 60)),
)
def test_evaluation_reads_every_window_once_after_the_one_before_it(lengths, batch_size, context, places):
    """Row b of a batch is the window after row b of the batch before it; the first of a document begins a group."""
    windows = cut_all(np.array(lengths), context, places)
    streams = DocumentStreams(windows, batch_size)
    read = []
    for group in range(len(streams)):
        before = None
        for indices in streams.batches(group):
            assert len(indices) <= batch_size
            expected = windows.starts[indices] * 0 if before is None else windows.stops[before[: len(indices)]]
            assert (windows.starts[indices] == expected).all()
            if before is not None:
                assert (windows.documents[indices] == windows.documents[before[: len(indices)]]).all()
            before = indices
            read.extend(indices.tolist())
        assert streams.count(group) == sum(map(len, streams.batches(group)))
    assert sorted(read) == list(range(len(windows)))
