"""Renders the evaluation report as one self-contained HTML page that needs no network.

Jinja2 templates: `template/page.html`, with `template/used.html` for provenance; styles: `template/page.css`.
This module supplies their data.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rulka.agents.algorithms import label_of
from rulka.agents.params import ALGORITHMS
from rulka.contracts.artifacts import META_FILE, read_meta
from rulka.datasets.formats.races import QuarantinedFile, Race
from rulka.evaluation.coach import Coached, coached_summary, coached_table
from rulka.evaluation.metrics import TRACK_HEAD, Json, format_medals, track_rows
from rulka.evaluation.race import EvaluationRaces
from rulka.evaluation.results import Evaluation
from rulka.report.figures import Plot
from rulka.report.formatting import percent, seconds, signed, templates
from rulka.report.theme import colours_of
from rulka.stages.folders import COMPARED

MAX_VIDEO_BYTES = 8_000_000
"""A larger video stays a separate file instead of being embedded."""


@dataclass(frozen=True)
class Origins:
    """Metadata of the artifacts behind an agent; a missing artifact is an empty dictionary.

    Attributes:
        encoder: Level 0 encoder.
        policy: Level 1 policy.
        agent_init: initial agent from the transfer.
        agent: trained agent.
        compared: agents of the compared algorithms, sorted by name.
    """

    encoder: Json
    policy: Json
    agent_init: Json
    agent: Json
    compared: tuple[Json, ...]

    @classmethod
    def read(cls, encoder_dir: Path, policy_dir: Path, agent_init_dir: Path, agent_dir: Path) -> Origins:
        """Reads the metadata of the artifacts that exist.

        Raises:
            ArtifactError: if an artifact's metadata is damaged.
        """
        folders = (encoder_dir, policy_dir, agent_init_dir, agent_dir)
        metas = [read_meta(folder) if (folder / META_FILE).exists() else {} for folder in folders]
        compared = tuple(read_meta(path.parent) for path in sorted((agent_dir / COMPARED).glob(f"*/{META_FILE}")))
        return cls(*metas, compared=compared)

    @property
    def agents(self) -> list[Json]:
        """The agent, then the compared ones."""
        return [self.agent, *self.compared]

    @property
    def trained(self) -> list[Json]:
        """The agents whose metadata records their training."""
        return [meta for meta in self.agents if "train" in _parameters(meta) and meta["provenance"].get("training")]

    @property
    def parameters(self) -> Json:
        """All parameter sections behind the agent; where stages differ, the later stage wins."""
        merged: Json = {}
        for meta in (self.encoder, self.policy, self.agent_init, self.agent):
            merged |= _parameters(meta)
        return merged


@dataclass(frozen=True)
class Report:
    """Everything the page shows.

    Attributes:
        evaluation: all races.
        metrics: content of `metrics.json`.
        races: track, seeds and settings of the races.
        demonstrations: the dataset's races on this track.
        unused: rejected recordings.
        origins: metadata of the artifacts behind the agent.
        parameters: all parameter sections that affected the result.
        coached: where the agent's median race, or else its furthest, lost time to the planner.
        plots: in page order.
        video: MP4 file; None leaves it out.
        video_caption: caption of the video.
    """

    evaluation: Evaluation
    metrics: Json
    races: EvaluationRaces
    demonstrations: Sequence[Race]
    unused: Sequence[QuarantinedFile]
    origins: Origins
    parameters: Json
    coached: Coached
    plots: Sequence[Plot]
    video: Path | None
    video_caption: str


def render_report(report: Report) -> str:
    """Returns the page as HTML."""
    evaluation, metrics = report.evaluation, report.metrics
    entries = metrics["algorithms"] | metrics
    page = templates(Path(__file__).parent / "template")
    page.filters |= {
        "percent": percent,
        "signed": signed,
        "medals": format_medals,
        "algorithm": label_of,
        "data_uri": _data_uri,
    }
    return page.get_template("page.html").render(
        **vars(report),
        rows=[(contestant, entries[contestant.key]) for contestant in evaluation.contestants],
        colours=colours_of(evaluation),
        headline=headline(metrics),
        unchanged=_unchanged(evaluation),
        track_head=TRACK_HEAD,
        track_rows=track_rows(metrics["tracks"]) if len(metrics["tracks"]) > 1 else [],
        coach_table=coached_table(report.coached),
        coach_summary=coached_summary(report.coached),
        video_source=_video_source(report.video),
        given=[_extra_inputs(meta) for meta in report.origins.agents],
        parameters_text=yaml.safe_dump(report.parameters, sort_keys=False),
    )


def _unchanged(evaluation: Evaluation) -> list[str]:
    """Returns the labels of the trained agents that drove each race as the cloned policy did."""
    driven = {c.key: [(race.time_ms, race.end, race.progress_m) for race in c.races] for c in evaluation.contestants}
    agents = [c for c in evaluation.contestants if c.key not in ("cloned", "random")]
    return [c.label for c in agents if driven[c.key] == driven.get("cloned")]


def headline(metrics: Mapping[str, Any]) -> str:
    """Returns the result in one sentence, also if no race finished."""
    agent = metrics["agent"]
    versus = agent.get("versus_demonstrations")
    how_many = f"{agent['finished'] or 'none'} of {agent['races']}"
    if agent["finished"] == agent["races"]:
        how_many = f"all {agent['races']}"
    first = f"The agent finished {how_many} races"
    if not agent["finished"]:
        return f"{first}; it came {agent['mean_progress_m']:.0f} m far on average."
    if versus is None:
        return f"{first}."
    second = _versus(versus["gain_on_median_s"], "the median demonstration")
    third = _versus(versus["gain_on_best_s"], "the best")
    return f"{first}; its median was {second}, its best {third}."


def _versus(gain_s: float, whom: str) -> str:
    if abs(gain_s) < 0.005:
        return f"as fast as {whom}"
    return f"{seconds(abs(gain_s))} {'faster' if gain_s > 0 else 'slower'} than {whom}"


def _parameters(meta: Json) -> Json:
    """Returns the parameter sections that an artifact was made with."""
    return meta.get("provenance", {}).get("parameters", {})


def _extra_inputs(meta: Json) -> str:
    """Describes what an agent was given besides its weights; empty if its algorithm is unknown."""
    name = meta.get("config", {}).get("algorithm", "")
    return ALGORITHMS[name].describe_help(_parameters(meta).get(name, {})) if name in ALGORITHMS else ""


def _data_uri(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _video_source(video: Path | None) -> str | None:
    """Returns the video as a data URI if it is small enough, else its file name."""
    if video is None:
        return None
    content = video.read_bytes()
    return _data_uri(content, "video/mp4") if len(content) <= MAX_VIDEO_BYTES else video.name
