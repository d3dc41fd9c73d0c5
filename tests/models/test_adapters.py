"""Modules as mixers: outputs equal those of the module, declarations are compared with them, mistakes are refused."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from lra_bench.build import build
from lra_bench.checks.battery import check_before_training, check_model
from lra_bench.config.compose import compose
from lra_bench.config.effective import mixer_capability
from lra_bench.contracts import TaskSpec, UserError
from lra_bench.models.adapters import ModuleMixer
from lra_bench.models.mixer import Context, Mixer, Padding

GUIDE = Path(__file__).parents[2] / "docs" / "adding-a-model.md"
ADAPTER = "lra_bench.models.adapters.ModuleMixer"
CPU = torch.device("cpu")
TASK = TaskSpec("toy", "1", "classification", "either", classes=3, train_length=64, vocabulary_size=9)
QUADRATIC = {"growth": 2, "materialises": "maps"}
LENGTHS = (9, 5, 1)

CASES: dict[str, dict[str, Any]] = {
    "GRU": {
        "module": {"_target_": "torch.nn.GRU", "batch_first": True},
        "sizes": {"input_size": "width", "hidden_size": "width"},
        "declares": {"causal": "exact"},
        "padding": "packed",
    },
    "MultiheadAttention": {
        "module": {"_target_": "torch.nn.MultiheadAttention", "batch_first": True},
        "sizes": {"embed_dim": "width", "num_heads": "heads"},
        "inputs": 3,
        "padding": "mask",
        "mask": "hide",
        "mask_argument": "key_padding_mask",
        "causal_argument": "attn_mask",
        "declares": {"causal": "exact", **QUADRATIC},
    },
    "TransformerEncoderLayer": {
        "module": {"_target_": "torch.nn.TransformerEncoderLayer", "batch_first": True, "dim_feedforward": 32},
        "sizes": {"d_model": "width", "nhead": "heads", "dropout": "dropout"},
        "padding": "mask",
        "mask": "hide",
        "mask_argument": "src_key_padding_mask",
        "causal_argument": "src_mask",
        "declares": {"causal": "exact", **QUADRATIC},
    },
    "Convolution": {"module": {"_target_": f"{__name__}.Convolution"}, "sizes": {"width": "width"}},
}
"""Options of ``ModuleMixer`` by module."""


class Convolution(nn.Module):
    """Mean of three neighbouring tokens, with a weight."""

    def __init__(self, width):
        super().__init__()
        self.layer = nn.Conv1d(width, width, 3, padding=1)

    def forward(self, x):
        return self.layer(x.mT).mT


class Scores(nn.Module):
    """Attention that takes additive masks (B, 1, 1, N), and returns a mapping."""

    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x, attention_mask=None):
        q, k, v = (each[:, None] for each in self.qkv(x).chunk(3, -1))
        scores = q @ k.mT if attention_mask is None else q @ k.mT + attention_mask
        return {"hidden": (scores.softmax(-1) @ v)[:, 0], "weights": scores}


class OnlyCuda(nn.Module):
    """Module that raises an error without CUDA, as Triton kernels do."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        raise RuntimeError("expected a CUDA device\nbut found cpu")


class Fixed(nn.Module):
    """Weights of a fixed number of positions, with a mask that is true at tokens."""

    def __init__(self, positions):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(positions, positions))

    def forward(self, x, mask=None):
        return self.weight @ (x if mask is None else x * mask[..., None])


def mixer_of(options, **common):
    torch.manual_seed(0)
    return build({"_target_": ADAPTER, **options}, Mixer, "model.mixer", width=16, heads=2, **common).eval()


def module_of(options):
    torch.manual_seed(0)
    cls = {"GRU": nn.GRU, "MultiheadAttention": nn.MultiheadAttention}.get(options, nn.TransformerEncoderLayer)
    arguments = {"GRU": (16, 16), "MultiheadAttention": (16, 2)}.get(options, (16, 2, 32, 0.0))
    return cls(*arguments, batch_first=True).eval()


def inputs(lengths=None):
    x = torch.randn(3, 9, 16, generator=torch.Generator().manual_seed(1))
    padding = None if lengths is None else Padding.from_lengths(torch.tensor(lengths), 9)
    return x, Context(padding, torch.arange(9))


def direct(name, module, x, causal):
    """Call a module of torch with inputs without padding, as its documentation shows."""
    mask = torch.ones(len(x[0]), len(x[0]), dtype=torch.bool).triu(1) if causal else None
    if name == "GRU":
        return module(x)[0]
    if name == "MultiheadAttention":
        return module(x, x, x, attn_mask=mask)[0]
    return module(x, src_mask=mask)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", ["GRU", "MultiheadAttention", "TransformerEncoderLayer"])
def test_the_output_equals_that_of_the_module_by_a_bit(name, causal):
    mixer, module = mixer_of(CASES[name], causal=causal), module_of(name)
    x, context = inputs()
    assert torch.equal(mixer(x, context)[0], direct(name, module, x, causal))
    padded, _ = mixer(*inputs(LENGTHS))
    for row, length in enumerate(LENGTHS):
        alone = direct(name, module, x[row : row + 1, :length], causal)
        torch.testing.assert_close(padded[row : row + 1, :length], alone, rtol=0, atol=2e-6)


def test_the_forms_of_masks_are_those_of_the_options():
    x, context = inputs(LENGTHS)
    valid = context.padding.valid
    scores = {"module": {"_target_": f"{__name__}.Scores"}, "sizes": {"width": "width"}, "output": "hidden"}
    mixer = mixer_of({**scores, "padding": "mask", "mask": "add", "mask_dims": 4, "mask_argument": "attention_mask"})
    least = torch.finfo(x.dtype).min
    mask = torch.zeros(3, 1, 1, 9).masked_fill(~valid[:, None, None], least)
    assert torch.equal(mixer(x, context)[0], mixer.module(context.padding.zero(x), mask)["hidden"])
    fixed = {"module": {"_target_": f"{__name__}.Fixed"}, "sizes": {"positions": "max_length"}, "fixed": True}
    mixer = mixer_of({**fixed, "padding": "mask"}, max_length=12)
    assert mixer.spec.length == "maximum" and mixer.spec.padding == "amount"
    padded = torch.cat((x, x.new_zeros(3, 3, 16)), 1)
    long = torch.cat((valid, valid.new_zeros(3, 3)), 1)
    assert torch.equal(mixer(x, context)[0], mixer.module(padded, long)[:, :9])
    assert torch.equal(mixer(x, inputs()[1])[0], mixer.module(padded, torch.arange(12).lt(9).expand(3, -1))[:, :9])


def test_one_argument_can_receive_both_masks():
    scores = {"module": {"_target_": f"{__name__}.Scores"}, "sizes": {"width": "width"}, "output": "hidden"}
    both = {"mask_argument": "attention_mask", "causal_argument": "attention_mask", "declares": {"causal": "exact"}}
    mixer = mixer_of({**scores, **both, "padding": "mask", "mask": "add", "mask_dims": 4}, causal=True)
    x, context = inputs(LENGTHS)
    padded = mixer(x, context)[0]
    for row, length in enumerate(LENGTHS):
        alone = mixer(x[row : row + 1, :length], Context(None, torch.arange(length)))[0]
        torch.testing.assert_close(padded[row : row + 1, :length], alone, rtol=0, atol=2e-6)


@pytest.fixture(scope="module")
def config_of():
    config = compose(["model=local", "task=listops", "protocol=smoke"]).config

    def of(options):
        config.model = {"label": "wrapped", "mixer": {"_target_": ADAPTER, **options}}
        return config

    return of


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_right_declaration_passes_the_checks(name, config_of):
    findings = check_model(config_of(CASES[name]), TASK)
    assert [each for each in findings if each.ok is False] == []
    assert len({each.what.partition(":")[0] for each in findings} & {"causal", "bidirectional"}) in (0, 2)


WRONG: dict[str, tuple[str, dict[str, Any], bool, str]] = {
    "a convolution that reads later tokens": ("Convolution", {"declares": {"causal": "exact"}}, True, "future tokens"),
    "attention without a causal mask": ("MultiheadAttention", {"causal_argument": None}, True, "future tokens"),
    "attention without a mask": (
        *("MultiheadAttention", {"padding": "none", "declares": {"padding": "amount"}}),
        *(False, "amount of padding"),
    ),
    "a mask of the other form": ("MultiheadAttention", {"mask": "keep"}, False, "content of padding"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_declaration_is_refused_before_training(case, config_of):
    name, changes, causal, what = WRONG[case]
    with pytest.raises(UserError, match=what):
        check_before_training(config_of({**CASES[name], **changes}), TASK, causal, CPU)


@pytest.mark.slow
def test_a_module_that_needs_other_hardware_is_one_sentence(config_of):
    config = config_of({"module": {"_target_": f"{__name__}.OnlyCuda"}, "sizes": {"width": "width"}})
    with pytest.raises(
        UserError, match=r"^model: RuntimeError in test_adapters\.py, line \d+: expected a CUDA device$"
    ):
        check_before_training(config, TASK, False, CPU)
    config = config_of({"module": {"_target_": "a_missing_package.Mamba"}})
    with pytest.raises(
        UserError, match=r"^model\.mixer\.module\._target_=a_missing_package\.Mamba: cannot be imported"
    ):
        check_before_training(config, TASK, False, CPU)


def test_declarations_are_known_before_the_class_is_built():
    node = {"_target_": ADAPTER, **CASES["GRU"]}
    assert (mixer_capability(node).causal, mixer_capability({"_target_": ADAPTER}).causal) == ("exact", "none")
    assert ModuleMixer.spec.causal == "none"
    with pytest.raises(UserError, match=r"^model\.mixer: ModuleMixer has no exact causal form"):
        mixer_of({**CASES["GRU"], "declares": {}}, causal=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"padding": "masks"}, r"^model\.mixer\.padding=masks: choose none, mask, packed"),
        ({"mask_dims": 3}, r"^model\.mixer\.mask_dims=3: choose 2, 4"),
        ({"declares": {"casual": "exact"}}, r"^model\.mixer\.declares\.casual: there is no such declaration"),
        ({"declares": {"causal": "yes"}}, r"^causal='yes' in the declared capabilities"),
        ({"sizes": {"input_size": "features"}}, r"^model\.mixer\.sizes: there is no size features; choose width,"),
        ({"module": None}, r"^model\.mixer\.module: has no _target_"),
        (
            {"module": {"_target_": "subprocess.Popen"}},
            r"^model\.mixer\.module\._target_=subprocess\.Popen: is no Module",
        ),
        ({"sizes": {}}, r"^model\.mixer\.module: GRU cannot be built"),
    ],
)
def test_a_wrong_option_is_one_sentence(changes, message):
    with pytest.raises(UserError, match=message):
        mixer_of({**CASES["GRU"], **changes})


def test_the_file_of_the_guide_names_a_module(tmp_path):
    (text,) = re.findall(r'title="ideas/model/torch_gru.yaml"\n(.*?)^```', GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "torch_gru.yaml").write_text(text)
    node = compose(["model=torch_gru", "task=listops", "protocol=smoke"], tmp_path).config.model["mixer"]
    assert {name: node[name] for name in CASES["GRU"]} == CASES["GRU"]


def test_every_option_is_documented():
    options = list(inspect.signature(ModuleMixer).parameters)
    assert all(f"    {name}: " in ModuleMixer.__doc__ for name in options if name != "common")
    section = GUIDE.read_text().partition("## Any module")[2].partition("\n## ")[0]
    assert all(f"`{name}`" in section for name in options if name not in ("width", "heads", "common"))
