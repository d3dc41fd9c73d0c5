"""The tasks key_to_door, key_to_door_memory and delayed_recall: data, floors and roll-outs."""

import numpy as np
import pytest
import torch
from torch import nn

from lra_bench.contracts import NOT_SCORED, Batch, Output, UserError
from lra_bench.data.cache import Cache
from lra_bench.tasks.decisions.delayed_recall import DelayedRecallTask
from lra_bench.tasks.decisions.policies import optimal_policy
from lra_bench.tasks.decisions.roll_out import Agent, sample, successes
from lra_bench.tasks.decisions.rooms import ACTIONS, FIRST_ACTION, FIRST_OBSERVATION, FIRST_RETURN, UNKNOWN
from lra_bench.tasks.decisions.task import KeyToDoorTask
from lra_bench.tasks.decisions.tokens import separate
from tests.support.model_cases import model, randomise

SMALL = {"size": 4, "phases": (6, 5, 6), "rows": {"train": 300, "validation": 200, "test": 60}, "rollouts": 40}
MEMORY = {**SMALL, "variant": "memory", "colours": 3, "expert_fraction": 0.5}
CASES = [SMALL, MEMORY, {**SMALL, "returns": False}, {**MEMORY, "context": 4}]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return Cache(tmp_path_factory.mktemp("data"))


def prepared(cache, options):
    task = KeyToDoorTask(**options)
    task.prepare(cache)
    return task


def rows_of(task, split="train", length=None):
    blocks = list(task.blocks(split, length))
    return np.concatenate([block.tokens for block in blocks]), np.concatenate([block.targets for block in blocks])


@pytest.mark.parametrize("options", CASES)
def test_targets_are_the_actions_at_the_observations(cache, options):
    task = prepared(cache, options)
    tokens, targets = rows_of(task)
    actions = separate(tokens).actions
    assert len(tokens) == 300
    assert np.array_equal(targets[:, 1::3], actions) and set(np.unique(actions)) == set(range(ACTIONS))
    assert (np.delete(targets, np.s_[1::3], 1) == NOT_SCORED).all()
    for split in ("train", "validation", "test"):
        task.check(split)
    assert tokens.max() < task.spec.vocabulary_size and tokens.shape[1] == task.spec.train_length


def test_held_out_episodes_have_a_reward_and_are_scored_in_the_first_and_third_room(cache):
    task = prepared(cache, MEMORY)
    tokens, targets = rows_of(task, "validation")
    steps = separate(tokens)
    assert 5 < len(tokens) < 200 and (steps.returns[:, 0] == 1).all()
    assert np.array_equal((targets != NOT_SCORED).any(0).nonzero()[0], [*range(1, 18, 3), *range(34, 51, 3)])
    assert np.array_equal(targets[:, 1:18:3], steps.actions[:, :6])
    with pytest.raises(UserError, match=r"task\.rows\.test=2: none of the episodes has a reward"):
        prepared(cache, {**SMALL, "phases": (1, 1, 1), "rows": {"train": 300, "validation": 300, "test": 2}})


def test_damaged_episodes_are_found(cache):
    task = prepared(cache, MEMORY)
    block = next(task.blocks("train"))
    for column, change in ((1, 1), (3, 1), (2, 1)):
        tokens = block.tokens.copy()
        tokens[4, column] += change if column != 2 else (1 if tokens[4, 2] < FIRST_ACTION + 3 else -1)
        expected, valid = task.read(type(block)(tokens, block.targets, block.extra))
        assert not valid[4] or (expected.targets[4] != block.targets[4]).any()
        assert valid[:4].all()


def test_the_middle_phase_alone_is_longer_at_another_length(cache):
    task = prepared(cache, SMALL)
    assert task.middle_phase(3 * (6 + 20 + 6)) == 20
    tokens, _ = rows_of(task, "test", 3 * 32)
    observations = separate(tokens).observations
    keys, doors = (observations >= 9) & (observations < 17), observations >= 17
    assert keys[:, 0].all() and not keys[:, 6:].any() and not doors[:, :26].any() and doors[:, 26].all()
    for length, reason in ((97, "whole number of steps"), (36, "at least 39 tokens")):
        assert reason in task.supports_length(length)
    assert "4" in KeyToDoorTask(**CASES[3]).supports_length(96)


def test_best_keeps_the_episodes_with_the_highest_returns(cache):
    every, best = prepared(cache, MEMORY), prepared(cache, {**MEMORY, "best": 0.1})
    returns = separate(rows_of(every)[0]).returns[:, 0]
    kept = rows_of(best)[0]
    assert len(kept) == 30 and returns.mean() < 0.9 and (separate(kept).returns[:, 0] == 1).all()
    assert len(best.split("test")) == len(every.split("test"))
    best.check("train")
    assert best.fingerprint() != every.fingerprint()
    for split in ("validation", "test"):  # floors are computed from all episodes
        assert best.floors(split) == every.floors(split)


def test_floors_are_success_rates_in_the_test_split_and_accuracies_otherwise(cache):
    task = prepared(cache, {**SMALL, "rollouts": 400})
    floors = task.floors("test")
    assert set(floors) == {"random", "majority", "cloning"} and floors["majority"] <= floors["random"] < 0.2
    of_memory = prepared(cache, {**MEMORY, "rollouts": 400}).floors("test")
    assert set(of_memory) == {*floors, "best_5_percent"} and 0.15 < of_memory["best_5_percent"] < 0.5
    _, targets = rows_of(task, "validation")
    actions = separate(rows_of(task)[0]).actions
    common = np.bincount(actions.ravel()).argmax()
    scored = targets[targets != NOT_SCORED]
    assert task.floors("validation")["majority"] == pytest.approx((scored == common).mean())
    assert 0 < task.floors("validation")["cloning"] < 0.6
    assert task.floors("test", 3 * 40) != floors


class Scripted(nn.Module):
    """A network with the logits of the optimal policy, which follows the episodes with environments of its own."""

    def __init__(self, task, key, certainty=100.0):
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1))
        self.task, self.key, self.env, self.first, self.certainty = task, key, None, 0, certainty

    def forward(self, batch, memory=None):
        from lra_bench.tasks.decisions.environment import KeyToDoor

        tokens = batch.tokens.numpy()
        if tokens.shape[1] == 2:
            numbers = np.arange(self.first, self.first + len(tokens), dtype=np.uint64)
            self.first = (self.first + len(tokens)) % self.task.rollouts
            self.env = KeyToDoor(len(tokens), **self.task.env_options(self.task.spec.train_length))
            self.env.reset(seed=self.key, options={"episodes": numbers})
        else:
            self.env.step(tokens[:, -3] - FIRST_ACTION)
        assert np.array_equal(tokens[:, -1] - FIRST_OBSERVATION, self.env.observe())
        chosen = torch.from_numpy(optimal_policy(self.env, None))
        return Output(self.certainty * nn.functional.one_hot(chosen, ACTIONS)[:, None].float())


@pytest.mark.parametrize("options", [SMALL, MEMORY])
def test_an_optimal_network_scores_one(options):
    task = KeyToDoorTask(**{**options, "phases": (6, 3, 6), "returns": False})
    found = task.score(Scripted(task, task._roll_out_key(0)).eval(), batch_size=16)
    assert (found.score, found.n) == (1.0, 40)
    assert found.parts == {"actions": {"most probable": 1.0, "sampled": 1.0}}


@pytest.mark.parametrize("greedy", [True, False])
def test_the_score_is_that_of_the_most_probable_or_of_sampled_actions(greedy):
    task = KeyToDoorTask(**{**SMALL, "phases": (6, 3, 6), "greedy": greedy})
    found = task.score(Scripted(task, task._roll_out_key(0), certainty=1.0).eval(), batch_size=16)
    most_probable, sampled = found.parts["actions"].values()
    assert most_probable == 1.0 and sampled < 0.8 and found.score == (most_probable if greedy else sampled)
    assert found.parts["asked return"] == {"0": found.score, "1": found.score}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mixer", ["transformer", "lstm", "hyena"])
def test_roll_outs_do_not_depend_on_the_batch_size_and_equal_those_without_state(mixer):
    task = KeyToDoorTask(**SMALL)
    network = randomise(model(task.spec, mixer, "none", depth=1), deviation=0.5)
    assert Agent(network, None).keeps_state == (mixer != "hyena")
    options = {"asked": 1, "key": 5, "episodes": 12}
    rooms = task.env_options(task.spec.train_length)
    first, others = [], [{"batch_size": 5}, {"batch_size": 12}, {"batch_size": 12, "context": 17}]
    for each in others:
        acted = []
        network.head.register_forward_hook(lambda module, inputs, output, acted=acted: acted.append(output[:, -1]))
        found = successes(network, rooms, **options, **each)
        network.head._forward_hooks.clear()
        logits = torch.cat([torch.stack(acted[start : start + 17], 1) for start in range(0, len(acted), 17)])
        first = first or [found, logits]
        assert np.array_equal(found, first[0]) and torch.allclose(logits, first[1], atol=1e-9)
    # The same seed gives the same episodes and another seed others.
    assert successes(network, rooms, **{**options, "episodes": 300}, batch_size=300).sum() != 0


def test_the_network_reads_what_the_environment_shows():
    task = KeyToDoorTask(**SMALL)
    read = []

    class Recorder(nn.Module):
        def __init__(self):
            super().__init__()
            self.anchor = nn.Parameter(torch.zeros(1))

        def forward(self, batch, memory=None):
            read.append(batch.tokens)
            return Output(torch.zeros(*batch.tokens.shape, ACTIONS))

    options = {"key": 9, "episodes": 300, "batch_size": 300, "asked": 1}
    found = successes(Recorder(), task.env_options(task.spec.train_length), **options)
    tokens = torch.cat([read[-1], torch.full((300, 1), FIRST_ACTION)], 1).numpy()
    assert all(torch.equal(each, read[-1][:, : each.shape[1]]) for each in read)
    steps = separate(tokens)
    # The asked return is 1 until the reward; a reward at the last step changes no token.
    assert found.any() and (steps.returns[:, 0] == 1).all() and set(np.unique(steps.returns[~found])) == {1}
    opened = found & (steps.returns[:, -1] == 0)
    assert opened.any() and (np.diff(steps.returns, axis=1) <= 0).all()
    seen = []
    successes(Recorder(), task.env_options(51), **{**options, "asked": None, "episodes": 4}, context=2)
    seen = read[-1]
    assert seen.shape == (4, 5) and set(seen[:, [0, 3]].flatten().tolist()) == {UNKNOWN}


def test_actions_are_sampled_from_the_probabilities():
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5]], dtype=torch.float64).expand(20_000, -1)
    classes = sample(logits, (np.arange(20_000) + 0.5) / 20_000)
    shares = np.bincount(classes, minlength=4) / 20_000
    assert np.allclose(shares, torch.softmax(logits[0], 0).numpy(), atol=1e-4)


@pytest.mark.parametrize("mixer", ["transformer", "linear"])
def test_action_logits_depend_on_no_later_token(mixer, cache):
    task = prepared(cache, SMALL)
    network = randomise(model(task.spec, mixer, "none", depth=2))
    tokens = torch.from_numpy(rows_of(task)[0][:6].astype(np.int64))
    lengths = torch.full((6,), tokens.shape[1])
    step = 8
    other = tokens.clone()
    place = 3 * step + 1  # the observation of the step; its action, the next return and observation follow
    other[:, place + 1 : place + 4] = 1 + other[:, place + 1 : place + 4] % (task.spec.vocabulary_size - 1)
    with torch.no_grad():
        before, after = (network(Batch(lengths, tokens, tokens=each)).logits for each in (tokens, other))
    assert torch.allclose(before[:, : place + 1], after[:, : place + 1], atol=1e-10)
    assert not torch.allclose(before[:, place + 1 :], after[:, place + 1 :])


def test_without_returns_the_loss_is_that_of_behaviour_cloning(cache):
    known, unknown = prepared(cache, SMALL), prepared(cache, {**SMALL, "returns": False})
    network = randomise(model(known.spec, "transformer", "none"))
    found = {}
    with torch.no_grad():
        # A network for which all return tokens are the same.
        table = network.embedding.weight
        table[[FIRST_RETURN, FIRST_RETURN + 1]] = table[UNKNOWN].clone()
        for name, task in (("known", known), ("unknown", unknown)):
            tokens, targets = (torch.from_numpy(each.astype(np.int64)) for each in rows_of(task))
            batch = Batch(torch.full((len(tokens),), tokens.shape[1]), targets, tokens=tokens)
            found[name] = tokens, network(batch).logits
    assert torch.equal(found["known"][0][:, 1::3], found["unknown"][0][:, 1::3])
    assert not torch.equal(found["known"][0], found["unknown"][0])
    assert torch.equal(found["known"][1], found["unknown"][1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"variant": "maze"}, r"task\.variant=maze: must be one of credit, memory"),
        ({"size": 2}, r"task\.size=2: must be at least 3"),
        ({"phases": (3, 0, 3)}, r"task\.phases=\[3, 0, 3\]: .*at least 1 each"),
        ({"phases": (3, 3)}, r"task\.phases=\[3, 3\]: .*three rooms"),
        ({"variant": "memory", "colours": 1}, r"task\.colours=1: must be 2 to 4"),
        ({"colours": 0}, r"task\.colours=0: must be at least 1"),
        ({"expert_fraction": 1.5}, r"task\.expert_fraction=1\.5: must be a share between 0 and 1"),
        ({"noise": -0.1}, r"task\.noise=-0\.1: must be a share between 0 and 1"),
        ({"best": 0}, r"task\.best=0: must be above 0 and at most 1"),
        ({"context": 60}, r"task\.context=60: must be 1 to 50"),
        ({"rollouts": 0}, r"task\.rollouts=0: must be at least 1"),
    ],
)
def test_impossible_options_are_rejected(options, message):
    with pytest.raises(UserError, match=message):
        KeyToDoorTask(**options)


def test_delayed_recall_asks_for_the_colour_of_the_key(cache):
    task = DelayedRecallTask(size=4, phases=(4, 9, 3), colours=3, rows=SMALL["rows"])
    task.prepare(cache)
    for length in (None, 40):
        block = next(task.blocks("test", length))
        first = block.tokens[:, 0].astype(int) - 1 - 9
        assert np.array_equal(first // 8, block.targets) and set(block.targets) == {0, 1, 2}
        assert block.tokens.shape[1] == (length or 16)
    task.check("test")
    damaged = block.tokens.copy()
    damaged[3, 1] = 1 + 9 + 8 * ((block.targets[3] + 1) % 3)
    assert task.read(type(block)(damaged, block.targets, {}))[1].tolist() == [row != 3 for row in range(len(damaged))]
    assert task.floors("test")["majority"] == pytest.approx(1 / 3, abs=0.2)
    with pytest.raises(UserError, match="at least 8 tokens"):
        task.split("test", 7)
