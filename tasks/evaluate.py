"""Stage `evaluate`: greedy races from fixed seeds, compared with the cloned policy, a random one and demonstrations.

Reads  data/agent/          the agent, its training log, and compared/<algorithm>/ with further ones
       data/races/          track and demonstrations
       data/policy/         the cloned policy and its metrics
       data/agent_init/, data/encoder/    their metadata, for the report's provenance
Writes data/evaluation/
         report.html        one page that opens offline
         race.mp4           the agent's best race; best_race.txt has its inputs, if TMInterface can play them
         metrics.json       see rulka.evaluation.metrics
         scores.json        the subset that DVC compares
         races.json         every race: start, end, time, gates
         laps/              the best race of each contestant on each track, and the reference laps: a race dataset
         plots/*.png
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from rulka.agents.algorithms import label_of
from rulka.contracts.artifacts import read_meta
from rulka.datasets.formats.races import load_races, write_races
from rulka.evaluation.coach import coach_race, planner_coach
from rulka.evaluation.contest import Driver, drivers, race_all, trained_tracks
from rulka.evaluation.dataset import best_laps, demonstration_results, export_result
from rulka.evaluation.metrics import entries_by_track, format_metrics, format_tracks, metrics_of, scores_of
from rulka.evaluation.params import EvaluateParams
from rulka.evaluation.race import EvaluationRaces, RandomPolicy, find_reference_race
from rulka.evaluation.results import Evaluation, best_race, median_race
from rulka.machine.device import use_device
from rulka.machine.terminal import say
from rulka.params import Params, params_of_stage
from rulka.report.figures import draw_figures, encoder_figures
from rulka.report.learning_plots import TrainingLog, read_training_log
from rulka.report.page import Origins, Report, render_report
from rulka.simulator.race_settings import RaceSettings
from rulka.stages.folders import (
    AGENT,
    AGENT_INIT,
    COMPARED,
    ENCODER,
    EVALUATION,
    LAPS,
    METRICS_FILE,
    PLOTS,
    POLICY,
    RACES,
    REPORT_PAGE,
    TRAINING_LOG,
    VIDEO_FILE,
)
from rulka.stages.stage import output_folder, require, run_stage
from rulka.tracks.find import chosen_tracks
from rulka.video.hud import HudTexts
from rulka.video.race_video import VideoRace, write_video

RACES_FILE = "races.json"
SCORES_FILE = "scores.json"
"""Metrics for `dvc metrics`."""


@dataclass(frozen=True)
class Inputs:
    """Input folders of the stage.

    Attributes:
        agent: `data/agent`.
        races: `data/races`.
        policy: `data/policy`.
        agent_init: `data/agent_init`.
        encoder: `data/encoder`.
    """

    agent: Path
    races: Path
    policy: Path
    agent_init: Path
    encoder: Path


def evaluate(params: Params, *, inputs: Inputs, out_dir: Path) -> None:
    """Runs the races, and writes metrics, plots, video and report.

    Raises:
        UserError: if an input is missing, damaged, or made for other observations or actions.
    """
    evaluate, race_end = params.evaluate, params.race_end
    require(inputs.agent, "train")
    require(inputs.policy, "clone")
    require(inputs.races, "races")
    dataset = load_races(inputs.races)
    demonstrations = dataset.on_main_track()
    settings = RaceSettings.for_evaluation(params.observation, params.actions, params.simulator, evaluate, race_end)
    seeds = range(evaluate.seed, evaluate.seed + evaluate.num_races)
    races = EvaluationRaces(dataset.main_track, settings, seeds)
    further = [track for track in chosen_tracks(evaluate.tracks, races.track) if track.uid != races.track.uid]
    entries = drivers(inputs.agent, inputs.policy, evaluate.guests, races, use_device())
    evaluation = race_all(
        entries,
        races,
        demonstration_results(demonstrations, races.track),
        find_reference_race(inputs.races, races),
    )
    by_track = [evaluation, *(_on_another_track(entries, replace(races, track=track), inputs) for track in further)]
    tracks = entries_by_track(by_track, trained_tracks(inputs.agent))
    metrics = {"tracks": tracks} | metrics_of(evaluation, getattr(entries[0].policy, "algorithm", "agent"))
    with output_folder(out_dir) as folder:
        _write_json(folder / METRICS_FILE, metrics)
        _write_json(folder / SCORES_FILE, scores_of(metrics))
        _write_json(folder / RACES_FILE, {c.key: [r.to_json() for r in c.races] for c in evaluation.contestants})
        caption = _film(folder / VIDEO_FILE, evaluation, races.settings, evaluate)
        driven = evaluation.contestants[0].races
        best = best_race(driven)
        assert best is not None
        middle = median_race(driven) or best
        export_result(folder / "best_race.txt", best, evaluation.contestants[0].label)
        (folder / LAPS).mkdir()
        write_races(folder / LAPS, best_laps(by_track))
        figures = draw_figures(evaluation, _training_logs(inputs.agent), params.simulator.physics.off_road_m)
        (folder / PLOTS).mkdir()
        for name, figure in figures.items():
            (folder / PLOTS / f"{name}.png").write_bytes(figure.png)
        origins = Origins.read(inputs.encoder, inputs.policy, inputs.agent_init, inputs.agent)
        own = {"evaluate": evaluate.model_dump(mode="json"), "race_end": race_end.model_dump(mode="json")}
        report = Report(
            evaluation=evaluation,
            metrics=metrics,
            races=races,
            demonstrations=demonstrations,
            unused=dataset.quarantine,
            origins=origins,
            parameters=origins.parameters | own,
            coached=coach_race(middle, planner_coach(middle, settings)),
            plots=[*figures.values(), *encoder_figures(inputs.encoder)],
            video=folder / VIDEO_FILE,
            video_caption=caption,
        )
        (folder / REPORT_PAGE).write_text(render_report(report), encoding="utf-8")
    lines = [
        "",
        format_metrics(metrics),
        "",
        *([format_tracks(tracks), ""] if len(tracks) > 1 else []),
        f"report  {(out_dir / REPORT_PAGE).as_posix()}",
        f"plots   {(out_dir / PLOTS).as_posix()}",
        f"video   {(out_dir / VIDEO_FILE).as_posix()}",
    ]
    say("\n".join(lines))


def _on_another_track(entries: list[Driver], races: EvaluationRaces, inputs: Inputs) -> Evaluation:
    """Races all drivers except the random policy on a further track, without demonstrations."""
    able = [entry for entry in entries if not isinstance(entry.policy, RandomPolicy)]
    return race_all(able, races, [], find_reference_race(inputs.races, races), label=races.track.name)


def _film(path: Path, evaluation: Evaluation, settings: RaceSettings, evaluate: EvaluateParams) -> str:
    """Writes the video of the agent's best race; returns its caption."""
    agent, ghost = evaluation.contestants[0], evaluation.best_demonstration
    best = best_race(agent.races)
    assert best is not None
    ghost_text = f"ghost: best demonstration, {ghost.time_s:.2f} s" if ghost and ghost.time_s is not None else ""
    texts = HudTexts(agent.label, f"{evaluation.track.name[:28]}, start {best.seed}", ghost_text)
    shown = VideoRace(best, (ghost,) if ghost else (), texts)
    write_video(path, shown, settings.simulator.camera, settings.image, evaluate)
    ending = f"{best.time_s:.2f} s" if best.time_s is not None else f"{best.end} after {best.progress_m:.0f} m"
    beside = " The blue car is the best demonstration, started at the same moment." if ghost else ""
    return f"The agent’s best race of {len(agent.races)}: {ending}, from start {best.seed}.{beside}"  # noqa: RUF001


def _training_logs(agent_dir: Path) -> dict[str, TrainingLog]:
    """Returns the existing training logs by contestant key, the agent's own first, labelled by algorithm."""
    folders = {"agent": agent_dir} | {folder.name: folder for folder in sorted((agent_dir / COMPARED).glob("*/"))}
    logs = {}
    for key, folder in folders.items():
        if (folder / TRAINING_LOG).exists():
            algorithm = read_meta(folder)["config"].get("algorithm", key)
            logs[key] = read_training_log(folder / TRAINING_LOG, label_of(algorithm))
    return logs


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def main() -> None:
    """Runs the stage with the parameters and folders of the project."""
    inputs = Inputs(agent=AGENT, races=RACES, policy=POLICY, agent_init=AGENT_INIT, encoder=ENCODER)
    evaluate(params_of_stage("evaluate"), inputs=inputs, out_dir=EVALUATION)


if __name__ == "__main__":
    run_stage(main)
