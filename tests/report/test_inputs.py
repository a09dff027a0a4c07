"""What is read for the report: training logs, durations, metadata, demonstrations."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rulka.datasets.races import Race
from rulka.evaluation.dataset import demonstration_results
from rulka.evaluation.race import EvaluationRaces
from rulka.evaluation.results import Contestant, Evaluation
from rulka.observation import CAR, NUM_CAR_FIELDS
from rulka.params import read_params
from rulka.report.durations import read_durations
from rulka.report.facts import Origins, facts_of, transfer_summary
from rulka.report.learning_plots import TrainingLogError, read_training_log
from rulka.tracks.top_view import top_view
from rulka.tracks.track import Track


def test_training_log_keeps_the_known_points_of_a_curve(tmp_path: Path) -> None:
    rows = [
        {"env_steps": 10, "minutes": 0.1, "record_s": None, "phase": "warm-up"},
        {"env_steps": 20, "minutes": 0.2, "record_s": 31.5},
        {"env_steps": 30, "minutes": 0.3, "record_s": 30.0, "finish_rate": 0.25},
    ]
    path = tmp_path / "training.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    log = read_training_log(path, "PPO")
    steps, times_s = log.curve("env_steps", "record_s")
    assert (steps.tolist(), times_s.tolist()) == ([20, 30], [31.5, 30.0])
    assert len(log.curve("minutes", "never_written")[0]) == 0
    assert log.curve("minutes", "finish_rate")[1].tolist() == [0.25]
    assert len(log.curve("minutes", "phase")[0]) == 0, "words are no curve"


@pytest.mark.parametrize("line", ['{"env_steps": 1, "minu', '{"env_steps": 1}', "[1]"])
def test_broken_training_log_names_the_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "training.jsonl"
    path.write_text('{"env_steps": 1, "minutes": 0.1}\n' + line)
    with pytest.raises(TrainingLogError, match="line 2"):
        read_training_log(path, "PPO")


def test_durations_are_the_last_of_every_stage_in_order(tmp_path: Path) -> None:
    path = tmp_path / "durations.jsonl"
    rows = [("train", 9.0), ("races", 1.0), ("train", 5.0), ("unknown", 3.0)]
    lines = [json.dumps({"stage": s, "seconds": t, "peak_rss_mb": 10.0, "ended_at": "x"}) for s, t in rows]
    path.write_text("\n".join(lines) + '\n{"stage": "ra')  # the last line was cut off
    assert [(row.stage, row.seconds) for row in read_durations(path)] == [("races", 1.0), ("train", 5.0)]
    assert read_durations(tmp_path / "missing.jsonl") == []


def race(source: str, gates: tuple[int, ...], race_time_ms: int | None, end_ms: int = 6000) -> Race:
    """10 m/s along z, sampled every 100 ms, longer than the race; gas from 2 s on."""
    time_ms = np.arange(0, end_ms + 100, 100)
    state = np.zeros((len(time_ms), NUM_CAR_FIELDS), np.float32)
    state[:, CAR["position"].stop - 1] = time_ms / 100
    state[:, CAR["rotation"]] = np.eye(3).ravel()
    controls = np.zeros((end_ms // 10, 3), np.float32)
    controls[200:, 1] = 1.0
    return Race(
        "r", source, "", "p", "straight", race_time_ms, race_time_ms is not None, gates, None, controls, time_ms, state
    )  # type: ignore[arg-type]


def test_demonstration_by_hand(track: Track) -> None:
    """Finished after 5,050 ms: samples 0 to 5,100 ms are its race, with the gates' own times."""
    (result,) = demonstration_results([race("driver", (2000, 4000, 5050), 5050)], track)
    assert (result.time_ms, result.sample_ms[-1], result.progress_m) == (5050, 5100, 100.0)
    assert result.gate_times_ms.tolist() == [2000, 4000, 5050]
    np.testing.assert_allclose(result.along_m[:3], [0.0, 1.0, 2.0], atol=1e-4)
    assert result.controls[19:22, 1].tolist() == [0.0, 1.0, 1.0]  # gas is pressed at 2,000 ms


def test_unfinished_demonstration_has_no_time(track: Track) -> None:
    (result,) = demonstration_results([race("driver", (2000,), None)], track)
    assert (result.time_ms, result.gate_times_ms.tolist()) == (None, [2000, 0, 0])
    assert result.progress_m == pytest.approx(60.0, abs=0.01)


def test_finish_stands_last_even_when_checkpoints_are_missing(track: Track) -> None:
    """A recording with fewer checkpoints than the track has gates still finishes at the last gate."""
    (result,) = demonstration_results([race("recording", (2000, 5050), 5050)], track)
    assert result.gate_times_ms.tolist() == [2000, 0, 5050]


def races_on(track: Track) -> EvaluationRaces:
    params = read_params()
    return EvaluationRaces.of(
        track, params.observation, params.actions, params.simulator, params.evaluate, params.race_end
    )


def test_facts_name_what_was_used_and_leave_out_what_is_unknown(track: Track) -> None:
    evaluation = Evaluation(track, [Contestant("agent", "Agent", [])], [])
    params, driven = read_params(), races_on(track)
    races = [race("recording", (), None), race("recording", (), 5000), race("driver", (), 5000)]
    empty = {fact.label: fact.text for fact in facts_of(evaluation, races, Origins({}, {}, {}, {}, ()), "", driven)}
    assert {"Pretraining", "Transfer", "Training", "Help on the way"}.isdisjoint(empty)
    assert "2 recordings of 1 player" in empty["Demonstrations"]
    assert "2 of 3 reached the finish" in empty["Demonstrations"]
    assert "after 2 s without getting 0.5 m further, or after 120 s, as in training" in empty["Evaluation"]
    train = params.train.model_dump(mode="json") | {"algorithm": "iqn", "start_anywhere": 0.25}
    training = {"env_steps": 123456, "gradient_steps": 10, "minutes": 2.0, "precision": "float32", "num_collectors": 0}
    sections = {"train": train, "iqn": {"demonstration_share": 0.5, "warmup_steps": 1000}}
    sections["train"] |= {"num_checks": 8, "check_races": 4, "check_candidates": 3, "final_check_races": 9}
    agent = {"provenance": {"parameters": sections, "training": training}, "config": {"algorithm": "iqn"}}
    other = agent | {"config": {"algorithm": "ppo"}}
    known = {
        fact.label: fact.text for fact in facts_of(evaluation, races, Origins({}, {}, {}, agent, (other,)), "", driven)
    }
    assert "IQN, one process" in known["Training"]
    assert "123,456 env steps" in known["Training"]
    assert known["Also trained"].startswith("PPO, one process")
    assert "of the best 3 those are taken that do best in 9 further races" in known["Choice of weights"]
    for text in ("25% of the training races start anywhere", "50% of every batch", "first 1,000 decisions"):
        assert text in known["Help on the way"]
    assert "GPU" not in known["Machine"], "nothing says on what it was trained"


@pytest.mark.parametrize(
    ("where", "said"), [("simulator", "the same simulator."), ("game", "evaluation in the simulator.")]
)
def test_facts_say_where_it_was_trained(track: Track, where: str, said: str) -> None:
    params = read_params()
    train = params.train.model_dump(mode="json") | {"environment": where}
    training = {"env_steps": 1, "gradient_steps": 1, "minutes": 1.0, "device": "cuda:0"}
    agent = {"provenance": {"parameters": {"train": train}, "training": training}}
    facts = facts_of(Evaluation(track, [], []), [], Origins({}, {}, {}, agent, ()), "", races_on(track))
    texts = {fact.label: fact.text for fact in facts}
    assert texts["Help on the way"].endswith(said)
    assert texts["Machine"].endswith("; trained on cuda:0.")


@pytest.mark.parametrize(
    ("actions", "text"),
    [
        (
            ["copied", "copied", "kept"],
            "2 of the 3 tensors of the agent's network were copied from what was learned before, 1 start fresh.",
        ),
        (["copied"], "1 of the 1 tensors of the agent's network were copied from what was learned before."),
        (
            ["kept", "kept"],
            "None of the 2 tensors of the agent's network was taken from what was learned before.",
        ),
    ],
)
def test_transfer_counts_the_tensors_of_the_new_network(tmp_path: Path, actions: list[str], text: str) -> None:
    rows = [{"where": "new network", "action": action} for action in actions]
    rows += [{"where": "cloned policy", "action": action} for action in ("copied", "refused")]
    (tmp_path / "report.json").write_text(json.dumps({"tensors": rows}))
    assert transfer_summary(tmp_path) == text
    assert transfer_summary(tmp_path / "missing") == ""


SCRATCH = dict.fromkeys(("encoder", "float_head", "trunk", "heads"), "fresh")
IQN_HELP = (
    "The first 1,000 decisions of IQN are those of the frozen cloned policy. "
    "50% of every batch of IQN comes from demonstrations. "
)


@pytest.mark.parametrize(
    ("algorithm", "parts", "sentence"),
    [
        ("ppo", SCRATCH, "PPO starts from scratch, with random weights."),
        ("iqn", SCRATCH, "IQN starts from scratch, with random weights."),
        ("ppo", dict.fromkeys(SCRATCH, "cloned"), "PPO starts as the cloned policy; what that has not starts random."),
        (
            "ppo",
            SCRATCH | {"encoder": "pretrained", "heads": "cloned"},
            "PPO starts with the pretrained encoder and the cloned policy head; the rest of its network starts random.",
        ),
        (
            "iqn",
            SCRATCH | {"encoder": "cloned", "float_head": "cloned"},
            "IQN starts with the cloned encoder and the cloned float head; the rest of its network starts random.",
        ),
    ],
)
def test_facts_say_what_each_agent_started_with(
    track: Track, algorithm: str, parts: dict[str, str], sentence: str
) -> None:
    evaluation = Evaluation(track, [Contestant("agent", "Agent", [])], [])

    def help_text(origins: Origins) -> str:
        facts = facts_of(evaluation, [], origins, "", races_on(track))
        return next(fact.text for fact in facts if fact.label == "Help on the way")

    sections = {"train": {"algorithm": algorithm}, "iqn": {"warmup_steps": 1000, "demonstration_share": 0.5}}
    agent = {"provenance": {"parameters": sections}, "config": {"algorithm": algorithm}}
    initial = {"provenance": {"parameters": {"transfer": {algorithm: parts, "seed": 1}}}}
    given = IQN_HELP if algorithm == "iqn" else ""
    expected = f"{sentence} {given}Training and evaluation use the same track and the same simulator."
    assert help_text(Origins({}, {}, initial, agent, ())) == expected
    other = {"provenance": {"parameters": {"train": {"algorithm": "x"}}}, "config": {"algorithm": "x"}}
    assert help_text(Origins({}, {}, initial, other, (agent,))) == expected, "of compared agents as well"


def test_facts_do_not_guess_what_an_agent_started_with(track: Track) -> None:
    evaluation = Evaluation(track, [Contestant("agent", "Agent", [])], [])
    agent = {"provenance": {"parameters": {"train": {"algorithm": "ppo"}}}, "config": {"algorithm": "ppo"}}
    facts = facts_of(evaluation, [], Origins({}, {}, {}, agent, ()), "", races_on(track))
    assert not any("starts" in fact.text for fact in facts if fact.label == "Help on the way")


def test_view_from_above_keeps_left_on_the_left() -> None:
    """Along +z with up +y, left is +x: on the page, start to finish points right and left is up."""
    centre_m = np.zeros((101, 3))
    centre_m[:, 2] = np.arange(101) * 0.5
    flat = np.zeros(101)
    view = top_view(
        Track("s", "s", centre_m, flat + 10, flat, flat.astype(np.uint8), flat.astype(np.uint8), np.array([50.0]), "x")
    )
    start, finish, left = view(np.array([[0.0, 5.0, 0.0], [0.0, 9.0, 50.0], [3.0, 0.0, 0.0]]))
    np.testing.assert_allclose(finish - start, [50.0, 0.0], atol=1e-9)
    np.testing.assert_allclose(left - start, [0.0, 3.0], atol=1e-9)
