"""The ids, payloads and constants of the plugin are those of the table, also where no engine is there to run it."""

import re

from rulka.game import protocol
from rulka.game.plugin import PLUGIN_FILE
from rulka.game.protocol import COMMAND_PAYLOADS, SYNC_IDS, MessageId
from rulka.game.server import SILENCE_S

SOURCE = re.sub(r"//[^\n]*", "", PLUGIN_FILE.read_text())
SAME = {"ConsoleCommand": "EXECUTE_COMMAND"}
READS = {"Float": "f", "Int32": "i", "Uint32": "I", "Uint8": "B"}


def snake(name: str) -> str:
    return SAME.get(name, re.sub(r"(?<!^)([A-Z])", r"_\1", name).upper())


def function(name: str) -> str:
    """The body of a function of the plugin."""
    found = re.search(rf"^\w+@? {name}\([^)]*\)\n{{\n(.*?)^}}", SOURCE, re.MULTILINE | re.DOTALL)
    assert found, name
    return found[1]


def cases() -> dict[str, str]:
    """What is done for each id."""
    parts = re.split(r"case Id::(\w+):", function("HandleNext").split("default:")[0])
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def reads(code: str) -> str:
    """What a case reads from the socket, in order, calls of own functions followed."""
    found = ""
    for call in re.finditer(r"Read(\w+?)\(|\b([A-Z]\w+)\(", code):
        if call[1] in READS:
            found += READS[call[1]]
        elif call[2] and re.search(rf"^void {call[2]}\(", SOURCE, re.MULTILINE):
            found += reads(function(call[2]))
    return found


def test_ids_are_those_of_the_table() -> None:
    listed = re.search(r"enum Id {(.*?)}", SOURCE, re.DOTALL)
    assert listed
    ids = {snake(name): int(value) for name, value in re.findall(r"(\w+) = (-?\d+)", listed[1])}
    assert ids.pop("NONE") == -1
    assert ids == {known.name: known.value for known in MessageId}


def test_every_message_is_handled() -> None:
    assert {snake(name) for name in cases()} == {known.name for known in MessageId}


def test_payloads_are_those_of_the_table() -> None:
    for name, code in cases().items():
        expected = COMMAND_PAYLOADS[MessageId[snake(name)]].format.removeprefix("<")
        assert reads(code) == re.sub(r"(\d)(\w)", lambda part: int(part[1]) * part[2], expected), name


def test_every_sync_waits_for_its_echo() -> None:
    waited = set(re.findall(r"WaitForEcho\(Id::(\w+)\)", SOURCE)) | set(re.findall(r"SendCount\(Id::(\w+)", SOURCE))
    assert {snake(name) for name in waited} == {known.name for known in SYNC_IDS}


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
