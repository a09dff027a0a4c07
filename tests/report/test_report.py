"""The page: true in every case, safe, and without any request to the network."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from rulka.datasets.formats.races import QuarantinedFile, Race
from rulka.evaluation.coach import Bend, Coached, Drive
from rulka.evaluation.metrics import entries_by_track, metrics_of
from rulka.evaluation.race import EvaluationRaces
from rulka.evaluation.results import Contestant, Evaluation, RaceResult
from rulka.params import read_params
from rulka.report.figures import Plot, draw_figures, encoder_figures
from rulka.report.learning_plots import TrainingLog
from rulka.report.page import MAX_VIDEO_BYTES, Origins, Report, headline, render_report
from rulka.tracks.track import Track
from tests.report.test_inputs import race_of

MakeRace = Callable[..., RaceResult]
NOTHING = Origins({}, {}, {}, {}, ())
COACHED = Coached(
    time_s=12.5,
    coach_s=12.0,
    bends=(
        Bend(
            0.0,
            80.0,
            -90.0,
            0.25,
            None,
            Drive(0.0, 0.0, 72.0, 30.0, 12.0, 40.0),
            Drive(0.0, 0.0, 90.0, 10.0, 9.0, 46.0),
        ),
    ),
)


def make_evaluation(track: Track, make_race: MakeRace, *, is_finished: bool = True) -> Evaluation:
    agent = [make_race(25, 100, None if is_finished else 30), make_race(20, 101, 60)]
    contestants = [
        Contestant("agent", "Agent (PPO)", agent),
        Contestant("iqn", "IQN", [make_race(21)]),
        Contestant("cloned", "Cloned policy", [make_race(15, stop_m=70)]),
        Contestant("random", "Random actions", [make_race(5, stop_m=10)]),
    ]
    return Evaluation(track, contestants, [make_race(speed) for speed in (20, 16, 10)])


def make_report(
    evaluation: Evaluation, video: Path | None = None, plots: Sequence[Plot] = (), demonstrations: Sequence[Race] = ()
) -> Report:
    params = read_params()
    return Report(
        evaluation=evaluation,
        metrics={"tracks": entries_by_track([evaluation], [])} | metrics_of(evaluation, "ppo"),
        races=EvaluationRaces.of(evaluation.track, params),
        demonstrations=demonstrations,
        unused=[],
        origins=NOTHING,
        parameters={"seed": "1 <2>"},
        plots=plots or [Plot("Lines <1>", "How to read it", "Two <lines>", b"light")],
        video=video,
        video_caption="the best race",
        coached=COACHED,
    )


def headline_of(evaluation: Evaluation) -> str:
    return headline(metrics_of(evaluation, "ppo")).replace("\N{NO-BREAK SPACE}", " ")


def test_page_says_where_time_was_lost(track: Track, make_race: MakeRace) -> None:
    """0.25 s at 72 km/h are 5 m; 3 m less on the brake are not told."""
    page = html.unescape(render_report(make_report(make_evaluation(track, make_race))))
    cells = ("0 to 80 m, 90\N{DEGREE SIGN} right", "0, 0, 72", "0, 0, 90", "+0.25 s, +5 m")
    told = "off the gas for 10 m, not 30 m; steers 6 m later"
    assert "".join([f"<tr><th>{cells[0]}</th>", *(f"<td>{cell}</td>" for cell in (*cells[1:], told)), "</tr>"]) in page
    assert "The race took 12.50 s; the coach takes 12.00 s from the same start." in page


def test_headline_admits_whatever_it_is(track: Track, make_race: MakeRace) -> None:
    """One race of 4 s; demonstrations of 5, 6.25 and 10 s: 2.25 s before the median, 1 s before the best."""
    assert headline_of(make_evaluation(track, make_race)) == (
        "The agent finished 1 of 2 races; its median was 2.25 s faster than the median demonstration, "
        "its best 1.00 s faster than the best."
    )
    slow = Evaluation(track, [Contestant("agent", "Agent", [make_race(8)])], [make_race(10)])
    assert "2.50 s slower than the median" in headline_of(slow)
    assert headline_of(make_evaluation(track, make_race, is_finished=False)) == (
        "The agent finished none of 2 races; it came 45 m far on average."
    )


def test_page_is_whole_and_asks_no_server(track: Track, make_race: MakeRace, tmp_path: Path) -> None:
    """With the pictures of Level 0, and names of strangers' files escaped."""
    video = tmp_path / "race.mp4"
    video.write_bytes(b"not really a video")
    assert encoder_figures(tmp_path) == []
    for name in ("previews.png", "other.png"):
        (tmp_path / name).write_bytes(name.encode())
    (previews,) = encoder_figures(tmp_path)
    plots = [Plot("Lines <1>", "How to read it", "Two <lines>", b"light"), previews]
    page = render_report(make_report(make_evaluation(track, make_race), video, plots=plots))
    references = re.findall(r'\b(?:src|href|srcset)="([^"]*)"', page)
    assert all(reference.startswith(("data:", "#")) for reference in references)
    images = [f"data:image/png;base64,{base64.b64encode(plot.png).decode()}" for plot in plots]
    assert [reference for reference in references if "image/png" in reference] == images
    assert not re.search(r"https?://|@import|url\(", page)
    assert page.count("data:video/mp4") == 1
    video.write_bytes(bytes(MAX_VIDEO_BYTES + 1))
    assert 'src="race.mp4"' in render_report(make_report(make_evaluation(track, make_race), video))
    for escaped in ("Lines &lt;1&gt;", "Two &lt;lines&gt;", "straight &lt;b&gt;road&lt;/b&gt;", "1 &lt;2&gt;"):
        assert escaped in page
    assert "<b>" not in page


def test_table_holds_every_contestant_the_demonstrations_and_the_reference(track: Track, make_race: MakeRace) -> None:
    evaluation = make_evaluation(track, make_race)
    page = render_report(make_report(replace(evaluation, reference=make_race(50))))
    assert "Reference lap" not in render_report(make_report(evaluation))
    names = re.findall(r"<tr[^>]*><th>(?:<span[^>]*></span>)?([^<]+)</th>", page)
    first = names[: names.index("Reference lap") + 1]
    drivers = ["Agent (PPO)", "IQN", "Cloned policy", "Random actions"]
    assert first == [*drivers, "Demonstrations", "Reference lap"]


def test_page_and_figures_when_nobody_finishes(track: Track, make_race: MakeRace) -> None:
    races = [make_race(10, stop_m=40), make_race(10, stop_m=20)]
    for demonstrations in (races, []):
        evaluation = Evaluation(track, [Contestant("agent", "Agent", races)], demonstrations)
        figures = draw_figures(evaluation, {}, 6.0)
        assert set(figures) == {"driven_lines"}  # no times, and nothing to split against
        assert figures["driven_lines"].png.startswith(b"\x89PNG")
        assert "The agent finished none of 2 races;" in render_report(make_report(evaluation))


def test_page_says_where_training_changed_nothing(track: Track, make_race: MakeRace) -> None:
    """Equal to the millisecond, race by race; one race that differs is a change."""
    races = [make_race(20, 100), make_race(25, 101, 60)]
    for agent, is_said in ((races, True), ([races[0], make_race(25, 101, 61)], False)):
        contestants = [Contestant("agent", "Agent (PPO)", agent), Contestant("cloned", "Cloned policy", races)]
        contestants.append(Contestant("random", "Random actions", races))
        page = render_report(make_report(Evaluation(track, contestants, [])))
        assert "Random actions and the cloned policy" not in page, "nobody trained them"
        assert ("Agent (PPO) and the cloned policy drove the same races, to the millisecond" in page) == is_said


def test_code_in_a_caption_is_code(track: Track, make_race: MakeRace) -> None:
    log = TrainingLog("PPO", pd.DataFrame({"env_steps": [1, 2], "finish_rate": [0.0, 1.0]}))
    figures = draw_figures(make_evaluation(track, make_race), {"agent": log}, 6.0)
    assert "up to 6 m away from it: lines may leave the grey" in figures["driven_lines"].caption
    plots = [*figures.values(), Plot("a", "`<b>`", "", b"")]
    page = render_report(make_report(make_evaluation(track, make_race), plots=plots))
    captions = "".join(re.findall(r"<figcaption>.*?</figcaption>", page, re.DOTALL))
    assert "<code>rulka dashboard</code> draws" in captions
    assert "<code>&lt;b&gt;</code>" in captions
    assert "`" not in captions


def used(track: Track, make_race: MakeRace, origins: Origins, demonstrations: Sequence[Race] = ()) -> dict[str, str]:
    """What the page says was used, by label."""
    evaluation = Evaluation(track, [Contestant("agent", "Agent", [make_race(20)])], [])
    report = make_report(evaluation, demonstrations=demonstrations)
    page = render_report(replace(report, origins=origins, parameters=origins.parameters))
    found = re.findall(r"<dt>([^<]+)</dt><dd>([^<]*)</dd>", page.partition('id="used"')[2], re.DOTALL)
    return {label: " ".join(html.unescape(text).split()) for label, text in found}


def test_facts_name_what_was_used_and_leave_out_what_is_unknown(track: Track, make_race: MakeRace) -> None:
    races = [race_of("recording", (), None), race_of("recording", (), 5000), race_of("driver", (), 5000)]
    empty = used(track, make_race, NOTHING, races)
    assert set(empty) == {"Track", "Demonstrations", "Evaluation"}
    assert empty["Demonstrations"].startswith("2 recordings of 1 player, driven in the game and 1 race of the built-in")
    assert empty["Demonstrations"].endswith("2 of 3 reached the finish.")
    snow = [replace(races[0], car="StadiumCar"), replace(races[1], car="SnowCar")]
    told = used(track, make_race, NOTHING, snow)["Demonstrations"]
    assert told.startswith(
        "2 recordings of 1 player, driven in the game, also with the car SnowCar, which is not simul"
    )
    by_hand = [race_of("drive", (), 5000)]
    told = used(track, make_race, NOTHING, by_hand)["Demonstrations"]
    assert told == "1 race of 1 person, driven in the simulator; 1 of 1 reached the finish."
    assert "The simulator is not the game" not in render_report(
        make_report(make_evaluation(track, make_race), demonstrations=by_hand)
    )
    warned = render_report(make_report(make_evaluation(track, make_race), demonstrations=races))
    assert "The simulator is not the game" in warned
    train = read_params().train.model_dump(mode="json") | {"start_anywhere": 0.25}
    sections = {"train": train, "iqn": {"demonstration_share": 0.5, "warmup_steps": 1000}}
    training = {"env_steps": 123456, "gradient_steps": 10, "precision": "float32", "num_collectors": 0}
    made = {"parameters": sections, "training": training, "versions": {"torch": "2.9", "none": None}}
    agent = {"provenance": made | {"commit": "c" * 40, "is_dirty": True}, "config": {"algorithm": "iqn"}}
    other = agent | {"config": {"algorithm": "ppo"}}
    encoder = {"provenance": {"parameters": {"pretrain": {"objective": {"kind": "simclr"}, "epochs": 1}}}}
    dagger = {"rounds": 7, "num_races": 20, "adviser": "recording"}
    cloned = {"provenance": {"parameters": {"clone": {"epochs": 8, "dagger": dagger}}, "recoveries": 90}}
    known = used(track, make_race, Origins(encoder, cloned, {}, agent, (other,)))
    assert known["Training"].startswith("IQN, one process with 32 cars: 123,456 env steps")
    assert known["Also trained"].startswith("PPO, one process")
    assert known["Pretraining"] == (
        "Level 0: simclr on frames, 1 epoch. Level 1: behaviour cloning, frames and floats to actions, 8 epochs, also "
        "of 90 drives in the simulator that recover from disturbances; DAgger, 7 rounds of 20 races of the policy, "
        "labelled by the planner, which follows the fastest recording."
    )
    cloned["provenance"] = {"parameters": {"clone": {"epochs": 8, "dagger": None}}}
    plain = used(track, make_race, Origins({}, cloned, {}, {}, ()))["Pretraining"]
    assert plain == "Level 1: behaviour cloning, frames and floats to actions, 8 epochs."
    for steps, kept in (
        (0, "the initial weights, since none of training did better"),
        (512, "the weights after 512 env"),
    ):
        training["weights_of_env_steps"] = steps
        selected = used(track, make_race, Origins({}, {}, {}, agent, ()))["Weight selection"]
        assert f"Kept: {kept}" in selected
    report = make_report(make_evaluation(track, make_race))
    unused = [QuarantinedFile(f"{k} <b>.Gbx", "RespawnError: the player respawned 1 time", "") for k in range(12)]
    page = render_report(replace(report, unused=unused))
    assert "12 recordings: 0 &lt;b&gt;.Gbx, RespawnError: the player respawned 1 time; 1 &lt;" in page
    assert "9 &lt;b&gt;.Gbx, RespawnError: the player respawned 1 time and more.</dd>" in page
    assert "The best 4 and the initial weights" in known["Weight selection"]
    for text in ("25% of the training races start anywhere", "50% of every batch", "first 1,000 decisions"):
        assert text in known["Initialisation and aids"]
    assert known["Software"] == "torch 2.9; agent made at commit cccccccccc, with changes that were not committed."


def test_facts_say_what_each_agent_started_with(track: Track, make_race: MakeRace) -> None:
    """The agent, or one that is compared with it; nothing is guessed where nobody says it."""
    train = read_params().train.model_dump(mode="json")
    other = {"provenance": {"parameters": {"train": train}}, "config": {"algorithm": "x"}}
    scratch = dict.fromkeys(("encoder", "float_head", "trunk", "heads"), "fresh")
    some = scratch | {"encoder": "pretrained", "float_head": "cloned"}
    for algorithm, parts, sentence in (
        ("ppo", scratch, "PPO starts with random weights."),
        ("iqn", some, "IQN starts with the pretrained encoder and the cloned float head, the rest of its network with"),
    ):
        agent = {"provenance": {"parameters": {"train": train}}, "config": {"algorithm": algorithm}}
        initial = {"provenance": {"parameters": {"transfer": {algorithm: parts, "seed": 1}}}}
        for shown, compared in ((agent, ()), (other, (agent,))):
            facts = used(track, make_race, Origins({}, {}, initial, shown, compared))
            assert facts["Initialisation and aids"].startswith(sentence)
        assert "starts" not in used(track, make_race, Origins({}, {}, {}, agent, ()))["Initialisation and aids"]
    agent["provenance"]["parameters"]["train"]["environment"] = "game"
    in_game = used(track, make_race, Origins({}, {}, {}, agent, ()))["Initialisation and aids"]
    assert in_game.endswith("drives the track in the game, evaluation in the simulator.")
