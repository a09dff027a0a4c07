"""GRPO's learner: what an update changes, what it holds on to, how it waits, and that nothing is lost on resume."""

from __future__ import annotations

from tests.agents.conftest import changed, learner_and_actor, update, weights


def test_races_that_are_all_alike_teach_nothing(lab, step):
    """Whatever is done is paid 5: no advantage, and without a reward for entropy no gradient."""
    races = lab.races(lambda _state, _action: step(5.0, 0, "terminated"))
    learner, actor = learner_and_actor(lab.spec("grpo", entropy_weight=lab.constant(0.0)))
    before = weights(learner)
    metrics = update(learner, actor, races)
    assert metrics["flat_groups"] == 1.0
    assert metrics["grad_norm"] == 0.0
    assert changed(before, weights(learner)) == set()


def test_nobody_waits_for_races_longer_than_any_update(lab, step):
    """Races of 40 decisions, blocks of 16, updates from 192 decisions on; `train` fails if neither side may go on."""
    races = lab.races(lambda state, _action: step(0.0, state + 1, "terminated" if state == 39 else ""))
    trained = lab.train(lab.spec("grpo", epochs=1), races, 3)
    assert trained.metrics["num_decisions"] == 16 * 40


def test_limiter_counts_what_is_whole(lab, races):
    """Groups of four races of three decisions that are whole count; an update's worth may be gathered beside it."""
    learner, actor = learner_and_actor(lab.spec("grpo", max_versions_behind=1))
    assert learner.num_allowed_env_steps() == 2 * 192
    races.deal(4)
    learner.insert(races.drive(actor), 0, 0)  # 16 cars, 16 decisions: four races and resets, all of them whole
    assert learner.num_allowed_env_steps() == 256 - 4 * 3 * 16 + 2 * 192
    assert learner.update()["num_decisions"] == 4 * 3 * 16
    assert learner.num_allowed_env_steps() == 256 + 2 * 192
