"""The ids, payloads and constants of the plugin are those of the table, also where no engine is there to run it."""

import re

from rulka.game import protocol
from rulka.game.plugin import PLUGIN_FILE
from rulka.game.protocol import MessageId
from rulka.game.server import SILENCE_S

SOURCE = re.sub(r"//[^\n]*", "", PLUGIN_FILE.read_text())
SAME = {"ConsoleCommand": "EXECUTE_COMMAND"}


def snake(name: str) -> str:
    return SAME.get(name, re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper())


def test_ids_are_those_of_the_table() -> None:
    listed = re.search(r"enum Id {(.*?)}", SOURCE, re.DOTALL)
    assert listed
    ids = {snake(name): int(value) for name, value in re.findall(r"(\w+) = (-?\d+)", listed[1])}
    assert ids.pop("NONE") == -1
    assert ids == {known.name: known.value for known in MessageId}


def test_constants_are_those_of_the_protocol() -> None:
    values = dict(re.findall(r'^const \w+ (\w+) = "?([^";]*)"?;', SOURCE, re.MULTILINE))
    assert values == {
        "LOOPBACK": protocol.LOOPBACK,
        "DEFAULT_TIMEOUT_MS": str(protocol.DEFAULT_TIMEOUT_MS),
        "DEFAULT_PERIOD_MS": str(protocol.DEFAULT_PERIOD_MS),
        "MOST_STATE_BYTES": str(protocol.MOST_BYTES[MessageId.REWIND_TO_STATE]),
        "MOST_COMMAND_BYTES": str(protocol.MOST_BYTES[MessageId.EXECUTE_COMMAND]),
        "MOST_FRAME_SIDE": str(protocol.MAX_FRAME_SIDE),
        "SILENCE_MS": str(round(1000 * SILENCE_S)),
        "ACCEPT_MS": "10",
        "RETRY_MS": "1000",
        "LINK_VERSION": str(protocol.VERSION),
        "VERSION_COMMAND": protocol.VERSION_COMMAND,
        "VERSION_MARK": protocol.VERSION_MARK,
    }
