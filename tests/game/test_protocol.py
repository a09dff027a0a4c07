import struct

import pytest

from rulka.game import protocol
from rulka.game.errors import GameProtocolError
from rulka.game.protocol import MessageId, pack, pack_sized, pack_sync


def test_messages_to_the_byte() -> None:
    rows = (
        # 0.5 as float32 has sign 0, exponent 126, mantissa 0: 0x3F000000.
        (pack(MessageId.SET_SPEED, 0.5), "06 00 00 00 00 00 00 3f"),
        (pack(MessageId.SET_INPUTS, 1, 0, 1, 0), "0a 00 00 00 01 00 01 00"),
        (pack(MessageId.REQUEST_FRAME, 64, 48), "11 00 00 00 40 00 00 00 30 00 00 00"),
        (pack(MessageId.SET_TIMEOUT, 600_000_000), "0f 00 00 00 00 46 c3 23"),
        (pack(MessageId.SET_STEP_PERIOD, 50), "13 00 00 00 32 00 00 00"),
        (pack(MessageId.GET_STATE), "09 00 00 00"),
        (pack(MessageId.RUN_STEP), "01 00 00 00"),
        # e acute is two bytes in UTF-8, and the length counts bytes.
        (pack_sized(MessageId.EXECUTE_COMMAND, "\u00e9".encode()), "0e 00 00 00 02 00 00 00 c3 a9"),
        (pack_sized(MessageId.REWIND_TO_STATE, b"abc"), "07 00 00 00 03 00 00 00 61 62 63"),
        (pack_sync(MessageId.RUN_STEP, -2600), "01 00 00 00 d8 f5 ff ff"),
        (pack_sync(MessageId.CHECKPOINT_COUNT, 1, 3), "02 00 00 00 01 00 00 00 03 00 00 00"),
        (pack_sync(MessageId.FRAME), "04 00 00 00"),
        (pack_sync(MessageId.ON_CONNECT), "05 00 00 00"),
    )
    for message, expected in rows:
        assert message.hex(" ") == expected


def test_ids_are_those_of_the_plugin() -> None:
    names = """
        RUN_STEP CHECKPOINT_COUNT LAP_COUNT FRAME ON_CONNECT SET_SPEED REWIND_TO_STATE REWIND_TO_CURRENT GET_STATE
        SET_INPUTS GIVE_UP PREVENT_FINISH SHUTDOWN EXECUTE_COMMAND SET_TIMEOUT IS_FINISHED REQUEST_FRAME RESET_CAMERA
        SET_STEP_PERIOD CANCEL_FRAME SHOW_INTERFACE IS_IN_MENUS GET_INPUTS
    """
    assert {known.name: known.value for known in MessageId} == {name: k + 1 for k, name in enumerate(names.split())}
    assert sorted(protocol.SYNC_IDS) == [1, 2, 3, 4, 5]
    assert set(protocol.COMMAND_PAYLOADS) == set(MessageId)


def test_inputs_out_of_range_are_not_packed() -> None:
    with pytest.raises(struct.error):
        pack(MessageId.SET_INPUTS, 1, 0, 300, 0)


def test_what_the_game_never_sends_is_refused() -> None:
    for data in (b"\x06\0\0\0", b"HTTP", b"\xff\xff\xff\xff", b"\0\0\0\0"):
        expected = r"expected one of the ids \[1, 2, 3, 4, 5\], got .*" + data.hex(" ")
        with pytest.raises(GameProtocolError, match=expected):
            protocol.sync_id(data)


def test_the_version_is_a_comment_before_the_script() -> None:
    assert protocol.read_version(protocol.version_line() + "0 press up\n") == protocol.VERSION
    assert protocol.read_version("# rulka link 12\n") == 12
    for other in ("0 press up\n# rulka link 1\n", "# rulka link x\n", "# rulka link \u00b2\n", ""):
        assert protocol.read_version(other) is None
