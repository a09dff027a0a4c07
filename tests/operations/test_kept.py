import shutil
from pathlib import Path

import pytest

from rulka.contracts.actions import FORWARD
from rulka.contracts.artifacts import ArtifactError
from rulka.machine.errors import UserError
from rulka.operations.history import read_history
from rulka.operations.kept import (
    Promotion,
    UnknownAgentError,
    find_agent,
    format_agents,
    keep_promoted,
    known_agents,
    name_of,
    promoted_name,
    promotions,
)
from rulka.operations.promotion import promote
from tests.tasks.test_evaluate import save_driver

AGENT = Path("data/agent")
pytestmark = pytest.mark.usefixtures("project")


def promoted(folder: Path) -> Path:
    return keep_promoted(folder, Promotion(name_of(folder), "2026-11-23T03:00:00+00:00", None, None))


def test_an_agent_is_found_by_each_of_its_names() -> None:
    name = name_of(AGENT)
    place = promoted(AGENT)
    assert place == Path("data/agents") / name
    assert find_agent("latest") == AGENT
    assert find_agent("promoted") == find_agent(name) == place
    assert find_agent("slow") == Path("slow")
    name = name_of(AGENT)
    with pytest.raises(
        UnknownAgentError, match=f"no agent '{name[:-1]}', nor such a folder; did you mean {name}"
    ) as caught:
        find_agent(name[:-1])
    assert caught.value.hint.startswith(f"Known are latest, promoted, shipped, {name}; a folder")
    with pytest.raises(UnknownAgentError) as caught:
        find_agent("zzz")
    assert str(caught.value) == "there is no agent 'zzz', nor such a folder"
    shutil.rmtree("data/agents")
    with pytest.raises(UnknownAgentError) as caught:
        find_agent("zzz")
    assert caught.value.hint.startswith(f"Known are latest, shipped, {name}; a folder"), "nobody is promoted"
    shutil.rmtree(AGENT)
    with pytest.raises(UnknownAgentError) as caught:
        find_agent("zzz")
    assert caught.value.hint.startswith("Known are shipped; a folder")


@pytest.mark.parametrize("file", ["weights.safetensors", "meta.json"])
def test_missing_files_of_a_kept_agent_come_back_from_dvc(file: str) -> None:
    (promoted(AGENT) / file).unlink()
    with pytest.raises(ArtifactError) as caught:
        find_agent("promoted")
    assert file in str(caught.value)
    assert "dvc checkout data/agents.dvc" in caught.value.hint


def test_it_says_what_each_is_made_of_and_which_is_promoted() -> None:
    promoted(Path("slow"))
    first, latest = known_agents()
    assert (first.is_promoted, first.is_latest, first.algorithm) == (True, False, "iqn")
    assert (latest.is_promoted, latest.is_latest, latest.algorithm) == (False, True, "ppo")
    assert latest.tracks == ("tiny",)
    table = format_agents([first, latest]).splitlines()
    assert table[1].startswith(first.name)
    assert table[1].endswith("promoted")
    assert table[2].endswith("latest")


def test_the_same_agent_stands_there_once_and_a_damaged_one_says_why() -> None:
    promoted(AGENT)
    [entry] = known_agents()
    assert (entry.is_promoted, entry.is_latest) == (True, True)
    assert entry.folder.startswith("data/agents/")
    (promoted(AGENT) / "weights.safetensors").write_bytes(b"no weights")
    [entry] = known_agents()
    assert "weights.safetensors is damaged" in entry.problem
    assert f"{entry.name}: {entry.problem}" in format_agents([entry])


def test_a_kept_agent_outlives_the_next_training() -> None:
    place = promoted(AGENT)
    shutil.rmtree(AGENT)
    save_driver(AGENT, "agent", "ppo", FORWARD + 1)
    assert find_agent("promoted") == place
    assert name_of(place) == place.name != name_of(AGENT)


def test_promotions_are_appended_and_a_damaged_list_is_named() -> None:
    promoted(AGENT)
    promoted(Path("slow"))
    assert [each.name for each in promotions()] == [name_of(AGENT), name_of(Path("slow"))]
    assert promoted_name() == name_of(Path("slow"))
    promoted(AGENT)
    Path("data/agents/promotions.jsonl").write_text("{")
    with pytest.raises(UserError, match=r"promotions.jsonl, line 1, is damaged"):
        promoted_name()


def test_who_was_promoted_is_not_forgotten_where_dvc_knows_more() -> None:
    """As in a fresh clone: whoever comes first would be promoted without a race, and the others replaced."""
    place = promoted(AGENT)
    Path("data/agents.dvc").write_text("outs:\n- path: agents\n")
    Path("data/nights.dvc").write_text("outs:\n- path: nights\n")
    shutil.rmtree(place.parent)
    for ask in (promoted_name, known_agents, lambda: promote(Path("slow"), pytest.fail)):
        with pytest.raises(UserError, match=r"promotions.jsonl is missing, though data/agents.dvc says") as refused:
            ask()
        assert "`dvc checkout data/agents.dvc`" in refused.value.hint
    with pytest.raises(UserError, match=r"history.csv is missing, though data/nights.dvc says"):
        read_history()
    assert not place.parent.exists()
