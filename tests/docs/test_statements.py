"""What pages state about settings, defaults and limits is what the code says, as far as it can be compared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rulka.actions import CONTROLS
from rulka.agents.iqn import draw_clocks
from rulka.doctor import PYTHONS
from rulka.envs.episodes import MOST_ACTIONS
from rulka.exchange.site import PATIENCE
from rulka.game.check import WAIT_S
from rulka.game.protocol import BASE_PORT, COUNTDOWN_MS, DEFAULT_TIMEOUT_MS
from rulka.game.settings import GameSettings
from rulka.game.supervise import PATIENCE_S, SELF_MADE_PATIENCE_S, START_LIMIT_S
from rulka.observation import num_floats
from rulka.params import Params, checked_params, read_params
from rulka.params.problems import _places
from rulka.ports import DASHBOARD_PORT
from rulka.recordings.container import MAX_FILE_BYTES
from rulka.recordings.nodes import MAX_DEPTH
from rulka.recordings.stream import MAX_SPENT_BYTES
from rulka.runtime.learner_loop import COMPARE_S, REPORT_S
from rulka.runtime.metrics import NUM_RECENT_RACES
from rulka.runtime.ranks import EXCHANGE_LIMIT_S
from rulka.runtime.ray_collectors import NODE_LIMIT_S
from rulka.runtime.stop import IMPATIENCE_S
from rulka.runtime.supervisor import HEARTBEAT_S, SILENCE_LIMIT_S
from rulka.schedule import Schedule
from rulka.study.population import PopulationFile
from rulka.tracks.geometry import TIGHTEST
from rulka.tracks.track import MIN_WIDTH_M
from tests.docs.test_pages import CODE, FENCE, INDENTED, PAGES, ROOT, ids, text_of

OF_TODAY = [page for page in PAGES if page.parent.name != "experiments"]
"""Pages of experiments show the settings of their commit."""
PARAMS = read_params(ROOT / "params.yaml")
GONE = {"impala.pull_of"}
"""Named in an error message."""
FILES = (".py", ".parquet", ".json", ".jsonl", ".npz", ".npy", ".html", ".yaml", ".png")


# Keys -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", OF_TODAY, ids=ids)
def test_keys_of_parameters_are_there(page: Path) -> None:
    sections, code = "|".join(Params.model_fields), "\n".join(CODE.findall(text_of(page)))
    named = set(re.findall(rf"^\+?((?:{sections})\.[a-z_.]+)\b", code, re.MULTILINE))
    wrong = {key for key in named - GONE - set(_places(Params)) if not key.endswith(FILES)}
    assert wrong == set()


def blocks_of(page: Path) -> Iterator[dict[str, Any]]:
    """Yields the blocks of a page that are sections of `params.yaml`."""
    text = text_of(page)
    fenced = [re.sub(r"^```\w*\n|```$", "", match.group()) for match in FENCE.finditer(text)]
    for block in [*fenced, *INDENTED.findall(FENCE.sub("", text))]:
        try:
            found = yaml.safe_load(block)
        except yaml.YAMLError:
            continue
        if isinstance(found, dict) and set(found) <= set(Params.model_fields):
            yield found


@pytest.mark.parametrize("page", OF_TODAY, ids=ids)
def test_blocks_of_parameters_are_possible(page: Path) -> None:
    for block in blocks_of(page):
        checked_params(block, f"{page.name}: {block}")


def test_blocks_are_found() -> None:
    assert sum(len(list(blocks_of(page))) for page in OF_TODAY) >= 3


@pytest.mark.parametrize("page", OF_TODAY, ids=ids)
def test_files_that_pages_name_are_there(page: Path) -> None:
    rooms = "rulka|models|tasks|flows|tests|benchmarks|presets|experiments|populations|deploy|examples"
    named = {
        code.rstrip("/")
        for code in CODE.findall(text_of(page))
        if re.fullmatch(rf"(?:{rooms})/[\w./-]*(?:/|\.py|\.yaml|\.npz)", code)
    }
    wrong = {name for name in named if not (ROOT / name).exists() and not re.search(r"xyz|ID\.yaml", name)}
    # A generated or promised file of `deploy/`, and presets that people add, are said to be theirs.
    assert wrong - {"deploy/notify.yaml"} == set()


# Numbers --------------------------------------------------------------------------------------------------------------


def statements() -> Iterator[tuple[str, str]]:
    """Yields sentences, with the code's numbers, and the page each is on."""
    own = PARAMS
    pythons = f"Python {' or '.join(PYTHONS)} and make"
    yield from (("README.md", pythons), ("docs/index.md", pythons))
    yield "docs/questions.md", f"`train.max_env_steps` (default {own.train.max_env_steps:,})"
    yield "docs/architecture.md", f"`gradient_steps_per_update` ({own.iqn.gradient_steps_per_update})"
    yield "docs/architecture.md", f"`mini_race_ms` ({own.iqn.mini_race_ms / 1000:g} s)"
    yield "docs/architecture.md", f"uint8 and {num_floats(1)} floats"
    yield "docs/architecture.md", f"a second signal, at least {IMPATIENCE_S:g} s later"
    yield "docs/agents.md", f"25 previous actions ({num_floats(5)} floats)"
    yield "docs/algorithms/impala.md", f"`max_versions_behind` ({own.impala.max_versions_behind})"
    yield "docs/algorithms/iqn.md", f"`gamma` is {_number(own.iqn.gamma)} for decisions of 100 ms"
    yield "docs/algorithms/iqn.md", f"`action_repeat` {own.iqn.action_repeat}: 100 ms"
    yield "docs/algorithms/ppo.md", f"`gamma` {_number(own.ppo.gamma)} looks 3.3 s ahead"
    yield "docs/algorithms/ppo.md", f"`rewards.off_track` ({own.rewards.off_track:g})"
    yield "docs/algorithms/grpo.md", f"`gamma` {_number(own.grpo.gamma)} and `cut_worth` {own.grpo.cut_worth:g}"
    yield "docs/algorithms/dpo.md", f"`beta` is {_number(own.dpo.beta)}"
    pql = (own.pql.steps_per_critic_update, own.pql.batch_size, own.pql.critic_updates_per_policy_update)
    yield "docs/algorithms/pql.md", "the defaults are {}, {} and {}".format(*pql)
    yield "docs/runtime.md", f"at most `checkpoint_s` ({own.train.checkpoint_s:g} s) of training"
    yield "docs/runtime.md", f"{SILENCE_LIMIT_S:g} s of silence count as a crash"
    yield "docs/runtime.md", f"weights by checksum every {COMPARE_S:g} s"
    yield "docs/runtime.md", f"Every {REPORT_S:g} s a line goes to"
    yield "docs/runtime.md", f"{EXCHANGE_LIMIT_S:g} s in an exchange, {SILENCE_LIMIT_S:g} s silent"
    yield "docs/runtime.md", f"named error after {NODE_LIMIT_S:g} s"
    yield "docs/runtime.md", f"`Race/` the last {NUM_RECENT_RACES} training races"
    yield "docs/any-environment.md", f"action `Discrete`, up to {MOST_ACTIONS}"
    yield "docs/any-environment.md", f"averages the last {NUM_RECENT_RACES} training episodes"
    yield "docs/campaign.md", f"the road is under {MIN_WIDTH_M:g} m wide, a bend's radius is below {TIGHTEST}"
    yield "docs/game.md", f"# port {BASE_PORT}, the generated track"
    yield "docs/game.md", f"| 127.0.0.1, {GameSettings().port} |"
    yield "docs/game.md", f"factor of the race clock | {GameSettings().speed:g} |"
    yield "docs/game.md", f"A wait ends after {WAIT_S:g} s"
    yield "docs/game.md", f"the countdown of {COUNTDOWN_MS} ms"
    yield "docs/game.md", f"{DEFAULT_TIMEOUT_MS / 1000:g} s from the start of a sync"
    yield "docs/operations.md", f"http://127.0.0.1:{DASHBOARD_PORT}/"
    yield "docs/operations.md", f"is retried once after {_constant('flows/pipeline.py', 'RETRY_DELAY_S'):g} s"
    yield "docs/populations.md", f"(`worst`, default {PopulationFile.model_fields['worst'].default:g} of all)"
    yield "docs/recordings.md", f"A file and its body hold at most {MAX_FILE_BYTES >> 20} MB"
    yield "docs/recordings.md", f"together {MAX_SPENT_BYTES >> 20} MB, structures nest {MAX_DEPTH} deep"
    in_words = {
        ("docs/architecture.md", "twelve key combinations"): len(CONTROLS) == 12,
        ("docs/questions.md", "half start anywhere"): own.train.start_anywhere == 0.5,
        ("docs/agents.md", "PPO and IQN have 2 by default"): own.ppo.action_repeat == own.iqn.action_repeat == 2,
        ("docs/agents.md", "the others 1"): {own.algorithms[name].action_repeat for name in OTHERS} == {1},
        ("docs/runtime.md", "Collectors send a heartbeat each second"): HEARTBEAT_S == 1.0,
        ("docs/operations.md", "the server hangs for a minute"): _constant("flows/up.py", "HANG_TIMEOUT_S") == 60.0,
        ("docs/game.md", "wait up to two minutes until all listen"): START_LIMIT_S == 120.0,
        ("docs/game.md", "The collector waits ten seconds for it (a minute if"): (PATIENCE_S, SELF_MADE_PATIENCE_S)
        == (10.0, 60.0),
        ("docs/recordings.md", "retried four times"): PATIENCE.total == 4,
    }
    for (page, sentence), is_true in in_words.items():
        assert is_true, f"{page}: {sentence}"
        yield page, sentence


OTHERS = ("impala", "grpo", "dpo", "pql")


def _number(schedule: Schedule) -> str:
    (value,) = schedule.values
    return f"{value:g}"


def _constant(file: str, name: str) -> float:
    """Returns a constant of a module that takes seconds to import."""
    found = re.search(rf"^{name} = ([\d.]+)", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return float(found[1])


def test_numbers_are_those_of_the_code() -> None:
    found = list(statements())
    missing = [f"{page}: {said}" for page, said in found if said not in " ".join(text_of(ROOT / page).split())]
    assert missing == []
    assert len(found) > 40


def test_how_often_a_clock_is_drawn() -> None:
    """`docs/algorithms/iqn.md`: uniform, but 1 to 30 twice as often and 0 eleven times."""
    said = "uniform, but 1 to 30 twice as often and 0 eleven times"
    assert said in text_of(ROOT / "docs/algorithms/iqn.md")
    for horizon in (70, 140):
        num = horizon + 40
        counts = np.bincount(draw_clocks((np.arange(num) + 0.5) / num, horizon), minlength=horizon)
        assert counts.tolist() == [11] + [2] * 30 + [1] * (horizon - 31)
