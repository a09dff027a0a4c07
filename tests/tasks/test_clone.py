"""Stage `clone` on tiny data whose right action can be read off the image."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch.nn import functional

import rulka.evaluation.closed_loop as closed_loop
import rulka.pretraining.cloning as cloning
import tasks.clone as stage
from models.actor_critic import ClonePolicy
from models.encoders.build import build_encoder
from rulka.agents.load import load_policy
from rulka.agents.shared.networks import build_clone_policy
from rulka.contracts.actions import ActionParams, ActionTable, action_table
from rulka.contracts.artifacts import Artifact, load_artifact, network_input_contract, save_artifact
from rulka.contracts.observation import reference_normalisation
from rulka.datasets.drives import Recorder, save_drive
from rulka.datasets.formats.checksums import SEAL, sealed
from rulka.datasets.formats.frames import Batch, FrameDataset, FrameRace, frames_of
from rulka.datasets.formats.races import RaceDataset, load_races
from rulka.datasets.formats.split import SPLITS
from rulka.evaluation.closed_loop import ClosedLoop
from rulka.evaluation.race import EvaluationRaces
from rulka.machine.errors import UserError
from rulka.machine.progress import Progress
from rulka.params import reference_params
from rulka.pretraining.cloning import Predictions
from rulka.pretraining.fit import TrainingTask, fit
from rulka.pretraining.params import CloneParams, DaggerParams
from rulka.tracks.params import CampaignTracksParams, MainTrackParams
from tasks.clone import Folders, clone
from tests.conftest import Killed, sees, straight_track

Write = Callable[..., tuple[Path, Any]]
OBSERVATION = sees(64, 64)
REFERENCE = reference_params()
CONV = REFERENCE.encoder
NETWORK = REFERENCE.network.model_copy(update={"float_hidden": 16, "dense_hidden": 64})


def params(**changes: Any) -> CloneParams:
    values: dict[str, Any] = {"epochs": 6, "patience": None, "batch_size": 32, "learning_rate": 0.003}
    values |= {"weight_decay": 0.0, "precision": "float32", "previous_action_dropout": 1.0, "offsets": [0]}
    return CloneParams(**values | {"race_every": 0, "num_races": 4, "dagger": None} | changes)


@pytest.fixture
def encoder_dir(tmp_path: Path) -> Path:
    torch.manual_seed(5)
    tensors = {f"encoder.{name}": tensor for name, tensor in build_encoder(CONV, 64, 64).state_dict().items()}
    artifact = Artifact(
        "encoder",
        tensors,
        {"encoder": CONV.model_dump()},
        network_input_contract(OBSERVATION),
        action_table(5),
        reference_normalisation(),
    )
    save_artifact(tmp_path / "encoder", artifact)
    return tmp_path / "encoder"


def start(folders: Folders, *, draws: bool = False, sections: dict[str, Any] | None = None, **changes: Any) -> None:
    """Runs the stage; its plots, which take longer than such short trainings, are empty files unless it `draws`."""
    own = {"observation": OBSERVATION, "network": NETWORK, "clone": params(**changes)} | (sections or {})
    with pytest.MonkeyPatch.context() as patches:
        if not draws:
            patches.setattr(Figure, "savefig", lambda _, path, **__: Path(path).touch())
        clone(REFERENCE.model_copy(update=own), folders=folders)


def run(frames_dir: Path, encoder_dir: Path, out_dir: Path, **changes: Any) -> dict[str, Any]:
    start(Folders(out_dir / "no races", frames_dir, encoder_dir, out_dir, out_dir.parent / "runs"), **changes)
    return json.loads((out_dir / "metrics.json").read_text())


@pytest.mark.parametrize(
    ("changes", "message", "hint"),
    [
        ({"sections": {"encoder": CONV.model_copy(update={"adaptive_pool": 3})}}, "is 0, expected 3", "repro pretrain"),
        ({"sections": {"actions": ActionParams(ticks_per_action=10)}}, "ticks_per_action 5, expected 10", "capture"),
        ({"race_every": 1}, "no races", "dvc repro races"),
        ({"offsets": [0, 6]}, "looks 6 decisions ahead, and race race-0 has 6: none", "Take offsets below 6."),
    ],
)
def test_what_the_frames_or_the_encoder_are_not_made_for_is_refused(
    write_frames: Write, encoder_dir: Path, tmp_path: Path, changes: dict[str, Any], message: str, hint: str
) -> None:
    frames_dir, _ = write_frames(num_races=3, num_frames=6)
    with pytest.raises(UserError, match=message) as caught:
        run(frames_dir, encoder_dir, tmp_path / "policy", **changes)
    assert hint in caught.value.for_people()


def test_the_epoch_is_chosen_as_it_will_drive_by_races_that_report_nothing(
    write_frames: Write, encoder_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second epoch is best along races with its own actions, whatever it would do with the recorded ones."""
    frames_dir, _ = write_frames(num_races=10, num_frames=12, validation_fraction=0.3, test_fraction=0.2)
    validation, test = (FrameDataset(frames_dir, split).races for split in SPLITS[1:])
    losses, chosen_by = iter([2.0, 1.0, 3.0, 0.0]), []  # the last is that of the report

    def own(_policy: object, frames: FrameDataset, races: list[FrameRace], table: ActionTable) -> Predictions:
        chosen_by.append(races)
        share = torch.from_numpy(frames.action_share[frames_of(races)])
        return Predictions(torch.where(share > 0, 0.0, next(losses)), table)  # the higher the worse

    for module in (stage, cloning):
        monkeypatch.setattr(module, "predict_own", own)
    metrics = run(frames_dir, encoder_dir, tmp_path / "policy", epochs=3)
    assert metrics["best_epoch"] == 1
    assert chosen_by == [validation] * 3 + [test]
    assert metrics["measured_on"] == "test"
    num_reported = sum(race.num_frames for race in test)
    assert sum(map(sum, metrics["confusion"])) == num_reported
    assert (metrics["num_validation_races"], metrics["num_measured_races"]) == (len(validation), len(test))


@pytest.mark.parametrize(("maps", "num_frames"), [("main", 12 + 13), ("all", 12 + 13 + 14 + 15)])
def test_the_main_track_is_imitated_or_all_maps(
    write_frames: Write,
    encoder_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    maps: str,
    num_frames: int,
) -> None:
    monkeypatch.setattr(FrameRace, "is_recovery", property(lambda race: race.num_frames != 12))
    frames_dir, _ = write_frames(num_races=4, num_frames=12, num_elsewhere=2, validation_fraction=0.0)
    metrics = run(frames_dir, encoder_dir, tmp_path / "policy", epochs=1, maps=maps)
    assert metrics["num_train_frames"] == num_frames
    recoveries = load_artifact(tmp_path / "policy", "policy").provenance["recoveries"]
    assert recoveries == (1 if maps == "main" else 3), "only those that are imitated"
    assert sum(map(sum, metrics["confusion"])) == num_frames
    assert (metrics["measured_on"], metrics["validation_accuracy"]) == ("train", None), "there is no other split"


def test_it_learns_what_a_person_drove_in_an_agents_place(
    write_frames: Write, encoder_dir: Path, tmp_path: Path
) -> None:
    """Which changes the run's inputs, unless `takeovers` is off."""
    frames_dir, _ = write_frames(num_races=3, num_frames=12)
    track, simulator = straight_track(), REFERENCE.simulator
    recorder = Recorder(track, simulator)
    for tick in range(200):
        recorder.tick((0.0, 1.0, 0.0), by_person=50 <= tick < 100)
    (kept := tmp_path / "takeovers").mkdir()
    path = save_drive(kept, recorder.race("Ann"), track, simulator)
    for takeovers in (True, False):
        out = tmp_path / f"policy-{takeovers}"
        folders = Folders(tmp_path / "no races", frames_dir, encoder_dir, out, tmp_path / "runs", kept)
        start(folders, epochs=2, takeovers=takeovers)
        assert json.loads((out / "metrics.json").read_text())["num_takeover_frames"] == (10 if takeovers else 0)
        assert (path.name in load_artifact(out, "policy").provenance["inputs_sha256"]) == takeovers


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_it_learns_on_another_device(
    write_frames: Write,
    encoder_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: torch.device,
    precision: str,
) -> None:
    """All measures are those of the CPU, to rounding, where the device draws the same numbers."""
    frames_dir, _ = write_frames(num_races=4)
    changes = {"epochs": 2, "previous_action_dropout": 0.5}
    expected = run(frames_dir, encoder_dir, tmp_path / "here", **changes)
    monkeypatch.setattr("tasks.clone.use_device", lambda: device)
    found = run(frames_dir, encoder_dir, tmp_path / "there", precision=precision, **changes)
    tolerance = 0.01 if (device.type, precision) == ("standin", "float32") else 0.2
    assert found["train_loss"] == pytest.approx(expected["train_loss"], rel=tolerance)
    assert found["loss_with_own_actions"] == pytest.approx(expected["loss_with_own_actions"], rel=tolerance)
    policies = [load_policy(tmp_path / "there", device=place) for place in (torch.device("cpu"), device)]
    frames = FrameDataset(frames_dir, "train")
    one, other = (policy(frames.images[:40], frames.floats[:40]) for policy in policies)
    assert (one == other).mean() > 0.95


def test_the_epoch_that_races_best_is_kept(
    driven: tuple[Path, Path], encoder_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It races after every second epoch and the last; the ranks here say that the fourth is the best.

    The kept weights then race from other starts.
    """
    races, frames = driven
    seen: list[range] = []
    drove: list[dict[str, torch.Tensor]] = []

    def drive(policy: ClonePolicy, on_tracks: list[EvaluationRaces]) -> ClosedLoop:
        (races,) = on_tracks
        seen.append(races.seeds)
        drove.append({name: tensor.clone() for name, tensor in policy.state_dict().items()})
        real = closed_loop.drive(policy, on_tracks)
        return replace(
            real,
            finish_rate=0.0,
            mean_time_s=None,
            mean_pace_mps=0.0,
            mean_progress_m={1: 5.0, 2: 9.0, 3: 7.0, 4: 6.0}[len(seen)],
        )

    monkeypatch.setattr(stage, "drive", drive)
    out = tmp_path / "policy"
    start(
        Folders(races, frames, encoder_dir, out, tmp_path / "runs"),
        draws=True,
        epochs=5,
        race_every=2,
        num_races=3,
        batch_size=64,
    )
    metrics = json.loads((out / "metrics.json").read_text())
    assert [len(seeds) for seeds in seen] == [3, 3, 3, 3]
    assert all(set(seen[-1]).isdisjoint(seeds) for seeds in seen[:3])
    assert metrics["driven"]["mean_progress_m"] == 6.0
    assert all(torch.equal(tensor, drove[1][name]) for name, tensor in drove[3].items()), "the kept weights"
    assert [row["epoch"] for row in metrics["races"]] == [1, 3, 4]
    assert metrics["best_epoch"] == 3
    assert all(row["mean_duration_s"] > 0.0 for row in metrics["races"])


DAGGER = {"rounds": 2, "every": 1, "num_races": 2, "planner": {"num_plans": 8}}
ELSEWHERE = [
    {"kind": "main"},
    {"kind": "generated", "count": 2, "difficulty": "varied", "seed": 1, "length_m": 200.0},
]


@pytest.mark.parametrize("dagger", [None, DAGGER | {"tracks": ELSEWHERE}, DAGGER | {"adviser": "recording"}])
@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_it_had_not_been_killed(
    dagger: dict[str, Any] | None,
    driven: tuple[Path, Path],
    encoder_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the fourth epoch, after races that chose the best epoch so far."""
    races, frames = driven
    real, calls = stage.augment_floats, []

    def augment_floats(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        if len(calls) == killed_at:
            raise Killed
        return real(*arguments)

    def race(out: Path) -> None:
        folders = Folders(races, frames, encoder_dir, out, tmp_path / "runs")
        start(
            folders,
            epochs=4,
            race_every=2,
            num_races=2,
            batch_size=64,
            checkpoint_s=1e-9,
            float_noise=0.1,
            dagger=dagger,
        )

    real_tracks, turns = stage.chosen_tracks, []

    def chosen_tracks(sets: Any, main: Any, turn: int) -> Any:
        turns.append(turn)
        return real_tracks(sets, main, turn)

    monkeypatch.setattr(stage, "chosen_tracks", chosen_tracks)
    monkeypatch.setattr(stage, "augment_floats", augment_floats)
    killed_at = 0
    race(tmp_path / "whole")
    assert turns == ([2, 0, 1] if dagger else []), "no round drives on the tracks of checks, or of another round"
    num_batches = len(calls)
    killed_at = 2 * num_batches - 1
    with pytest.raises(Killed):
        race(tmp_path / "resumed")
    race(tmp_path / "resumed")
    assert len(calls) == 2 * num_batches + 1
    found = [json.loads((tmp_path / name / "metrics.json").read_text()) for name in ("whole", "resumed")]
    assert [row["epoch"] for row in found[1]["races"]] == [1, 3]
    assert found[0] == found[1]
    frames_of_epochs = [found[0]["num_train_frames"], *(row["num_frames"] for row in found[0]["rounds"])]
    assert min(frames_of_epochs) > 2 * 64, "the second batch from the end is not in the fourth epoch"
    num_tracks = 3 if dagger and "tracks" in dagger else 1
    assert found[0]["driven"]["num_races"] == 2 * num_tracks
    assert [row["num_races"] for row in found[0]["rounds"]] == ([2 * num_tracks] * 2 if dagger else [])
    tensors = [load_artifact(tmp_path / name, "policy").tensors for name in ("whole", "resumed")]
    assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())


def test_heads_ahead_are_measured_and_never_drive(write_frames: Write, encoder_dir: Path, tmp_path: Path) -> None:
    """Actions last three frames: what is done is seen in the image, what comes next mostly not."""
    frames_dir, _ = write_frames()
    metrics = run(frames_dir, encoder_dir, tmp_path / "policy", offsets=[0, 1, 8], draws=True)
    assert metrics["validation_accuracy"] > max(0.95, metrics["majority_accuracy"] + 0.2)
    assert metrics["validation_accuracy"] > metrics["repeat_last_action_accuracy"] + 0.1
    assert metrics["validation_accuracy"] == metrics["accuracy_without_previous_actions"]
    assert metrics["validation_loss"] > metrics["label_entropy"]
    assert (metrics["measured_on"], len(metrics["confusion"])) == ("validation", 12)
    now, next_one, later = metrics["by_offset"]
    assert [row["offset"] for row in metrics["by_offset"]] == [0, 1, 8]
    assert now["accuracy"] == metrics["accuracy"] > next_one["accuracy"] > later["accuracy"]
    assert now["num_frames"] > next_one["num_frames"] > later["num_frames"]
    artifact = load_artifact(tmp_path / "policy", "policy")
    heads = {name for name in artifact.tensors if name.startswith("ahead_heads.")}
    assert heads == {f"ahead_heads.{offset}.{kind}" for offset in (1, 8) for kind in ("weight", "bias")}
    frames = FrameDataset(frames_dir, "validation").batch(slice(None))
    policy = build_clone_policy(OBSERVATION, CONV, NETWORK, artifact.normalisation, 12)
    policy.load_state_dict({name: tensor for name, tensor in artifact.tensors.items() if name not in heads})
    with torch.no_grad():
        expected = policy(frames.image, frames.floats).argmax(dim=1).numpy()
    driver = load_policy(tmp_path / "policy")
    assert (driver(frames.image.numpy(), frames.floats.numpy()) == expected).all()


def test_a_policy_shaped_like_iqn_drives_as_measured(write_frames: Write, encoder_dir: Path, tmp_path: Path) -> None:
    frames_dir, _ = write_frames()
    metrics = run(frames_dir, encoder_dir, tmp_path / "policy", shape="iqn", offsets=[0, 2])
    assert metrics["validation_accuracy"] > metrics["majority_accuracy"] + 0.2
    assert metrics["validation_accuracy"] > metrics["repeat_last_action_accuracy"] + 0.1
    artifact, validation = load_artifact(tmp_path / "policy", "policy"), FrameDataset(frames_dir, "validation")
    assert "tau_embed.0.weight" in artifact.tensors
    numbers = frames_of(validation.races)
    driven = load_policy(tmp_path / "policy")(validation.images[numbers], validation.floats[numbers])
    assert (driven == validation.action[numbers]).mean() == pytest.approx(metrics["validation_accuracy"])


@pytest.mark.parametrize("changes", [{}, {"labels": "hard"}])
def test_with_every_option_off_it_learns_as_it_did_without_them(
    write_frames: Write, encoder_dir: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """The plain loop, bit by bit: the labels of the batch itself, one head, one loss."""
    frames_dir, _ = write_frames()
    metrics = run(frames_dir, encoder_dir, tmp_path / "policy", epochs=2, previous_action_dropout=0.5, **changes)
    learned, pretrained = (load_artifact(tmp_path / kind, kind) for kind in ("policy", "encoder"))
    own, train = params(epochs=2, previous_action_dropout=0.5, **changes), FrameDataset(frames_dir, "train")
    torch.manual_seed(own.seed)
    policy = build_clone_policy(OBSERVATION, CONV, NETWORK, pretrained.normalisation, 12)
    policy.encoder.load_state_dict({n.removeprefix("encoder."): x for n, x in pretrained.tensors.items()})
    cloning.disconnect(policy.float_head, "clock")
    generator = torch.Generator().manual_seed(own.seed)

    def labels_of(batch: Batch) -> torch.Tensor:
        if own.labels == "hard":
            return torch.eye(12)[train.action[batch.number.numpy()].astype(int)]
        return torch.from_numpy(train.action_share[batch.number.numpy()])

    def loss(batch: Batch) -> torch.Tensor:
        floats = cloning.augment_floats(batch.floats, policy.float_mean, policy.float_std, own, generator)
        return functional.cross_entropy(policy(batch.image, floats), labels_of(batch))

    judged = iter(epoch["validation_loss"] for epoch in metrics["epochs"])
    task = TrainingTask(
        batches=lambda epoch: train.iterate_batches(seed=own.seed, epoch=epoch, batch_size=own.batch_size),
        loss=loss,
        validate=lambda: next(judged),
    )
    bar = Progress("", None, "frames", stream=io.StringIO())
    fit(policy, own, -(-len(train) // own.batch_size), task, bar)
    assert set(learned.tensors) == set(policy.state_dict())
    assert all(torch.equal(learned.tensors[name], tensor) for name, tensor in policy.state_dict().items())


def test_frames_without_a_training_race_are_refused(write_frames: Write, encoder_dir: Path, tmp_path: Path) -> None:
    frames_dir, _ = write_frames(num_races=2)
    index = json.loads((frames_dir / "index.json").read_text())
    del index[SEAL]
    index["shards"]["train"] = []
    index["races"] = [race for race in index["races"] if race["split"] == "validation"]
    (frames_dir / "index.json").write_text(json.dumps(sealed(index)))
    with pytest.raises(UserError, match="hold no race to learn from") as caught:
        run(frames_dir, encoder_dir, tmp_path / "policy")
    assert "Lower capture.validation_fraction" in caught.value.for_people()


def test_with_dagger_it_learns_where_it_got_to(driven: tuple[Path, Path], encoder_dir: Path, tmp_path: Path) -> None:
    races, frames = driven
    folders = Folders(races, frames, encoder_dir, tmp_path / "policy", tmp_path / "runs")
    start(folders, epochs=3, race_every=0, batch_size=64, dagger=DAGGER)
    rounds = json.loads((folders.out / "metrics.json").read_text())["rounds"]
    assert [each["epoch"] for each in rounds] == [0, 1]
    assert all(each["num_frames"] > 0 and each["num_races"] == 2 for each in rounds)
    assert not [path for path in (tmp_path / "runs").rglob("*") if path.is_dir() and "round" in path.name]
    plain = replace(folders, out=tmp_path / "plain")
    start(plain, epochs=3, race_every=0, batch_size=64)
    assert json.loads((plain.out / "metrics.json").read_text())["rounds"] == []
    ours, theirs = (load_artifact(folder, "policy").tensors for folder in (folders.out, plain.out))
    assert any(not torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_the_planner_begins_with_the_line_of_a_reference_lap(driven: tuple[Path, Path]) -> None:
    """On a track of the campaign; on one without such a lap, with the centreline."""
    races, frames = driven
    dataset, train = load_races(races), FrameDataset(frames, "train", 1, 1)
    settings = EvaluationRaces.of(dataset.main_track, reference_params()).settings
    dagger = DaggerParams(tracks=(CampaignTracksParams(slugs=("copper-oval",)), MainTrackParams()))
    (_, shipped), (_, unknown) = stage._dagger_rounds(dagger, dataset, train, races, settings)(0)
    assert np.ptp(shipped._course.line_m) > 3.0
    assert not unknown._course.line_m.any()


def test_without_a_finished_race_nothing_is_followed(
    driven: tuple[Path, Path], encoder_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    races, frames = driven
    monkeypatch.setattr(RaceDataset, "on_main_track", lambda _: [])
    folders = Folders(races, frames, encoder_dir, tmp_path / "policy", tmp_path / "runs")
    with pytest.raises(UserError, match=r"clone\.dagger\.adviser"):
        start(folders, epochs=3, race_every=0, batch_size=64, dagger=DAGGER | {"adviser": "recording"})
    assert not folders.out.exists()


def test_others_imitates_all_but_the_main_track(
    driven: tuple[Path, Path], encoder_dir: Path, tmp_path: Path, write_frames: Write
) -> None:
    """Frames of two maps: it learns from those of one, with patience, and is measured on all races of the other."""
    frames, index = write_frames(num_elsewhere=2, validation_fraction=0.0)
    folders = Folders(driven[0], frames, encoder_dir, tmp_path / "policy", tmp_path / "runs")
    start(folders, epochs=8, patience=1, learning_rate=1e-9, maps="others")
    metrics = json.loads((folders.out / "metrics.json").read_text())
    of = {True: 0, False: 0}
    for race in index.races:
        of[race.map_uid == index.main_track] += race.num_frames
    assert metrics["num_train_frames"] == of[False] > 0
    assert sum(map(sum, metrics["confusion"])) == of[True] > 0
    assert metrics["validation_loss"] == metrics["loss"]
    assert metrics["driven"]["num_races"] == 4
    assert "no better epoch in 1" in metrics["stopped"]


def test_impossible_choices_of_maps_are_named(encoder_dir: Path, tmp_path: Path, write_frames: Write) -> None:
    for impossible in ({"race_every": 2}, {"dagger": DAGGER}):
        with pytest.raises(ValueError, match="maps others needs an unseen main track"):
            params(maps="others", epochs=3, **impossible)
    frames, _ = write_frames()
    with pytest.raises(UserError, match=r"clone\.maps is others"):
        run(frames, encoder_dir, tmp_path / "policy", maps="others")


def test_patience_without_races_is_refused_with_dagger() -> None:
    with pytest.raises(ValueError, match="patience with dagger needs races, but race_every is 0"):
        params(epochs=3, patience=1, race_every=0, dagger=DAGGER)
