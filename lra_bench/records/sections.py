"""The sections of a record: fields and units."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypedDict


class Variant(TypedDict):
    """A model and its differences from its configuration file; ``position`` is None unless the user chose it."""

    label: str
    differences: dict[str, Any]
    position: str | None


class OwnCode(TypedDict, total=False):
    """Texts of the modules of classes outside lra-bench and of edited modules of lra-bench, by module."""

    sources: dict[str, str]


class Code(OwnCode):
    """Version of the program that wrote the record; git fields are None outside a checkout."""

    version: str
    git_sha: str | None
    git_dirty: bool | None


class Repeats(TypedDict, total=False):
    """Number of examples that occur in several splits, such as ``test in train``; old records do not contain it."""

    repeats: dict[str, int]


class Data(Repeats):
    """The task's data and its licence; ``partial`` and ``lossy`` describe missing information and are usually empty."""

    task: str
    version: str
    fingerprint: str
    source: str
    licence: str
    citation: str
    checksums: dict[str, str]
    partial: str
    lossy: str
    rows: dict[str, int]


class Environment(TypedDict):
    """The machine and the versions of the software."""

    hardware: dict[str, Any]
    software: dict[str, Any]


class CheckedParameters(TypedDict, total=False):
    """Number of trainable parameters without a gradient; only of models with classes outside lra-bench."""

    without_gradient: int


class Parameters(CheckedParameters):
    """Numbers of trainable parameters; ``body`` excludes embeddings, position tables and head.

    A complex number counts as two.
    """

    total: int
    body: int
    body_active: int
    embeddings: int
    positions: int
    head: int


class ProfiledCosts(TypedDict):
    """Costs of a training step in a stored profile, in which several systems were timed alternately.

    ``relative_speed`` is the speed of a step divided by the Transformer's with the attention kernel ``kernel``, at
    ``length`` tokens; ``relative_memory`` is the same ratio of peak memory. ``spread_of_relative_speed`` is half of the
    width of the 95 % interval of the ratio, divided by it. The time of a step over ``growth_lengths`` is fitted as N^a
    with a = ``time_exponent``; ``time_low`` and ``time_high`` are the ends of its 95 % interval.
    """

    relative_speed: float
    spread_of_relative_speed: float | None
    relative_memory: float | None
    length: int
    kernel: str | None
    time_exponent: float | None
    time_low: float | None
    time_high: float | None
    growth_lengths: Sequence[int]


class Restriction(TypedDict):
    """The length from which the built mechanism restricts what a token can attend to.

    ``from_length`` is the smallest such length in tokens: 0 for mechanisms that are not attention to tokens at any
    length, None for attention that is unrestricted at every length. ``row_length`` is the length of the longest row of
    the task. If ``from_length`` is larger, the cell measures full attention.
    """

    from_length: int | None
    row_length: int


class Margin(TypedDict):
    """Improvement of a score over a floor (baseline without a model) on the same rows, paired by row.

    ``difference`` is positive if the model is better, in units of the metric; ``low`` and ``high`` are the ends of its
    95 % confidence interval over rows.
    """

    difference: float
    low: float
    high: float


class SlicePoint(TypedDict):
    """The test score of a slice: a named subset of the scored targets.

    Attributes:
        slicing: What the subsets depend on, such as ``length`` or ``distance``.
        label: Name of the subset, such as ``8–15``; the points of a slicing are in the order of its labels.
        n: Number of scored targets.
        score: The score, an accuracy.
        low: Lower bound of its 95 % confidence interval.
        high: Upper bound of the interval.
        floor: The strongest floor (score of a rule without a model) on the same targets, None if unknown.
        floor_name: Name of that floor.
        floors: All floors by name.
        margins: Improvement of the score over each floor, paired by row.
        skill: (score - floor) / (1 - floor).
        attempt: Number of the attempt in which the slice was measured.
    """

    slicing: str
    label: str
    n: int
    score: float
    low: float
    high: float
    floor: float | None
    floor_name: str | None
    floors: dict[str, float]
    margins: dict[str, Margin]
    skill: float | None
    attempt: int


class PairPoint(TypedDict):
    """The score on ``n`` minimal pairs, those of one label or all.

    ``score`` is the fraction of pairs of which both members are predicted correctly, ``low`` and ``high`` are the ends
    of its 95 % confidence interval, and ``chance`` is the score of random guesses.
    """

    label: str
    n: int
    score: float
    low: float
    high: float
    chance: float | None


class PairScores(TypedDict):
    """Scores on minimal pairs: examples that differ in one element and in their answer.

    Attributes:
        slicing: What the labels are, such as ``level`` or ``distance``.
        total: The score on all pairs.
        points: The score by label, in the order of the labels.
        attempt: Number of the attempt in which they were measured.
    """

    slicing: str
    total: PairPoint
    points: list[PairPoint]
    attempt: int


class Train(TypedDict, total=False):
    """Training options that tables and cost estimates read."""

    steps: int
    batch_size: int


class Config(TypedDict, total=False):
    """The sections of a configuration, each a mapping."""

    task: dict[str, Any]
    model: dict[str, Any]
    position: dict[str, Any]
    backbone: dict[str, Any]
    train: Train
    measure: dict[str, Any]
    hardware: dict[str, Any]
    launcher: dict[str, Any]
    protocol: dict[str, Any]
    search: dict[str, Any]
    tracker: dict[str, Any]


class Training(TypedDict, total=False):
    """Measurements of the training run; further fields are allowed.

    ``selected_by`` is the validation metric whose best value selected the tested weights, at ``best_step``.
    ``stopped_early`` is whether ``train.stop_at`` ended training before its last step. ``validation_floor`` is the
    score of the strongest floor on the evaluated rows of the validation split. ``take_off`` describes the fields
    ``takeoff_…``, ``late_loss_change`` and ``score_at_half``. ``lowest_validation_loss`` is the lowest of all
    evaluations on the validation split; score and skill ``…_at_lowest_loss`` are those of the same evaluation. Records
    of earlier versions lack all of these.
    """

    steps: int | None
    selected_by: str
    best_step: int | None
    stopped_early: bool | None
    validation_floor: float | None
    validation_floor_name: str | None
    takeoff_steps: int | None
    takeoff_seconds: float | None
    takeoff_censored: bool | None
    lowest_validation_loss: float
    validation_score_at_lowest_loss: float
    validation_skill_at_lowest_loss: float | None
    late_loss_change: float | None
    score_at_half: float | None
    train_seconds: float | None
    evaluation_seconds: float | None
    tokens_per_second: float | None
    padded_tokens_per_second: float | None
    validation_change_on_reload: float | None
    final_weights_sha256: str


class Capability(TypedDict, total=False):
    """Declared properties of the system; further fields are allowed."""

    family: str
    paper: str
    arxiv: str | None
    causal: str
    growth: float


class Score(TypedDict, total=False):
    """The score under the name of the task's metric; one of the two fields is set."""

    accuracy: float | None
    bits_per_character: float | None


class Metric(Score):
    """A score over ``n`` scored targets with its 95 % confidence interval; ``loss`` in nats."""

    loss: float | None
    n: int
    low: float | None
    high: float | None


class Compile(TypedDict):
    """Result of ``torch.compile``.

    Attributes:
        used: Whether compiled code was run.
        graphs: Number of compiled graphs.
        graph_breaks: Number of breaks between graphs.
        uncompiled_functions: Number of functions that were left uncompiled.
        cache_hits: Number of graphs, or parts of graphs, loaded from the cache of an earlier process.
        seconds: Compilation time.
        reason: Why compilation failed, or the reason of the first graph break.
    """

    used: bool
    graphs: int
    graph_breaks: int
    uncompiled_functions: int
    cache_hits: int
    seconds: float
    reason: str


class SpeedPoint(TypedDict):
    """Result of the step benchmark in one mode at one length.

    Times are seconds per step of ``batch_size`` examples, over ``n`` timed steps. ``batch_policy`` says how the batch
    size was chosen, ``attention_backend`` names the kernels of the attention. ``static_bytes`` are parameters and
    buffers and, in training, gradients and optimizer state; ``activation_bytes`` is the rest of the peak memory.
    ``compile`` is None if compilation was not requested; its seconds are part of ``warmup_seconds``. ``utilisation`` is
    ``flops_per_second`` divided by the measured throughput of matrix products on the device.
    """

    mode: str
    length: int
    batch_size: int
    batch_policy: str
    status: str
    reason: str
    n: int
    median_seconds: float | None
    p10_seconds: float | None
    p90_seconds: float | None
    tokens_per_second: float | None
    attention_backend: str | None
    static_bytes: int | None
    activation_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    peak_resident_growth_bytes: int | None
    flops: int | None
    flops_per_second: float | None
    utilisation: float | None
    short_run: bool
    warmup_seconds: float | None
    compile: Compile | None


class Growth(TypedDict):
    """Slopes of log time and log peak memory over log length with 95 % confidence intervals, and the lengths used."""

    time_exponent: float | None
    time_low: float | None
    time_high: float | None
    memory_exponent: float | None
    memory_low: float | None
    memory_high: float | None
    lengths: list[int]


class StatePoint(TypedDict):
    """Bytes of the inference state after ``length`` tokens."""

    length: int
    state_bytes: int


class State(TypedDict):
    """Inference state: all tensors that a causal model passes on to read one more token, of one row in float32.

    It contains the recurrent state, or the keys and values, of all layers, and the number of tokens read so far; not
    the mean over tokens that some output heads compute. ``train_length`` is the training length in tokens. ``points``
    is empty if the model is bidirectional on the task or has no form that reads a sequence in parts; ``reason`` then
    says which, otherwise it is empty.
    """

    train_length: int
    points: list[StatePoint]
    reason: str


class MemoryPoint(TypedDict):
    """The test score of a language model with one memory length.

    Attributes:
        memory_length: Tokens, or slots, before the current segment that the memory of each layer holds.
        n: Number of scored tokens.
        score: Bits per character.
        loss: The mean loss in nats.
        low: Lower bound of the 95 % confidence interval of the score.
        high: Upper bound of the interval.
        state_bytes: Bytes that the model passes on per document once the memory is full.
    """

    memory_length: int
    n: int
    score: float
    loss: float
    low: float | None
    high: float | None
    state_bytes: int


class Memory(TypedDict):
    """Test scores of a language model by memory length, all on the same windows of ``window_length`` tokens.

    Each window is read after the windows before it in its document, with the memory of the model in between.
    ``trained_length`` is the memory length in training; ``attempt`` the number of the attempt that measured them.
    """

    trained_length: int
    window_length: int
    points: list[MemoryPoint]
    attempt: int


class DepthPoint(TypedDict):
    """The test result of a model at one budget of depth.

    Attributes:
        kind: ``trained`` (the rule of the training), ``layers`` (an exit at a layer), ``steps`` (a largest number of
            steps of a shared block), ``threshold`` (an exit at a confidence) or ``calibrated`` (an exit at the
            confidence calibrated for a tolerance).
        value: Number of layers or steps, threshold or tolerance; None for ``trained``.
        n: Number of scored targets.
        score: The score.
        loss: The mean loss in nats.
        low: Lower bound of the 95 % confidence interval of the score.
        high: Upper bound of the interval.
        mean_depth: Mean number of layers that a scored target passes through.
        disagreement: Fraction of the targets whose prediction differs from that of the tested model.
        flops_per_token: FLOPs per token that a forward pass executes, those of exit decisions included.
        seconds_per_token: Time of a forward pass per token.
    """

    kind: str
    value: float | None
    n: int
    score: float
    loss: float
    low: float | None
    high: float | None
    mean_depth: float
    disagreement: float
    flops_per_token: float | None
    seconds_per_token: float


class DepthSlice(TypedDict):
    """Mean depth, its standard deviation, and accuracy of ``n`` targets: those of one label of a slicing."""

    slicing: str
    label: str
    n: int
    mean_depth: float
    deviation: float
    score: float


class SlicedBudget(TypedDict):
    """A budget, see ``DepthPoint``."""

    kind: str
    value: float | None


class DepthCalibration(TypedDict):
    """A threshold calibrated on ``n`` validation examples, with the mean loss ``risk``.

    The expected loss is at most ``tolerance``, except with the probability ``failure``. ``threshold`` is None if none
    was accepted.
    """

    tolerance: float
    failure: float
    threshold: float | None
    risk: float
    n: int


class AdaptiveDepth(TypedDict):
    """Test results of one trained model at several budgets of depth.

    Attributes:
        full_depth: Largest number of layers that a token passes through in training.
        adapts_by: What has a depth of its own, ``token`` or ``example``.
        points: Results by budget.
        sliced: Budget of ``slices``, None if there are none.
        slices: Depth by slice of the targets.
        calibration: Calibrated thresholds, one for each tolerance.
        attempt: Number of the attempt that measured them.
    """

    full_depth: int
    adapts_by: str
    points: list[DepthPoint]
    sliced: SlicedBudget | None
    slices: list[DepthSlice]
    calibration: list[DepthCalibration]
    attempt: int


class Flops(TypedDict):
    """Floating-point operations per token at ``length``, how they were counted, and the uncounted operations.

    ``ceiling_per_second`` is the measured rate of the fastest matrix product on the device.
    """

    per_token_forward: float | None
    per_token_training: float | None
    length: int | None
    route: str | None
    uncounted: list[str]
    ceiling_per_second: float | None


class Energy(TypedDict):
    """Energy of one training step in joules, None if the hardware has no energy counter."""

    joules_per_step: float | None
    route: str | None
