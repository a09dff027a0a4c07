"""GRPO's learner: what an update changes, what it holds on to, how it waits, and that nothing is lost on resume."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from rulka.agents.algorithms import make_learner
from rulka.agents.spec import AgentError
from tests.agents.conftest import changed, learner_and_actor, weights


@pytest.fixture
def paid_races(lab, step):
    """A race lasts three decisions, which are paid by their action."""
    return lab.races(lambda state, action: step(float(action), state + 1, "terminated" if state == 2 else ""))


def update(learner, actor, races) -> dict[str, float]:
    """Drives until there is an update; races begin alike in groups of four."""
    races.deal(4)
    while (metrics := learner.update()) is None:
        learner.insert(races.drive(actor), 0, learner.version)
    return metrics


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"encoder_epochs": 0}, {"float_head", "trunk", "policy_head"}),
        ({"encoder_epochs": 1, "max_kl": 1e-12}, {"float_head", "trunk", "policy_head"}),
        ({"encoder_epochs": 1}, {"encoder", "float_head", "trunk", "policy_head"}),
        ({"encoder_epochs": 4}, {"encoder", "float_head", "trunk", "policy_head"}),
    ],
)
def test_what_an_update_changes(lab, paid_races, changes, expected):
    """Never the value head, which nothing asks."""
    learner, actor = learner_and_actor(lab.spec("grpo", **changes))
    before = weights(learner)
    update(learner, actor, paid_races)
    assert changed(before, weights(learner)) == expected
    assert learner.version == 1


def test_behaviour_and_learner_agree_before_the_first_step(lab, paid_races):
    learner, actor = learner_and_actor(lab.spec("grpo", epochs=1, batch_size=192, steps_per_update=192))
    metrics = update(learner, actor, paid_races)
    assert metrics["gradient_steps"] == 1
    assert abs(metrics["approx_kl"]) < 1e-6
    assert metrics["clip_fraction"] == 0.0
    assert metrics["entropy"] == pytest.approx(np.log(3), abs=0.01)
    assert metrics["return_mean"] == pytest.approx(3.0, abs=0.5)
    assert metrics["group_deviation"] == pytest.approx(np.sqrt(2.0), abs=0.4), "three times a variance of 2 / 3"
    assert metrics["num_decisions"] == 12 * metrics["num_groups"] >= 192


def test_races_that_are_all_alike_teach_nothing(lab, step):
    """Whatever is done is paid 5: no advantage, and without a reward for entropy no gradient."""
    races = lab.races(lambda _state, _action: step(5.0, 0, "terminated"))
    learner, actor = learner_and_actor(lab.spec("grpo", entropy_weight=lab.constant(0.0)))
    before = weights(learner)
    metrics = update(learner, actor, races)
    assert metrics["flat_groups"] == 1.0
    assert metrics["grad_norm"] == 0.0
    assert changed(before, weights(learner)) == set()


def test_a_clip_makes_many_epochs_sound(lab, step):
    """Forty epochs on the same races, one action of which pays: a ratio that may leave 1 by 0.05 moves the policy far
    less than one that may go as far as it likes, which ends up certain of what few races showed.
    """
    moved = {}
    for clip in (0.05, 1e6):
        races = lab.races(lambda _state, action: step(float(action == 2), 0, "terminated"))
        changes = {
            "clip": lab.constant(clip),
            "max_kl": lab.constant(1e6),
            "epochs": 40,
            "entropy_weight": lab.constant(0),
        }
        learner, actor = learner_and_actor(lab.spec("grpo", **changes))
        moved[clip] = update(learner, actor, races)["update_kl"]
    assert moved[0.05] < 0.1 * moved[1e6]


def test_an_update_ends_when_the_policy_has_moved_far_enough(lab, paid_races):
    changes = {"learning_rate": lab.constant(0.01), "max_kl": lab.constant(1e-3), "batch_size": 32}
    learner, actor = learner_and_actor(lab.spec("grpo", **changes))
    assert 2 <= update(learner, actor, paid_races)["gradient_steps"] < 8, "four epochs would be some 24"


def probabilities(network) -> Categorical:
    with torch.no_grad():
        seen = torch.zeros(1, 1, 34, 34, dtype=torch.uint8), torch.zeros(1, 4)
        return Categorical(logits=network(*seen).outputs[0])


def test_the_divergence_is_the_exact_one_from_the_policy_it_began_as(lab, step):
    """KL(now, first), though the races were driven by a third policy, and that of a sample would differ from it."""
    races = lab.races(lambda _state, action: step(float(action), 0, "terminated"))
    changes = {"clone_weight": lab.constant(0.5), "epochs": 1, "batch_size": 512, "steps_per_update": 512}
    settings = lab.spec("grpo", learning_rate=lab.constant(1e-9), **changes)
    learner, actor = learner_and_actor(settings)
    first = probabilities(learner.network)
    with torch.no_grad():
        learner.network.policy_head.bias.add_(torch.tensor([1.0, 0.0, -1.0]))
    metrics = update(learner, actor, races)
    expected = float(kl_divergence(probabilities(learner.network), first))
    assert expected > 0.2
    assert metrics["clone_kl"] == pytest.approx(expected, abs=1e-4)
    assert abs(float(kl_divergence(first, probabilities(learner.network))) - expected) > 0.01, "the other direction"


def test_the_loss_holds_on_to_the_policy_that_it_began_as(lab, paid_races):
    """The same experience with a large weight moves the policy less, and what it holds on to survives a resume."""
    moved = {}
    for weight in (0.0, 100.0):
        spec = lab.spec("grpo", clone_weight=lab.constant(weight), entropy_weight=lab.constant(0.0))
        learner, actor = learner_and_actor(spec)
        first = probabilities(learner.network)
        paid_races.rng = np.random.default_rng(0)
        update(learner, actor, paid_races)
        moved[weight] = float(kl_divergence(probabilities(learner.network), first))
    assert 0.0 <= moved[100.0] < 0.2 * moved[0.0]
    resumed = make_learner(spec, seed=5)
    resumed.load_state_dict(learner.state_dict())
    for name, tensor in actor.network.state_dict().items():
        assert torch.equal(resumed._first.state_dict()[name], tensor), name


def test_nobody_waits_for_races_longer_than_any_update(lab, step):
    """Races of 40 decisions, blocks of 16, updates from 192 decisions on; `train` fails if neither side may go on."""
    races = lab.races(lambda state, _action: step(0.0, state + 1, "terminated" if state == 39 else ""))
    trained = lab.train(lab.spec("grpo", epochs=1), races, 3)
    assert trained.metrics["num_decisions"] == 16 * 40


def test_limiter_counts_what_is_whole(lab, paid_races):
    """Groups of four races of three decisions that are whole count; an update's worth may be gathered beside it."""
    learner, actor = learner_and_actor(lab.spec("grpo", max_versions_behind=1))
    assert learner.num_allowed_env_steps() == 2 * 192
    paid_races.deal(4)
    learner.insert(paid_races.drive(actor), 0, 0)  # 16 cars, 16 decisions: four races and resets, all of them whole
    assert learner.num_allowed_env_steps() == 256 - 4 * 3 * 16 + 2 * 192
    assert learner.update()["num_decisions"] == 4 * 3 * 16
    assert learner.num_allowed_env_steps() == 256 + 2 * 192


def test_resume_is_exact_and_needs_no_pickle(lab, step):
    races = lab.races(lambda state, action: step(float(action), state + 1, "terminated" if state == 10 else ""))
    races.deal(4)
    learner, actor = learner_and_actor(lab.spec("grpo"))
    blocks = [races.drive(actor) for _ in range(6)]
    for block in blocks[:2]:
        learner.insert(block, 0, 0)
    learner.update()
    learner.insert(blocks[2], 0, 0)
    file = io.BytesIO()
    torch.save({"learner": learner.state_dict(), "experience": learner.experience().state}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = make_learner(lab.spec("grpo"), seed=99)
    resumed.load_state_dict(saved["learner"])
    resumed.load_experience(learner.experience()._replace(state=saved["experience"]))
    assert resumed.num_allowed_env_steps() == learner.num_allowed_env_steps()
    for one in (learner, resumed):
        for block in blocks[3:]:
            one.insert(block, 0, 1)
        assert one.update() is not None
    assert changed(weights(learner), weights(resumed)) == set()


def test_what_it_has_no_use_for_is_refused(lab):
    learner, _ = learner_and_actor(lab.spec("grpo"))
    with pytest.raises(AgentError, match="demonstrations"):
        learner.insert_demonstrations([])


@pytest.mark.parametrize(
    ("changes", "message"), [({"encoder_epochs": 5}, "larger than epochs"), ({"group_size": 1}, "2")]
)
def test_impossible_settings_are_refused(lab, changes, message):
    with pytest.raises(ValueError, match=message):
        lab.spec("grpo", **changes)
